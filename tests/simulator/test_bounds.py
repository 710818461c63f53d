"""Lower bounds on the step time: the contract's formulas, exact tables, and never above a schedule of the family."""

from dataclasses import replace
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InvalidInput, NoPlanFits
from costmodel.stages.costs import Costs, EdgeCost, StageCost, at
from simulator.actions import Kind, parse_action
from simulator.bounds import bound_of, family_of, lower_bound_ns, one_machine_ns
from simulator.bounds.memory_limit import most_within
from simulator.engine import simulate
from simulator.lowering import close_step
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.timeline import Timeline
from tests.properties.judge_promises import any_case_failures, bound_failures
from tests.support.random_stage_graphs import random_costs, random_schedule, timed


def chain(times: tuple[tuple[int, int, int], ...], p2p_ns: int = 0, **changes: object) -> Costs:
    stages = tuple(StageCost(f, i, w) for f, i, w in times)
    return Costs(stages, tuple(chain_edges(len(stages), p2p_ns)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("fused", 2 * (10 + 3) + 8 * 30 + 2 * (20 + 3)),  # head + n t + tail of the last stage
        ("split", 2 * (10 + 3) + 8 * 30),  # nothing waits for the last W
        ("any", 2 * (10 + 3) + 8 * 30),
    ],
)
def test_a_uniform_chain_is_bounded_by_its_last_stage(family: str, expected: int) -> None:
    bound = lower_bound_ns(chain(((10, 10, 10),) * 3, 3), 8, family)
    assert (bound.ns, bound.stage, bound.rank) == (expected, 2, 2)


def test_what_lies_downstream_of_a_stage_does_not_add() -> None:
    assert lower_bound_ns(chain(((50, 50, 50), (1, 1, 1))), 4, "fused").ns == 4 * 150


def test_replicas_share_the_groups_of_a_stage() -> None:
    costs = chain(((10, 10, 10), (10, 10, 10)), ranks=((0, 1, 2), (3,)))
    assert lower_bound_ns(costs, 8, "split").ns == 10 + 8 * 30
    alone = chain(((10, 10, 10),), ranks=((0, 1, 2),))
    assert lower_bound_ns(alone, 8, "split").ns == 3 * 30


def test_a_multiple_takes_one_group_of_micro_batches_an_action() -> None:
    costs = chain(((10, 1, 1), (30, 30, 30)), multiples=(1, 4))
    # the first F of stage 1 needs four F of stage 0, one at a time
    assert lower_bound_ns(costs, 8, "split").ns == 4 * 10 + 2 * 90


def test_recompute_is_part_of_the_backward() -> None:
    costs = Costs((StageCost(10, 10, 10, recompute_ns=7),), ())
    assert lower_bound_ns(costs, 3, "fused").ns == 3 * 37
    assert lower_bound_ns(costs, 3, "fused", recomputes=(True,)).ns == 3 * 37


def test_a_slower_rank_takes_longer() -> None:
    assert lower_bound_ns(chain(((10, 10, 10), (10, 10, 10))), 2, "split", speeds=(1.0, 0.5)).ns == 10 + 2 * 60


def test_values_of_each_action_are_summed_per_replica() -> None:
    costs = Costs((StageCost((5, 1, 5, 1), 1, 1),), (), ranks=((0, 1),))
    assert lower_bound_ns(costs, 4, "split").ns == 5 + 5 + 2 * 2


def test_latency_is_nothing_between_stages_of_one_rank() -> None:
    costs = chain(((10, 10, 10),) * 2, 100, ranks=((0,), (0,)))
    assert lower_bound_ns(costs, 2, "any").ns == 2 * 60


def test_the_rank_with_several_stages_starts_with_the_least_head() -> None:
    costs = Costs(
        (StageCost(4, 0, 0), StageCost(6, 6, 6), StageCost(2, 2, 2)),
        (EdgeCost(0, 1), EdgeCost(0, 2)),
        ranks=((0,), (1,), (1,)),
    )
    assert lower_bound_ns(costs, 5, "any").ns == 4 + 5 * (18 + 6)


def test_a_frozen_stage_is_followed_by_what_lies_downstream() -> None:
    costs = Costs((StageCost(10, 0, 0, backward=False), StageCost(1, 1, 1)), (EdgeCost(0, 1, 5, gradient=False),))
    assert lower_bound_ns(costs, 4, "fused").ns == 40 + 5 + 3


def test_backwards_start_only_after_the_way_down_and_back() -> None:
    """Stage 0 idles from 2 (its forwards) to 42 (the round trip), then has 2 x 100 of backward."""
    costs = chain(((1, 50, 50), (20, 20, 0)))
    assert lower_bound_ns(costs, 2, "fused").ns == 1 + 20 + 20 + 2 * 100


def test_reduction_and_optimizer_follow_where_the_schedule_has_them() -> None:
    costs = Costs((StageCost(1, 1, 1, reduce_ns=7, optimizer_ns=11),), ())
    assert lower_bound_ns(costs, 2, "fused").ns == 6
    assert lower_bound_ns(costs, 2, "fused", reduces=(True,), updates=(True,)).ns == 6 + 7 + 11


def test_two_forwards_that_fit_the_limit_pay_a_round_trip_for_every_two() -> None:
    costs = Costs(
        (StageCost(1, 1, 0, activation_bytes=10), StageCost(1, 1, 0, activation_bytes=10)), (EdgeCost(0, 1, 10),)
    )
    trip = 1 + 10 + 2 + 10 + 1
    assert lower_bound_ns(costs, 6, "fused", 60).ns == 1 + 10 + 12 + 10 + 1
    assert lower_bound_ns(costs, 6, "fused", 20).ns == 3 * trip
    assert lower_bound_ns(costs, 6, "fused", 10).ns == 6 * trip


def test_weights_that_the_limit_keeps_out_lengthen_each_turn() -> None:
    """One activation of 10 fits; what stays until W (5) fits beside it at 15, so W need not run in between."""
    first = StageCost(1, 1, 1, activation_bytes=10, weight_activation_bytes=5)
    costs = Costs((first, StageCost(1, 1, 1, activation_bytes=0, weight_activation_bytes=0)), (EdgeCost(0, 1),))
    trip = 4
    assert lower_bound_ns(costs, 3, "split", 15).ns == 2 * trip + trip + 1
    assert lower_bound_ns(costs, 3, "split", 14).ns == 2 * (trip + 1) + trip + 1


def test_forwards_that_the_limit_keeps_out_run_after_the_first_backward() -> None:
    """At most one of eight forwards runs before the first backward of stage 0 starts at 10 + 100 + 100."""
    costs = Costs((StageCost(10, 300, 0, activation_bytes=10), StageCost(100, 100, 0)), (EdgeCost(0, 1),))
    bound = lower_bound_ns(costs, 2, "fused", 19)
    assert bound.ns == 2 * (10 + 200 + 300)
    three = lower_bound_ns(costs, 3, "fused", 29)
    assert three.ns == 210 + 10 + 900
    assert three.argument == "first backward and last forward of rank 0 under the limit"


def test_behind_its_last_forward_a_rank_has_only_what_the_limit_let_it_keep() -> None:
    """Four ranks, F, I, W = 10, 12, 8, latency 1, four activations: the proved optimum of 8 micro-batches, 294.

    Before its first I, at 82, rank 0 runs 4 F: 42 idle. Behind its last F it waits 72 for its own I and has 3 x 20.
    """
    costs = chain(((10, 12, 8),) * 4, 1)
    assert lower_bound_ns(costs, 8, "split").ns == 10 * 3 + 3 + 240
    assert lower_bound_ns(costs, 8, "split", 8).ns == 42 + 12 + 240
    assert lower_bound_ns(costs, 16, "split", 8).ns == 42 + 12 + 480


def test_a_limit_below_one_forward_says_by_how_much() -> None:
    costs = Costs((StageCost(1, 1, 1, activation_bytes=10, static_bytes=100),), ())
    with pytest.raises(NoPlanFits, match=r"rank 0 needs 110 bytes .* the limit is 105: 5 too few"):
        lower_bound_ns(costs, 2, "fused", 105)


def test_the_scope_names_what_the_bound_ranges_over() -> None:
    bound = lower_bound_ns(chain(((1, 1, 1),)), 2, "split", 64)
    assert bound.scope == (
        "orders of 2 micro-batches on these stages and ranks (split: I and W apart, one stage a rank) "
        "within 64 bytes a rank"
    )


@pytest.mark.parametrize(
    ("rows", "ranks", "family"),
    [
        (("0F0 0B0",), ((0,),), "fused"),
        (("0F0 0I0 0W0",), ((0,),), "split"),
        (("0F0 1F0 1B0 0B0",), ((0,), (0,)), "any"),
    ],
)
def test_the_family_follows_from_the_actions_and_the_stages_of_a_rank(
    rows: tuple[str, ...], ranks: tuple[tuple[int, ...], ...], family: str
) -> None:
    costs = chain(((1, 1, 1),) * len(ranks), ranks=ranks)
    orders = tuple(tuple(map(parse_action, row.split())) for row in rows)
    assert family_of(Schedule("hand", stage_graph(costs), 1, orders)) == family


def test_a_family_with_one_stage_a_rank_is_refused_for_several() -> None:
    with pytest.raises(InvalidInput, match="rank 0 has the stages"):
        lower_bound_ns(chain(((1, 1, 1),) * 2, ranks=((0,), (0,))), 1, "fused")


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'fast' is no family"):
        lower_bound_ns(chain(((1, 1, 1),)), 1, "fast")


@settings(deadline=None)  # the clock judges no test
@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_what_fits_a_limit_is_never_understated(capacity: int, items: list[tuple[int, int, int]]) -> None:
    best = 0
    for counts in product(*(range(num + 1) for *_, num in items)):
        if sum(size * n for (size, *_), n in zip(items, counts, strict=True)) <= capacity:
            best = max(best, sum(value * n for (_, value, _), n in zip(items, counts, strict=True)))
    found = most_within(capacity, items)
    assert found >= best
    if len({(size, value) for size, value, _ in items if size and value}) <= 2:
        assert found == best


@settings(deadline=None)  # the clock judges no test
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6))
def test_the_one_machine_bound_is_the_best_over_all_sets_of_works(works: list[tuple[int, int, int]]) -> None:
    best = 0
    for chosen in product((False, True), repeat=len(works)):
        some = [work for work, taken in zip(works, chosen, strict=True) if taken]
        if some:
            best = max(best, min(w[0] for w in some) + sum(w[1] for w in some) + min(w[2] for w in some))
    assert one_machine_ns(works) == best


def contract_bound(costs: Costs, num_microbatches: int, family: str) -> int:
    """The formulas of the contract as they stand, for costs without lists and stages with backwards."""
    graph = stage_graph(costs)
    delay = {
        (e.source, e.target): 0 if costs.ranks[e.source] == costs.ranks[e.target] else e.p2p_ns for e in costs.edges
    }
    t = [at(s.forward_ns, 0) + back(s) for s in costs.stages]
    head, tail = [0] * len(t), [0] * len(t)
    for s in graph.order:
        head[s] = max(
            (head[p] + at(costs.stages[p].forward_ns, 0) + delay[p, s] for p in graph.predecessors[s]), default=0
        )
        sources = [e.source for e in costs.edges if e.target == s and e.gradient]
        tail[s] = max((tail[p] + back(costs.stages[p]) + delay[p, s] for p in sources), default=0)
    n = [-(-num_microbatches // (k * len(r))) for k, r in zip(costs.multiples, costs.ranks, strict=True)]
    if family == "any":
        shared = [graph.stages_of(rank) for rank in range(graph.num_ranks)]
        return max(min(head[s] for s in stages) + sum(n[s] * t[s] for s in stages) for stages in shared)
    return max(head[s] + n[s] * t[s] + (tail[s] if family == "fused" else 0) for s in range(len(t)))


def back(stage: StageCost) -> int:
    return at(stage.backward_input_ns, 0) + at(stage.backward_weight_ns, 0) + at(stage.recompute_ns, 0)


@pytest.mark.parametrize("family", ["fused", "split", "any"])
def test_no_bound_is_below_the_contracts_formula(family: str) -> None:
    for seed in range(300):
        rng = Random(seed)
        num_microbatches = rng.choice((1, 2, 4, 6))
        costs = random_costs(rng, num_microbatches, one_stage_a_rank=family != "any", lists=False)
        costs = replace(costs, stages=tuple(replace(s, backward=True) for s in costs.stages))
        if family == "any" and any(len(r) > 1 for r in costs.ranks):
            costs = replace(costs, ranks=tuple((r[0],) for r in one_each(costs)))
        assert lower_bound_ns(costs, num_microbatches, family).ns >= contract_bound(costs, num_microbatches, family)


def one_each(costs: Costs) -> tuple[tuple[int, ...], ...]:
    used = sorted({r[0] for r in costs.ranks})
    return tuple((used.index(r[0]),) for r in costs.ranks)


def peak_bytes(schedule: Schedule, costs: Costs, timeline: Timeline) -> int:
    """Largest memory of any rank: taken at F's start, freed at the end of I and W, or of B."""
    largest = 0
    for rank, row in enumerate(timeline.compute_spans):
        held = sum(costs.stages[s].static_bytes for s in schedule.graph.stages_of(rank))
        largest = max(largest, held)
        for span in row:
            stage = costs.stages[span.action.stage]
            index = span.action.microbatch // costs.multiples[span.action.stage]
            whole, kept = at(stage.activation_bytes, index), at(stage.weight_activation_bytes, index)
            if span.action.kind is Kind.F and stage.backward:
                held += whole
                largest = max(largest, held)
            held -= {Kind.B: whole, Kind.I: whole - kept, Kind.W: kept}.get(span.action.kind, 0)
    return largest


@settings(deadline=None)  # the clock judges no test
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(("fused", "split", "mixed")))
def test_no_bound_is_above_the_step_of_a_schedule_of_its_family(seed: int, alone: bool, mode: str) -> None:
    rng = Random(seed)
    num_microbatches = rng.choice((1, 2, 3, 4, 6))
    costs = random_costs(rng, num_microbatches, one_stage_a_rank=alone)
    share = {"fused": 0.0, "split": 1.0, "mixed": 0.5}[mode]
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < share)
    schedule = random_schedule(rng, costs, num_microbatches, split)
    timeline = timed(schedule, costs)
    bound = bound_of(schedule, costs)
    limited = bound_of(schedule, costs, peak_bytes(schedule, costs, timeline))
    assert bound.ns <= limited.ns <= timeline.step_time_ns


def test_the_bound_is_the_best_of_all_orders_of_a_tiny_chain() -> None:
    """Every order of two stages and two micro-batches: the best one takes exactly the bound."""
    costs = chain(((3, 2, 1), (2, 3, 1)), 1)
    graph = stage_graph(costs)
    for kinds in ("FB", "FIW"):
        best = None
        texts = [[f"{s}{kind}{k}" for kind in kinds for k in range(2)] for s in range(2)]
        for rows in product(*(filter(legal, permutations(row)) for row in texts)):
            orders = tuple(tuple(map(parse_action, row)) for row in rows)
            try:
                step = timed(Schedule("tiny", graph, 2, orders), costs).step_time_ns
            except AssertionError:
                continue
            best = step if best is None else min(best, step)
        assert best == lower_bound_ns(costs, 2, "fused" if kinds == "FB" else "split").ns


def test_no_order_of_a_tiny_chain_within_a_limit_beats_the_bound() -> None:
    """One activation a rank at most: every order that fits takes the bound or longer, the best one exactly it."""
    costs = chain(((3, 2, 1), (2, 3, 1)), 1)
    graph = stage_graph(costs)
    texts = [[f"{s}{kind}{k}" for kind in "FIW" for k in range(2)] for s in range(2)]
    best = None
    for rows in product(*(filter(legal, permutations(row)) for row in texts)):
        schedule = Schedule("tiny", graph, 2, tuple(tuple(map(parse_action, row)) for row in rows))
        try:
            timeline = timed(schedule, costs)
        except AssertionError:
            continue
        if peak_bytes(schedule, costs, timeline) <= 2:
            best = timeline.step_time_ns if best is None else min(best, timeline.step_time_ns)
    assert best == lower_bound_ns(costs, 2, "split", 2).ns


def legal(row: tuple[str, ...]) -> bool:
    """Whether a rank's order has F before B or I, and I before W."""
    rank = {"F": 0, "I": 1, "B": 1, "W": 2}
    return all((own := [rank[text[1]] for text in row if text[2] == k]) == sorted(own) for k in "01")


@settings(deadline=None)  # the clock judges no test
@given(
    st.integers(0, 2**32),
    st.sampled_from(("latency", "blocking", "links")),
    st.sampled_from(("independent", "global-norm", "post-validated")),
    st.booleans(),
)
def test_no_bound_is_above_the_engines_step_in_any_mode_of_transfer_and_optimizer(
    seed: int, p2p: str, optimizer_mode: str, slow: bool
) -> None:
    rng = Random(seed)
    num_microbatches = rng.choice((1, 2, 4))
    costs = random_costs(rng, num_microbatches)
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < 0.5)
    schedule = random_schedule(rng, costs, num_microbatches, split)
    closed = close_step(schedule, [len(ranks) > 1 for ranks in costs.ranks], optimizer=rng.random() < 0.5)
    speeds = [rng.choice((0.7, 1.0, 1.3)) for _ in range(costs.num_ranks)] if slow else []
    timeline = simulate(closed, costs, p2p=p2p, optimizer_mode=optimizer_mode, speeds=speeds)
    limit = max(timeline.peak_memory_bytes)
    assert bound_of(closed, costs, limit, speeds).ns <= timeline.step_time_ns


def test_a_schedule_with_recompute_of_its_own_is_not_bounded_by_the_activations_it_drops() -> None:
    """With R in the order F keeps its input only, so eight forwards fit where one activation does."""
    costs = Costs((StageCost(1, 1, 1, recompute_ns=1, activation_bytes=10), StageCost(9, 9, 9)), (EdgeCost(0, 1),))
    rows = ("0F0 0F1 0R0 0B0 0R1 0B1", "1F0 1B0 1F1 1B1")
    schedule = Schedule("hand", stage_graph(costs), 2, tuple(tuple(map(parse_action, row.split())) for row in rows))
    timeline = simulate(schedule, costs)
    assert max(timeline.peak_memory_bytes) == 10
    assert bound_of(schedule, costs, 10).ns <= timeline.step_time_ns


def test_slices_of_a_sequence_are_jobs_of_their_own() -> None:
    """The last stage starts after half a forward of the first."""
    costs = chain(((10, 10, 10), (10, 10, 10)))
    assert lower_bound_ns(costs, 2, "split").ns == 10 + 60
    assert lower_bound_ns(costs, 2, "split", num_slices=2).ns == 5 + 60


def test_no_bound_is_above_the_step_on_the_cases_of_the_reliability_table() -> None:
    assert bound_failures(150) == []
    assert any_case_failures(150) == []
