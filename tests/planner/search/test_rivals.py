"""Rivals: the best of their own objective, plans that the checker accepts, flags and pins kept or refused by name."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import NoPlanFits, PenstockError, UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.blocks import block_names
from planner import Effort, Problem, Space, make_plan
from planner.answer.decide import plan
from planner.plan import Plan
from planner.question.pins import read_pins
from planner.search.loop import PortfolioSearch
from planner.search.planners import PLANNERS, RIVALS
from planner.search.published.prices import View
from planner.search.published.proposals import ProposedStage, placings
from planner.search.state.prepared import PreparedProblem
from tests.properties.rival_promises import alpa_failure, chain_failure, pipedream_failure, piper_failure
from tests.support.described_models import described
from tests.support.pipelines import PIPELINES, pipelines
from tests.support.random_profiles import branches, chain

seeds = st.integers(0, 1 << 40)
NAMES = [rival.name for rival in RIVALS]


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_pipedreams_slowest_stage_is_the_one_of_brute_force(seed: int) -> None:
    assert pipedream_failure(Random(seed)) == ""


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_pipers_slowest_stage_is_the_one_of_brute_force(seed: int) -> None:
    assert piper_failure(Random(seed)) == ""


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_alpas_sum_and_slowest_stage_are_those_of_brute_force(seed: int) -> None:
    assert alpa_failure(Random(seed)) == ""


@pytest.mark.parametrize("seed", range(5))
def test_the_chain_is_the_best_line_of_all(seed: int) -> None:
    assert chain_failure(Random(seed)) == ""


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_plans_layers_under_any_target(planner: str) -> None:
    problem = Problem(described("gpt2"), None, 4, 16, planner=planner, target="any", effort=Effort(60.0, 0.0))
    found = make_plan(problem).plan  # which has the checker look at it
    assert found.search.status == ("bounded" if planner == "ours" else "baseline")
    assert len({rank for stage in found.stages for rank in stage.ranks}) <= 4


def test_embedding_and_loss_count_as_layers_where_layers_alone_do_not_divide() -> None:
    space = Space(stages=3, chunks=1, data=1, tensor=1)
    profile = described("gpt2")  # of four layers: with the two, two to each of three stages
    problem = Problem(
        profile, None, 3, 8, planner="megatron-uniform", target="any", effort=Effort(60.0, 0.0), space=space
    )
    block_of = dict(zip((o.name for o in profile.graph.operators), block_names(profile.graph.operators), strict=True))
    held = [{block_of[name] for name in stage.operators} - {""} for stage in plan(problem).stages]
    assert [len(blocks) for blocks in held] == [1, 2, 1]


PINS = {
    "together": '[[together]]\noperators = ["op1", "op3"]\n',
    "apart": '[[apart]]\noperators = ["op2", "op3"]\n',
    "stage": '[[stage]]\noperators = ["op0", "op1"]\n',
}


def answer(problem: Problem) -> Plan | str:
    """Return the plan, or what is said instead."""
    try:
        return plan(problem)
    except PenstockError as error:
        return str(error)


def keeps(found: Plan, pin: str) -> bool:
    """Whether a plan keeps one of `PINS`."""
    home = {name: index for index, stage in enumerate(found.stages) for name in stage.operators}
    if pin == "together":
        return home["op1"] == home["op3"]
    if pin == "apart":
        return home["op2"] != home["op3"]
    return ("op0", "op1") in [stage.operators for stage in found.stages]


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("pin", PINS)
def test_pins_are_kept_by_every_planner_or_refused_by_name(pin: str, planner: str, tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text(PINS[pin])
    pins = read_pins(tmp_path / "pins.toml")
    problem = pipelines(chain(6), 3, 8, 1, planner=planner, deterministic_limit=0.0, pins=pins)
    found = answer(problem)
    if isinstance(found, str):
        assert planner not in ("ours", "chain")
        assert any(name in found for name in (f"--planner {planner}", "[[apart]]", "--pin"))
    else:
        assert keeps(found, pin)


@pytest.mark.parametrize("planner", PLANNERS)
def test_at_most_two_stages_are_kept_by_every_planner_or_refused_by_name(planner: str) -> None:
    problem = pipelines(chain(6), 3, 8, 1, planner=planner, deterministic_limit=0.0, max_stages=2)
    found = answer(problem)
    assert f"--planner {planner} " in found if isinstance(found, str) else len(found.stages) <= 2


@pytest.mark.parametrize("planner", NAMES)
def test_fixed_replicas_and_sizes_are_those_of_every_stage(planner: str) -> None:
    space = replace(PIPELINES, data=2)
    problem = pipelines(branches(2, 3), 4, 8, 2, planner=planner, deterministic_limit=0.0, space=space)
    found = plan(problem)
    assert {stage.config.data for stage in found.stages} == {2}
    assert found.batch.microbatch_size == 2


def test_stages_packed_within_hosts_leave_no_rank_out() -> None:
    profile = chain(4)
    devices = DeviceType("device", 1 << 30, "cuda")
    links = (LinkGroup("inner", 4, 100.0, 1000), LinkGroup("outer", 0, 1.0, 20_000))
    cluster = Cluster((devices,), (Host("device", 4, count=2),), links)
    problem = pipelines(profile, 8, 8, 1, cluster=cluster)
    view = View(PreparedProblem(problem), 1)
    three = [ProposedStage((i,), StageConfig(data=3)) for i in range(2)]
    assert [[place.ranks[0] for place in places] for places in placings(view, three)] == [[0, 3]]
    mixed = [ProposedStage((i,), StageConfig(data=count)) for i, count in enumerate((2, 4, 2))]
    starts = [[place.ranks[0] for place in places] for places in placings(view, mixed)]
    assert starts == [[0, 2, 6], [4, 0, 6]]


@pytest.mark.parametrize("planner", ["single", "data-parallel"])
def test_a_planner_does_not_change_what_a_flag_fixes(planner: str) -> None:
    with pytest.raises(UsageError, match=f"--planner {planner} means stages 1, .* and stages 2 is fixed"):
        plan(pipelines(chain(6), 4, 8, 1, planner=planner, space=Space(stages=2)))


@pytest.mark.parametrize("planner", NAMES)
def test_where_nothing_fits_a_rival_says_so_and_names_itself(planner: str) -> None:
    problem = pipelines(chain(6), 3, 8, 1, planner=planner, deterministic_limit=0.0, memory_limit_bytes=10_000)
    with pytest.raises(NoPlanFits, match=f"--planner {planner} proposes no stages|no plan fits into memory"):
        plan(problem)


@pytest.mark.parametrize("fixed", [{"max_stages": 2}, {"space": Space(chunks=2)}, {"space": Space(zero=1)}])
def test_starts_of_the_default_search_keep_what_is_fixed(fixed: dict[str, object]) -> None:
    problem = replace(pipelines(branches(2, 3), 4, 8, 1, deterministic_limit=0.0, space=Space()), **fixed)  # type: ignore[arg-type]
    search = PortfolioSearch(problem, None)
    search.run()
    for found in search.state.pool.found.values():
        places = found.candidate.places
        assert len({place.ranks for place in places}) <= (problem.max_stages or 4)
        assert problem.space.chunks in (None, len(places) // len({place.ranks for place in places}))
        assert {place.config.zero for place in places} == {problem.space.zero or 0} or not problem.space.zero
