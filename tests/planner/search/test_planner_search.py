"""From problem to plan: every planner, the chain as a rival, limits, interrupts, lost solvers, the same bytes."""

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from random import Random

import pytest

from costmodel.errors import InvalidInput, NoPlanFits, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile, write_profile
from costmodel.model.whole_model import WholeModelMeasurements
from planner.answer.decide import plan
from planner.checker import check_plan
from planner.commands import main
from planner.plan import Plan, plan_to_json, read_plan, write_plan
from planner.plan.replay import depth, replay
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.loop import PortfolioSearch
from planner.search.planners import PLANNERS, RIVALS
from planner.search.proposers import chain as lines
from planner.search.proposers.cpsat import CpSatProposer
from planner.search.solvers.cpsat import child
from tests.properties.exact_promises import solved_here
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, chain, profile_of, random_profile, u_net

QUICK = 0.05
"""Deterministic seconds of the solver that tests allow."""


@pytest.fixture(autouse=True)
def in_this_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Solve in this process, but where the other one is what is looked at."""
    with nullcontext() if "killed_solver" in request.node.name else solved_here():
        yield


def problem_of(profile: Profile, num_devices: int = 4, batch: int = 8, **options: object) -> Problem:
    given: dict[str, object] = {"deterministic_limit": QUICK, "time_limit_s": 60.0, **options}
    return pipelines(profile, num_devices, batch, given.pop("microbatch_size", 1), **given)  # type: ignore[arg-type]


def check(found: Plan, profile: Profile) -> None:
    assert check_plan(found, profile.graph) == ()
    assert found.search.objective == found.prediction.step_time_ns == replay(found).step_time_ns
    assert found.search.lower_bound_ns
    assert 0 < found.search.lower_bound_ns <= found.search.best_step_time_ns <= found.search.objective


RIVAL_NAMES = [rival.name for rival in RIVALS]
PROFILES = {
    "two branches": branches(2, 6),
    "four branches": branches(4, 6),
    "U-Net": u_net(6),
    "chain": chain(10),
    "random": random_profile(Random(5), 16),
    "host time": u_net(6, host_ns=150),
    "tied": profile_of([900, 500, 700, 800], [(0, 1), (1, 2), (2, 3)], tied=[(0, 3)]),
    "frozen source": profile_of([900, 500, 700, 800], [(0, 2), (1, 2), (2, 3)], frozen=frozenset({0})),
    "one operator": profile_of([900], []),
    "a forward without gradient between": profile_of([500] * 5, [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)]),
}


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", PROFILES)
def test_every_planner_returns_a_plan_that_the_checker_accepts(planner: str, name: str) -> None:
    profile = PROFILES[name]
    problem = problem_of(profile, 3, 4, planner=planner, deterministic_limit=0.05, optimizer="adam")
    if planner == "megatron-uniform":
        with pytest.raises(NoPlanFits, match="divides repeated layers, and made-up has none"):
            plan(problem)
        return
    found = plan(problem)
    if planner in RIVAL_NAMES:
        assert check_plan(found, profile.graph) == ()
        assert found.search.objective == replay(found).step_time_ns
        assert found.search.lower_bound_ns is None  # it optimises something else
    else:
        check(found, profile)
    assert found.search.status in (("optimal", "bounded") if planner == "ours" else ("baseline",))


def test_the_graph_plan_of_branches_runs_them_at_once_and_beats_the_chain() -> None:
    profile = branches(4, 6)
    found = plan(problem_of(profile))
    rival = plan(problem_of(profile, planner="chain"))
    check(found, profile)
    assert depth(found) < len(found.stages) == depth(rival) == 4
    assert found.search.baselines["chain"] == rival.search.objective
    assert found.search.best_step_time_ns * 1.05 < rival.search.objective


@pytest.mark.parametrize("seed", range(4))
def test_the_graph_plan_is_never_slower_than_the_chain_plan(seed: int) -> None:
    profile = random_profile(Random(seed), 14, latency_ns=3000)
    found = plan(problem_of(profile, 3))
    rival = plan(problem_of(profile, 3, planner="chain"))
    assert found.search.objective <= rival.search.objective
    assert rival.search.objective <= found.search.baselines["chain"] <= rival.search.objective * 1.05


def test_a_chain_relays_every_tensor_through_the_stages_between() -> None:
    profile = u_net(4)
    found = plan(problem_of(profile, 3, planner="chain"))
    check(found, profile)
    stage_of = {name: i for i, stage in enumerate(found.stages) for name in stage.operators}
    assert [(e.source, e.target) for e in found.edges] == [(0, 1), (1, 2)]
    for edge in found.edges:
        assert set(edge.tensors) == {
            t.name
            for t in profile.graph.tensors
            if stage_of[t.producer] <= edge.source and any(stage_of[c] >= edge.target for c in t.consumers)
        }
        assert edge.size_bytes == 1000 * len(edge.tensors)


def test_a_relaying_stage_holds_what_it_passes_on() -> None:
    """A skip of 50,000 bytes from the first to the last of three operators goes through the middle stage."""
    profile = profile_of([1000] * 3, [(0, 1), (1, 2), (0, 2)])
    tensors = (replace(profile.graph.tensors[0], size_bytes=(50_000, 100_000, 200_000)), profile.graph.tensors[1])
    profile = replace(profile, graph=replace(profile.graph, tensors=tensors))
    found = plan(problem_of(profile, 3, batch=16, planner="uniform"))
    assert [stage.cost.activation_bytes for stage in found.stages] == [4000, 54_000, 55_000]
    assert [edge.size_bytes for edge in found.edges] == [50_000, 51_000]


def test_fewer_stages_are_chosen_when_transfers_cost_more_than_they_save() -> None:
    profile = chain(4, work=100, latency_ns=1_000_000)
    found = plan(problem_of(profile))
    check(found, profile)
    assert len(found.stages) == 1
    assert found.search.status == "optimal"
    assert found.search.objective == 8 * 4 * 300
    assert found.search.limited_by == "proved"


def test_a_simpler_plan_within_one_per_cent_is_preferred() -> None:
    """A second stage for an operator of half a per cent of the work is not worth having."""
    profile = profile_of([100_000, 400], [(0, 1)], latency_ns=0, tensor_bytes=0)
    found = plan(problem_of(profile, 2))
    assert len(found.stages) == 1
    assert found.search.best_step_time_ns < found.search.objective <= 1.01 * found.search.best_step_time_ns
    assert "simpler" in str(found.extra["choice"])


def test_tied_parameters_in_two_stages_are_reduced() -> None:
    profile = profile_of([9000, 9000, 9000], [(0, 1), (1, 2)], tied=[(0, 2)])
    found = plan(problem_of(profile, 3))
    check(found, profile)
    tied = [i for i, stage in enumerate(found.stages) if {"op0", "op2"} & set(stage.operators)]
    assert len(tied) == 2
    for rank, order in enumerate(found.orders):
        assert (f"{rank}REDUCE" in order) == (rank in tied)
    # A ring of two sums 20,000 bytes in two steps of 10,000, at one byte a ns and 50 ns of latency.
    assert [found.stages[i].cost.reduce_ns for i in tied] == [2 * (10_000 + 50)] * 2


def test_the_optimizer_step_is_there_only_when_asked_for() -> None:
    profile = replace(chain(4), whole=WholeModelMeasurements((1, 2, 4), optimizer_ns=4000))
    without, with_it = (plan(problem_of(profile, 2, optimizer=name)) for name in ("none", "adam"))
    assert not any("OPT" in action for order in without.orders for action in order)
    assert [order[-1] for order in with_it.orders] == [f"{s}OPT" for s in range(len(with_it.stages))]
    check(with_it, profile)


def test_a_memory_limit_is_kept_and_costs_time() -> None:
    profile = branches(2, 6, saved_bytes=100_000, parameter_bytes=1000)
    free = plan(problem_of(profile, 4, 16))
    limit = max(free.prediction.peak_memory_bytes) * 3 // 4
    tight = plan(problem_of(profile, 4, 16, memory_limit_bytes=limit))
    check(tight, profile)
    assert max(tight.prediction.peak_memory_bytes) <= limit
    assert tight.search.objective >= free.search.best_step_time_ns
    assert f"{limit} bytes a rank" in tight.search.scope


def test_too_little_memory_says_which_rank_and_by_how_much() -> None:
    with pytest.raises(NoPlanFits, match=r"peaks at \d+ bytes on rank \d .*the limit is 50000, \d+ bytes less"):
        plan(problem_of(chain(6), 2, memory_limit_bytes=50_000))
    with pytest.raises(NoPlanFits, match="; proved for all cuts between 6 atoms of 6 operators"):
        plan(problem_of(chain(6), 2, memory_limit_bytes=50_000, deterministic_limit=1.0))


@pytest.mark.parametrize("schedule", ["graph-1f1b", "1f1b", "gpipe", "eager-1f1b", "graph-eager-1f1b"])
def test_a_schedule_can_be_fixed(schedule: str) -> None:
    profile = branches(2, 5)
    found = plan(problem_of(profile, 3, schedule=schedule))
    check(found, profile)
    assert found.schedule == schedule


def test_the_micro_batch_size_is_searched_among_the_measured_ones() -> None:
    """Twice the samples take twice the time here, so the smallest size leaves the least bubble."""
    profile = chain(8)
    found = plan(problem_of(profile, 2, 8, microbatch_size=None))
    check(found, profile)
    assert found.batch.microbatch_size == 1
    assert "micro-batch size 1 or 2 or 4" in found.search.scope


def test_sizes_outside_the_measured_range_are_not_guessed() -> None:
    assert problem_of(chain(2), 1, 48, microbatch_size=None).microbatch_sizes == (1, 2, 3, 4)
    large = chain(2, sizes=(8, 16))
    assert problem_of(large, 1, 6, microbatch_size=None).microbatch_sizes == (6,)


@pytest.mark.parametrize("name", ["four branches", "random"])
def test_the_same_problem_gives_the_same_bytes(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    problem = problem_of(PROFILES[name], 3)
    found = plan(problem)
    write_plan(tmp_path / "first.json", found)
    write_plan(tmp_path / "second.json", plan(problem))
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()
    assert plan_to_json(read_plan(tmp_path / "first.json")) == plan_to_json(found)


def test_progress_tells_phase_step_bound_and_gap() -> None:
    lines: list[str] = []
    found = plan(problem_of(branches(2, 6)), progress=lines.append)
    assert lines
    assert all(" ms" in line and ": " in line for line in lines)
    assert " bound " in lines[-1]
    assert " gap " in lines[-1]
    assert f"pipeline {found.search.best_step_time_ns / 1e6:.3f} ms" in lines[-1]


def test_ctrl_c_keeps_the_best_plan_so_far() -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    profile = branches(2, 6)
    found = plan(problem_of(profile), progress=interrupt)
    assert found.search.limited_by == "interrupted"
    assert check_plan(found, profile.graph) == ()


def test_a_search_after_an_interrupted_one_is_whole() -> None:
    """In a notebook the process goes on: what ended one search is no word about the next."""

    def interrupt(line: str) -> None:
        signal.raise_signal(signal.SIGINT)

    problem = problem_of(branches(2, 6))
    assert plan(problem, progress=interrupt).search.limited_by == "interrupted"
    assert plan(problem).search.limited_by != "interrupted"


def test_ctrl_c_while_cuts_are_made_keeps_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lines, "cut", interrupt)
    profile = branches(2, 6)
    found = plan(problem_of(profile))
    assert found.search.limited_by == "interrupted"
    assert check_plan(found, profile.graph) == ()


def test_a_killed_solver_leaves_the_heuristic_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is killed as soon as it starts; the search ends at once with what the heuristic found."""
    started: list[int] = []
    real = child.subprocess.Popen

    def start_and_kill(*args, **options):  # type: ignore[no-untyped-def]
        process = real(*args, **options)
        started.append(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(child.subprocess, "Popen", start_and_kill)
    profile = u_net(6)
    found = plan(problem_of(profile, schedule="graph-1f1b"))
    assert started
    assert found.search.limited_by == "solver lost"
    check(found, profile)


def test_no_time_leaves_the_heuristic_plan() -> None:
    profile = u_net(6)
    found = plan(problem_of(profile, time_limit_s=0.0, deterministic_limit=None))
    assert found.search.limited_by == "time limit"
    check(found, profile)


def test_the_solver_betters_what_the_heuristic_cannot() -> None:
    """With the local search and all but one order left out, the cut that the solver finds is taken."""
    profile = random_profile(Random(11), 12)
    search = PortfolioSearch(problem_of(profile, 3, deterministic_limit=2.0), None)
    (family,) = search.state.prepared.families.all
    cuts = search.state.prepared.cuts(family)
    worst = max((cuts.evaluate((0,) * k + (1,) * (12 - k)) for k in range(1, 12)), key=lambda each: each.step_time_ns)
    search.state.pool.offer([worst])
    closed = search.state.prepared.free_bounds.closed_form_ns(family)
    search.state.bounds.of[family] = closed
    proposer = CpSatProposer(search.state)
    proposer.slice.restart(60.0)
    with search.state.solver:
        while proposer.step():
            pass
    assert search.state.pool.best.step_time_ns < worst.step_time_ns
    assert search.state.bounds.of[family] > closed


def test_ranks_of_different_speed_are_simulated_and_bounded() -> None:
    cluster = Cluster(
        (DeviceType("a", 2**40),), (Host("a", 3),), (LinkGroup("local", 0, 1.0, 50),), speeds=((1, 0.5), (2, 2.0))
    )
    profile = chain(9)
    found = plan(problem_of(profile, 3, cluster=cluster))
    check(found, profile)


def test_a_profile_in_which_nothing_takes_time_is_refused() -> None:
    with pytest.raises(InvalidInput, match="every operator of the profile takes 0 ns"):
        problem_of(profile_of([0, 0], [(0, 1)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"microbatch_size": 3}, "micro-batch size 3 does not divide the batch of 8; its divisors are 1, 2, 4, 8"),
        ({"num_devices": 0}, "0 devices asked for"),
        ({"schedule": "zb-h9"}, "no schedule is called 'zb-h9'"),
        ({"planner": "best"}, "no planner is called 'best'; there are ours, chain"),
        ({"optimizer": "sophia"}, "optimizer 'sophia'; allowed are none, sgd"),
        ({"max_stages": 0}, "at most 0 stages"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(problem_of(chain(3), **{"num_devices": 2, **options}))  # type: ignore[arg-type]


def test_the_command_says_when_messages_are_free_because_nothing_was_measured(tmp_path, capsys) -> None:
    write_profile(tmp_path / "p.json", replace(branches(2, 2), links=None))
    words = ["--devices", "2", "--batch", "4", "--time-limit", "1", "-o", str(tmp_path / "plan.json")]
    assert main(["plan", str(tmp_path / "p.json"), *words]) == 0
    assert "messages are free: no links were measured or given" in " ".join(capsys.readouterr().out.split())


def test_a_first_plan_that_takes_longer_than_the_limit_is_said_beforehand(tmp_path, capsys, monkeypatch) -> None:
    write_profile(tmp_path / "p.json", branches(2, 2))
    words = ["plan", str(tmp_path / "p.json"), "--devices", "2", "--batch", "4", "-o", str(tmp_path / "plan.json")]
    for per_operator_ns, said in ((10**6, False), (10**9, True)):
        monkeypatch.setattr("planner.commands.plan.FIRST_PLAN_NS", per_operator_ns)
        assert main([*words, "--time-limit", "1"]) == 0
        assert ("operators takes about 6 s, whatever the limit of 1 s" in capsys.readouterr().err) == said


def test_a_plan_of_more_actions_than_a_file_may_hold_is_refused_not_written() -> None:
    asked = problem_of(branches(2, 6), batch=1_500_000, space=Space(stages=4, data=1), time_limit_s=2.0)
    with pytest.raises(UsageError, match=r"a plan of [0-9]+ actions, of which 4000000 are allowed; .* fewer stages$"):
        plan(asked)


def test_a_step_of_very_many_actions_is_not_cut_with_care() -> None:
    few, many = (PortfolioSearch(problem_of(branches(2, 6), batch=batch), None) for batch in (64, 10**6))
    family = next(
        family for family in few.state.prepared.families.all if few.state.prepared.cuts(family).num_stages > 1
    )
    assert few.state.prospects.is_small(family)
    assert not many.state.prospects.is_small(family)
