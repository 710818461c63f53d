"""Where replicas all do the same, the simulation of the first is that of all, to the nanosecond and byte."""

import json
from pathlib import Path

import pytest

from planner.commands import main
from planner.plan import Plan, write_plan
from planner.report.why import one_replica
from planner.report.why.one_replica import everything, simulated
from tests.support.jobs import job
from tests.support.random_profiles import branches
from tests.support.small_plan import PLAN

PLANS = {
    "pipeline": job("llama", 8, 16, stages=2, data=2, tensor=2),
    "two stages a place": job("llama", 8, 16, stages=2, chunks=2, data=4),
    "tied": job("gpt2", 8, 16, stages=2, data=4, optimizer="adam"),
    "split backward": job("llama", 8, 16, stages=4, data=2, schedule="zb-h1", zero=1),
    "stage graph": job(branches(3, 2), 8, 16, stages=4, data=2),
}
MODES = ("latency", "blocking", "links", "nccl")


@pytest.mark.parametrize("name", PLANS)
def test_the_first_replica_is_simulated_as_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = PLANS[name]
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    for mode in MODES:
        for optimizer in ("independent", "global-norm"):
            answers, scopes = [], []
            for few in (one_replica.FEW_ACTIONS, 0):
                monkeypatch.setattr(one_replica, "FEW_ACTIONS", few)
                assert main(["simulate", str(path), "--p2p", mode, "--optimizer-mode", optimizer, "--json"]) == 0
                answers.append(json.loads(capsys.readouterr().out))
                scopes.append(answers[-1].pop("scope"))
                monkeypatch.undo()
            assert answers[0] == answers[1], mode
            assert scopes[1].endswith(f", of one of {plan.stages[0].config.data} replicas that all do the same")
            assert "replicas that" not in scopes[0]
    monkeypatch.setattr(one_replica, "FEW_ACTIONS", 0)
    assert len(simulated(plan).blocks) == len(everything(plan).blocks) // plan.stages[0].config.data


@pytest.mark.parametrize("plan", [PLAN, job("llama", 4, 8, stages=4)])
def test_a_plan_without_replicas_that_do_alike_is_simulated_whole(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_replica, "FEW_ACTIONS", 0)
    assert simulated(plan) == everything(plan)
