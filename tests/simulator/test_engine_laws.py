"""Laws that hold for every schedule."""

from dataclasses import replace
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Amount, Costs, StageCost
from simulator.actions import Kind
from simulator.engine import Structure
from tests.support.random_cases import Case, random_case

TIMES = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns")
seeds = st.integers(0, 1 << 40)


def structure_of(case: Case) -> Structure | None:
    try:
        return Structure(case.schedule, case.p2p, case.optimizer_mode)
    except InvalidInput:
        return None  # one of the cases that wait on themselves


def mapped(amount: Amount, change: "Change") -> Amount:
    return change(amount) if isinstance(amount, int) else tuple(map(change, amount))


class Change:
    def __init__(self, rng: Random | None = None, factor: int = 1) -> None:
        self.rng, self.factor = rng, factor

    def __call__(self, value: int) -> int:
        return value * self.factor + (self.rng.choice((0, 0, 0, 1, 13)) if self.rng else 0)


def changed(costs: Costs, change: Change) -> Costs:
    stages = [
        replace(
            stage,
            reduce_ns=change(stage.reduce_ns),
            optimizer_ns=change(stage.optimizer_ns),
            offload_ns=change(stage.offload_ns),
            **{name: mapped(getattr(stage, name), change) for name in TIMES},
        )
        for stage in costs.stages
    ]
    edges = [replace(edge, p2p_ns=change(edge.p2p_ns)) for edge in costs.edges]
    pairs = [replace(pair, pair_ns=change(pair.pair_ns)) for pair in costs.pairs]
    return replace(costs, stages=tuple(stages), edges=tuple(edges), pairs=tuple(pairs))


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_slower_actions_and_messages_never_make_anything_earlier_in_any_mode(seed: int) -> None:
    rng = Random(seed)
    case = random_case(rng)
    structure = structure_of(case)
    if structure:
        before = structure.times(case.costs, case.speeds)
        after = structure.times(changed(case.costs, Change(rng)), case.speeds)
        assert (after.start >= before.start).all()
        assert (after.end >= before.end).all()
        assert after.step_time_ns >= before.step_time_ns


@given(seeds, st.integers(1, 1_000_000))
@settings(max_examples=150, deadline=None)
def test_all_times_k_times_as_long_give_every_start_k_times_as_late(seed: int, factor: int) -> None:
    case = random_case(Random(seed))
    structure = structure_of(case)
    if structure and case.schedule.num_slices == 1:  # the thirds of 10 are 4, 3 and 3, of 30 they are 10 each
        once = structure.times(case.costs)
        scaled = structure.times(changed(case.costs, Change(factor=factor)))
        assert (scaled.start == once.start * factor).all()
        assert (scaled.step_time_ns, scaled.span_ns) == (once.step_time_ns * factor, once.span_ns * factor)
        assert scaled.bubble_ratio == once.bubble_ratio


@given(seeds)
@example(6_227_020_801)  # an activation comes back at the very moment at which a backward of no time frees it
@settings(max_examples=150, deadline=None)
def test_memory_ends_at_the_static_part_and_never_falls_below_it(seed: int) -> None:
    case = random_case(Random(seed))
    structure = structure_of(case)
    if structure:
        memory = structure.times(case.costs, case.speeds).memory
        for rank, static in enumerate(memory.static_bytes.tolist()):
            sizes = [size for _, size in memory.points(rank)]
            assert sizes[0] == sizes[-1] == min(sizes) == static


@given(seeds, seeds)
@settings(max_examples=100, deadline=None)
def test_the_peak_without_buffers_depends_on_the_orders_alone(seed: int, other: int) -> None:
    """Copies to the host and back take their time beside the orders."""
    case = random_case(Random(seed))
    structure = structure_of(case)
    if structure and not any(action.kind is Kind.OFFLOAD for order in case.schedule.orders for action in order):
        edges = tuple(replace(edge, size_bytes=0) for edge in case.costs.edges)
        costs = replace(case.costs, edges=edges)
        slower = changed(costs, Change(Random(other)))
        assert structure.times(costs).peak_memory_bytes == structure.times(slower).peak_memory_bytes


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_a_step_takes_at_least_what_its_longest_way_takes_with_slower_stages(seed: int) -> None:
    """The step is the longest of all ways through it, a convex function of all times (slices round theirs).

    Overlapped pairs keep the time that they have of their own.
    """
    rng = Random(seed)
    case = random_case(rng)
    structure = structure_of(case)
    if structure and case.schedule.num_slices == 1 and not case.costs.pairs:
        before = structure.times(case.costs)
        factors = [rng.choice((1, 1, 2, 3)) for _ in case.costs.stages]
        slower = [_slower(stage, factor) for stage, factor in zip(case.costs.stages, factors, strict=True)]
        after = structure.times(replace(case.costs, stages=tuple(slower)))
        more_ns = sum((factor - 1) * ns for factor, ns in zip(factors, before.on_path_ns, strict=True))
        assert after.step_time_ns >= before.step_time_ns + more_ns
        assert sum(before.on_path_ns) <= before.step_time_ns


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_where_messages_take_no_time_the_longest_way_takes_the_whole_step(seed: int) -> None:
    case = random_case(Random(seed))
    structure = structure_of(case)
    if structure:
        stages = tuple(replace(stage, offload_ns=0) for stage in case.costs.stages)
        edges = tuple(replace(edge, p2p_ns=0) for edge in case.costs.edges)
        costs = replace(case.costs, stages=stages, edges=edges)
        times = structure.times(costs)
        assert sum(times.on_path_ns) == times.step_time_ns


def _slower(stage: StageCost, factor: int) -> StageCost:
    change = Change(factor=factor)
    return changed(Costs((stage,), ()), change).stages[0]
