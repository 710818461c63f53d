"""Experts over data and tensor ranks: searched, checked, exported, imported, and a row of `fit`."""

from functools import cache
from pathlib import Path

import pytest

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from planner import Effort, Problem, Space, make_plan
from planner.checker import check_plan
from planner.export.forms import export
from planner.export.job_configs.today import todays_plan
from planner.measured.runs import job_of
from planner.plan import Plan, read_plan, write_plan
from planner.question.in_stage_support import config_refusal
from planner.search.space.family import FamilySpace
from tests.support.described_models import described

FOLDED = {"stages": 1, "data": 2, "context": 1, "tensor": 2, "expert": 4, "zero": 1, "recompute": "none"}


def problem(**fixed: object) -> Problem:
    space = Space(**fixed)  # type: ignore[arg-type]
    effort = Effort(60, deterministic_limit=0.2)
    return Problem(described("mixtral"), None, 4, 16, effort=effort, target="megatron", space=space)


@cache
def folded() -> Plan:
    return make_plan(problem(**FOLDED)).plan


def test_more_experts_than_replicas_spread_over_tensor_ranks(tmp_path: Path) -> None:
    config = folded().stages[0].config
    assert (config.expert, config.expert_tensor, config.sequence) == (4, 1, 2)
    assert check_plan(folded(), described("mixtral").graph) == ()
    write_plan(tmp_path / "plan.json", folded())
    assert read_plan(tmp_path / "plan.json") == folded()


def test_the_space_has_experts_whole_and_in_as_many_parts_as_tensor_ranks() -> None:
    free, fixed = FamilySpace(problem(tensor=4, data=1, stages=1)), FamilySpace(problem(tensor=4, expert_tensor=2))
    found = {(config.sequence, config.expert, config.expert_tensor) for config in free.degrees}
    assert found == {(1, 1, 4), (4, 1, 4), (4, 1, 1), (4, 2, 1), (4, 4, 1)}
    assert free.number == len(free.all)
    assert {config.expert_tensor for config in fixed.degrees} == {2}


def test_megatron_reads_the_degrees_that_its_flags_say(tmp_path: Path) -> None:
    flags = export(folded(), "megatron")["flags.txt"]
    assert "--expert-model-parallel-size 4\n--expert-tensor-parallel-size 1\n" in flags
    (tmp_path / "job.txt").write_text(" ".join(flags.split()))
    read, _ = todays_plan(tmp_path / "job.txt", "megatron", described("mixtral"), 4)
    assert read.stages[0].config == folded().stages[0].config


@pytest.mark.parametrize(
    ("target", "config", "said"),
    [
        ("torchtitan", StageConfig(2, 2, 2, expert=4, zero=3, expert_tensor=1), ""),
        ("torchtitan", StageConfig(2, 2, 2, zero=3, expert_tensor=1), "an expert tensor degree of 1 with 1 expert"),
        ("deepspeed", StageConfig(1, 2, expert_tensor=1), "an expert tensor degree of 1 with a tensor degree of 2"),
        ("megatron", StageConfig(2, 4, 4, expert=4, expert_tensor=2), ""),
    ],
)
def test_targets_take_what_their_trainer_runs(target: str, config: StageConfig, said: str) -> None:
    found = config_refusal(target, config, pipelined=False)
    assert found.startswith(said) if said else not found


def test_a_row_of_runs_has_the_tensor_degree_of_its_experts(tmp_path: Path) -> None:
    cells = {"model": "mixtral-8x7b", "device": "h100-sxm-80", "devices": "8", "batch": "16", "step_time_ms": "1",
             "tensor": "4", "sequence_parallel": "1", "expert": "8"}  # fmt: skip
    assert job_of({**cells, "expert_tensor": "1"}, tmp_path).space.expert_tensor == 1
    assert job_of({**cells, "expert": "2"}, tmp_path).space.expert_tensor is None


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"data": 2, "tensor": 2, "context": 1, "expert": 8}, "does not divide data 2 x context 1 x tensor 2"),
        ({"tensor": 2, "expert_tensor": 1, "sequence_parallel": False}, "give --sequence-parallel with it"),
    ],
)
def test_degrees_that_do_not_go_together_are_refused_before_any_search(fixed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        problem(**fixed)
