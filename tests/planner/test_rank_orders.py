"""Rank orders: which ranks stages take, what that makes of prices, and what a plan file says of it."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.cluster import read_cluster
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import in_loop
from planner.candidate.fixed import fixed_candidate, fixed_evaluator
from planner.candidate.make import make
from planner.checker import check_plan
from planner.commands.flags import rank_order
from planner.plan import Plan, SearchResult, read_plan, write_plan
from planner.plan.rank_order import PIPELINE_INSIDE, RANK_ORDER, completed, rank_order_of, ranks_of_places
from planner.question.in_stage_support import rank_order_refusal
from planner.question.problem import Problem
from planner.question.space import Space
from tests.support.described_models import SLOW_NETWORK, described


@pytest.mark.parametrize(
    ("config", "order", "places"),
    [
        (StageConfig(data=2, tensor=2), RANK_ORDER, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (StageConfig(data=2, tensor=2), PIPELINE_INSIDE, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (StageConfig(data=2, tensor=2), completed(("data", "tensor", "pipeline")), [(0, 2, 1, 3), (4, 6, 5, 7)]),
        (StageConfig(data=4, expert=2), PIPELINE_INSIDE, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (StageConfig(data=2, context=2, expert=2), PIPELINE_INSIDE, [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ],
)
def test_ranks_count_along_the_degrees(
    config: StageConfig, order: tuple[str, ...], places: list[tuple[int, ...]]
) -> None:
    assert ranks_of_places(config, 2, order) == places
    assert [place.ranks for place in in_loop(config, 2, 2, rank_order=order)] == places


DEGREES = st.sampled_from((1, 2, 3))


@given(DEGREES, DEGREES, DEGREES, DEGREES, st.sampled_from(list(permutations(RANK_ORDER))))
def test_each_rank_has_one_place_and_the_order_is_found_again(
    data: int, tensor: int, context: int, num_places: int, order: tuple[str, ...]
) -> None:
    config = StageConfig(data, tensor, context=context)
    places = ranks_of_places(config, num_places, order)
    assert sorted(rank for place in places for rank in place) == list(range(data * tensor * context * num_places))
    assert ranks_of_places(config, num_places, rank_order_of([config], places)) == places


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tensor,data,pipeline", ",".join(RANK_ORDER)),
        ("tensor, pipeline, data", "tensor,context,expert,pipeline,data"),
        ("data,tensor,pipeline", "data,tensor,context,expert,pipeline"),
        ("pipeline", "tensor,context,expert,data,pipeline"),
    ],
)
def test_names_left_out_stand_behind_the_one_that_they_follow(text: str, found: str) -> None:
    assert rank_order(text) == found


def planned(folder: Path, order: tuple[str, ...]) -> Plan:
    """Return the plan of two stages of four replicas on two hosts whose network is slow."""
    (folder / "slow.toml").write_text(SLOW_NETWORK)
    fixed = Space(stages=2, data=4, tensor=1, context=1, zero=0, recompute="none", rank_order=",".join(order))
    problem = Problem(described("llama"), read_cluster(folder / "slow.toml"), 8, 32, 1, target="any", space=fixed)
    evaluator = fixed_evaluator(problem)
    candidate = fixed_candidate(evaluator)
    step_ns = evaluator.evaluate(candidate).step_time_ns
    return make(evaluator, candidate, SearchResult("baseline", step_ns, None, "none", {}, step_ns), "by hand")


def test_messages_and_sums_take_the_links_that_the_order_gives(tmp_path: Path) -> None:
    usual, inside = (planned(tmp_path, order) for order in (RANK_ORDER, PIPELINE_INSIDE))
    assert inside.edges[0].p2p_ns < usual.edges[0].p2p_ns
    assert inside.stages[0].cost.reduce_ns > 10 * usual.stages[0].cost.reduce_ns


@pytest.mark.parametrize("order", [RANK_ORDER, PIPELINE_INSIDE])
def test_the_file_says_the_order_and_the_checker_holds_ranks_against_it(order: tuple[str, ...], tmp_path: Path) -> None:
    plan = planned(tmp_path, order)
    assert check_plan(plan, described("llama").graph) == ()
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert plan.rank_order == order
    other = next(each for each in (PIPELINE_INSIDE, RANK_ORDER) if each != order)
    found = check_plan(replace(plan, rank_order=other))
    assert [problem.kind for problem in found] == ["rank"]
    assert f"in the order {', '.join(other)} another one is" in found[0].message


def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", planned(tmp_path, RANK_ORDER))
    text = (tmp_path / "plan.json").read_text().replace('  "expert",\n  "data",', '  "data",\n  "data",')
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"/rank_order: .*each once, the innermost first"):
        read_plan(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"planner": "alpa"}, "--rank-order and --planner alpa do not go together"),
        ({"target": "deepspeed"}, "--target deepspeed does not run the rank order tensor, context, expert, pipeline"),
    ],
)
def test_an_order_that_places_cannot_take_is_refused(changes: dict[str, str], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        Problem(described("llama"), None, 8, 32, space=Space(rank_order=",".join(PIPELINE_INSIDE)), **changes)  # type: ignore[arg-type]


def test_megatron_has_stages_side_by_side_where_experts_have_as_many_replicas_as_all_else() -> None:
    assert not rank_order_refusal("megatron", PIPELINE_INSIDE, StageConfig(data=4))
    assert "expert 2 and context 1" in rank_order_refusal("megatron", PIPELINE_INSIDE, StageConfig(data=4, expert=2))
    assert not rank_order_refusal("executor", completed(("data", "tensor")))
