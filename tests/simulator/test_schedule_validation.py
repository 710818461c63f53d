"""The validator: every class of illegal order is found where it is, and legal ones pass."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import COMPUTE, RECEIVES, SENDS, STAGE_WIDE, Action, Kind, parse_action
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.validation import CLASSES, ScheduleProblem, validate_schedule
from simulator.validation.problems import marked_grid
from tests.support.random_stage_graphs import random_costs, random_schedule

CHAIN = Costs((StageCost(1, 1, 1, activation_bytes=10, weight_activation_bytes=4),) * 2, tuple(chain_edges(2)))


def schedule_of(num_microbatches: int, *rows: str, costs: Costs = CHAIN, num_slices: int = 1) -> Schedule:
    orders = tuple(tuple(parse_action(text) for text in row.split()) for row in rows)
    return Schedule("hand", stage_graph(costs), num_microbatches, orders, num_slices)


def found(schedule: Schedule) -> list[tuple[str, int, int]]:
    return [(p.kind, p.rank, p.position) for p in validate_schedule(schedule)]


@pytest.mark.parametrize(
    "rows",
    [
        ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"),
        ("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"),
        ("0F0 0F1 0B0 0I1 0W1 0REDUCE 0OPT", "1F0 1B0 1F1 1B1 1OPT"),
        ("0F0 0SEND_F0>1 0RECV_B0<1 0B0 0F1 0SEND_F1>1 0RECV_B1<1 0B1",
         "1RECV_F0<0 1F0 1B0 1SEND_B0>0 1RECV_F1<0 1F1 1B1 1SEND_B1>0"),
    ],
)  # fmt: skip
def test_legal_orders_have_no_problem(rows: tuple[str, ...]) -> None:
    assert found(schedule_of(2, *rows)) == []


@pytest.mark.parametrize(
    ("kind", "cell", "rows"),
    [
        ("missing", (1, 3), ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1")),
        ("missing", (0, 2), ("0F0 0F1", "1F0 1B0 1F1 1B1 ")),
        ("missing", (0, 4), ("0F0 0F1 0B0 0I1", "1F0 1B0 1F1 1B1")),
        ("duplicated", (0, 2), ("0F0 0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1")),
        ("duplicated", (0, 3), ("0F0 0F1 0B0 0I0 0W0 0B1", "1F0 1B0 1F1 1B1")),
        ("wrong-rank", (1, 4), ("0F0 0F1 0B1", "1F0 1B0 1F1 1B1 0B0")),
        ("wrong-rank", (0, 0), ("7F0 0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")),
        ("backward-before-forward", (1, 1), ("0F0 0F1 0B0 0B1", "1F0 1B1 1F1 1B0")),
        ("weight-before-input", (0, 2), ("0F0 0F1 0W0 0I0 0B1", "1F0 1B0 1F1 1B1")),
        ("bad-microbatch", (0, 4), ("0F0 0F1 0B0 0B1 0F2", "1F0 1B0 1F1 1B1")),
        ("bad-slice", (0, 0), ("0F0.1 0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")),
        ("after-opt", (0, 4), ("0F0 0F1 0B0 0OPT 0B1", "1F0 1B0 1F1 1B1 1OPT")),
        ("waits-on-itself", (0, 1), ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")),
    ],
)
def test_an_illegal_order_is_found_at_its_cell(kind: str, cell: tuple[int, int], rows: tuple[str, ...]) -> None:
    assert (kind, *cell) in found(schedule_of(2, *rows))


LOWERED = (
    "0F0 0SEND_F0>1 0F1 0SEND_F1>1 0RECV_B0<1 0B0 0RECV_B1<1 0B1",
    "1RECV_F0<0 1RECV_F1<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0",
)


@pytest.mark.parametrize(
    ("kind", "cell", "old", "new"),
    [
        ("send-without-receive", (0, 3), "1RECV_F1<0 ", ""),
        ("send-without-receive", (1, 1), "0SEND_F1>1 ", ""),
        ("link-order", (0, 1), "1RECV_F0<0 1RECV_F1<0", "1RECV_F1<0 1RECV_F0<0"),
        ("waits-on-itself", (0, 1), "0F0 0SEND_F0>1", "0SEND_F0>1 0F0"),  # sends what is not there yet
        ("waits-on-itself", (1, 1), "1RECV_F0<0 1RECV_F1<0 1F0", "1F0 1RECV_F0<0 1RECV_F1<0"),  # received too late
        ("waits-on-itself", (0, 2), "0SEND_F1>1 0RECV_B0<1", "0RECV_B0<1 0SEND_F1>1"),
        ("missing", (0, 7), "0SEND_F1>1 |1RECV_F1<0 ", ""),
        ("duplicated", (0, 2), "0SEND_F0>1", "0SEND_F0>1 0SEND_F0>1"),
        ("wrong-rank", (1, 0), "1RECV_F0<0", "0RECV_F0<1"),
        ("bad-microbatch", (0, 1), "0SEND_F0>1", "0SEND_F5>1"),
        ("wrong-rank", (0, 1), "0SEND_F0>1", "0SEND_F0>7"),
        ("wrong-rank", (0, 0), "0F0", "8F0"),
    ],
)
def test_an_illegal_lowered_list_is_found(kind: str, cell: tuple[int, int], old: str, new: str) -> None:
    rows = list(LOWERED)
    for part in old.split("|"):
        rows = [row.replace(part, new, 1) for row in rows]
    problems = validate_schedule(schedule_of(2, *rows))
    assert kind in {p.kind for p in problems}
    if kind != "waits-on-itself":
        assert (kind, *cell) in [(p.kind, p.rank, p.position) for p in problems]


def test_of_many_missing_actions_a_hundred_are_named() -> None:
    assert len(validate_schedule(schedule_of(10**9, "0F0 0B0", "1F0 1B0"))) == 100


def test_another_number_of_orders_than_ranks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 orders for 2 ranks"):
        validate_schedule(schedule_of(1, "0F0 0B0"))


def test_a_transfer_that_nothing_needs_is_found() -> None:
    rows = (LOWERED[0] + " 0SEND_B0>1", LOWERED[1] + " 1RECV_B0<0")
    assert found(schedule_of(2, *rows)) == [("duplicated", 0, 8), ("duplicated", 1, 8)]


def test_synchronous_sends_that_cross_wait_for_ever() -> None:
    """Both ranks send first; with buffers this would pass, with rendezvous neither receives."""
    costs = Costs((StageCost(1, 1, 1),) * 4, (EdgeCost(0, 3), EdgeCost(1, 2)), ranks=((0,), (1,), (0,), (1,)))
    rows = (
        "0F0 0SEND_F0>3 2RECV_F0<1 2F0 2B0 2SEND_B0>1 0RECV_B0<3 0B0",
        "1F0 1SEND_F0>2 3RECV_F0<0 3F0 3B0 3SEND_B0>0 1RECV_B0<2 1B0",
    )
    problem = validate_schedule(schedule_of(1, *rows, costs=costs))[0]
    assert problem.kind == "waits-on-itself"
    assert "rank 0 at 0SEND_F0>3 for 3RECV_F0<0 of rank 1" in problem.message
    assert "rank 1 at 1SEND_F0>2 for 2RECV_F0<1 of rank 0" in problem.message


def test_reductions_in_another_order_on_another_rank_wait_for_ever() -> None:
    costs = Costs((StageCost(1, 1, 1),) * 2, (EdgeCost(0, 1),), ranks=((0, 1), (0, 1)))
    rows = ("0F0 1F0 1B0 0B0 0REDUCE 1REDUCE", "0F1 1F1 1B1 0B1 1REDUCE 0REDUCE")
    lowered = schedule_of(2, *rows, costs=costs)
    assert found(lowered) == []  # no transfers: reductions may overlap, only data counts
    three = Costs((StageCost(1, 1, 1),) * 3, (EdgeCost(0, 1), EdgeCost(1, 2)), ranks=((0, 1), (0, 1), (2,)))
    rows = (
        "0F0 1F0 1SEND_F0>2 1RECV_B0<2 1B0 0B0 0REDUCE 1REDUCE",
        "0F1 1F1 1SEND_F1>2 1RECV_B1<2 1B1 0B1 1REDUCE 0REDUCE",
        "2RECV_F0<1 2F0 2B0 2SEND_B0>1 2RECV_F1<1 2F1 2B1 2SEND_B1>1",
    )
    assert found(schedule_of(2, *rows, costs=three)) == [("waits-on-itself", 0, 6)]


def test_gradients_added_after_their_reduction_are_found() -> None:
    schedule = schedule_of(2, "0F0 0F1 0B0 0REDUCE 0B1", "1F0 1B0 1F1 1B1")
    assert found(schedule) == [("waits-on-itself", 0, 4)]


def test_a_reduction_that_one_replica_lacks_is_missing() -> None:
    costs = Costs((StageCost(1, 1, 1),), (), ranks=((0, 1),))
    assert found(schedule_of(2, "0F0 0B0 0REDUCE", "0F1 0B1", costs=costs)) == [("missing", 1, 2)]


def test_a_backward_of_a_stage_that_has_none_is_found() -> None:
    costs = Costs((StageCost(1, 1, 1, backward=False), StageCost(1, 1, 1)), tuple(chain_edges(2)))
    assert found(schedule_of(1, "0F0", "1F0 1B0", costs=costs)) == []
    assert found(schedule_of(1, "0F0 0B0", "1F0 1B0", costs=costs)) == [("duplicated", 0, 1)]


def test_an_action_that_does_not_start_a_group_is_a_bad_microbatch() -> None:
    costs = replace(CHAIN, multiples=(2, 1))
    assert found(schedule_of(2, "0F0 0B0", "1F0 1B0 1F1 1B1", costs=costs)) == []
    assert ("bad-microbatch", 0, 2) in found(schedule_of(2, "0F0 0B0 0F1", "1F0 1B0 1F1 1B1", costs=costs))


def test_a_replica_takes_its_own_groups_only() -> None:
    costs = Costs((StageCost(1, 1, 1),), (), ranks=((0, 1),))
    assert found(schedule_of(2, "0F0 0B0", "0F1 0B1", costs=costs)) == []
    assert found(schedule_of(2, "0F1 0B1", "0F0 0B0", costs=costs)) == [
        ("wrong-rank", 0, 0),
        ("wrong-rank", 0, 1),
        ("wrong-rank", 1, 0),
        ("wrong-rank", 1, 1),
    ]


def test_slices_run_forward_rising_and_backward_falling() -> None:
    costs = Costs((StageCost(2, 2, 2),), ())
    assert found(schedule_of(1, "0F0.0 0F0.1 0B0.1 0B0.0", costs=costs, num_slices=2)) == []
    assert found(schedule_of(1, "0F0.1 0F0.0 0B0.1 0B0.0", costs=costs, num_slices=2)) == [("waits-on-itself", 0, 0)]
    assert found(schedule_of(1, "0F0.0 0F0.1 0B0.1 0B0.0 0F0.2", costs=costs, num_slices=2)) == [("bad-slice", 0, 4)]


def test_memory_above_the_limit_is_found_where_it_first_is() -> None:
    schedule = schedule_of(3, "0F0 0F1 0I0 0F2 0W0 0I1 0W1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2")
    assert validate_schedule(schedule, CHAIN, 24) == ()  # 10, 20, then 4 kept for W beside two activations
    problem = validate_schedule(schedule, CHAIN, 23)[0]
    assert (problem.kind, problem.rank, problem.position) == ("memory", 0, 3)
    assert "0F2 needs 24 bytes, 1 above the limit of 23" in problem.message


def test_the_memory_of_an_order_is_the_engines_peak() -> None:
    for seed in range(100):
        rng = Random(seed)
        costs = random_costs(rng, 4)
        split = frozenset(s for s in range(len(costs.stages)) if rng.random() < 0.5)
        schedule = random_schedule(rng, costs, 4, split)
        peak = max(simulate(schedule, costs).peak_memory_bytes)
        assert validate_schedule(schedule, costs, peak) == ()
        assert {p.kind for p in validate_schedule(schedule, costs, peak - 1)} == {"memory"}


def test_a_forward_that_is_run_again_takes_its_memory_then() -> None:
    schedule = schedule_of(2, "0F0 0F1 0R0 0B0 0R1 0B1", "1F0 1B0 1F1 1B1")
    assert max(simulate(schedule, CHAIN).peak_memory_bytes) == 10
    assert validate_schedule(schedule, CHAIN, 10) == ()
    assert [(p.kind, p.position) for p in validate_schedule(schedule, CHAIN, 9)] == [("memory", 2), ("memory", 0)]


def test_slices_take_their_share_of_the_memory() -> None:
    costs = Costs((StageCost(2, 2, 2, activation_bytes=11, weight_activation_bytes=5),), ())
    schedule = schedule_of(1, "0F0.0 0F0.1 0I0.1 0W0.1 0B0.0", costs=costs, num_slices=2)
    assert simulate(schedule, costs).peak_memory_bytes == (11,)
    assert validate_schedule(schedule, costs, 11) == ()
    assert [(p.kind, p.position) for p in validate_schedule(schedule, costs, 10)] == [("memory", 1)]


def test_a_problem_shows_ranks_by_steps_with_its_cell_marked() -> None:
    problem = validate_schedule(schedule_of(2, "0F0 0F1 0W0 0I0 0B1", "1F0 1B0 1F1 1B1"))[0]
    assert str(problem).splitlines() == [
        "weight-before-input: rank 0, step 2: 0W0 comes before 0I0, whose result it needs",
        "step    0    1    2      3    4",
        "rank 0  0F0  0F1  [0W0]  0I0  0B1",
        "rank 1  1F0  1B0  1F1    1B1",
    ]


def test_a_missing_action_is_marked_behind_its_ranks_last() -> None:
    problem = validate_schedule(schedule_of(1, "0F0 0B0", "1F0"))[0]
    assert problem.grid.splitlines()[-1] == "rank 1  1F0  [1B0?]"


def test_ranks_that_wait_on_each_other_are_all_marked() -> None:
    problem = validate_schedule(schedule_of(2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))[0]
    assert problem.message == (
        "rank 0, step 1: waiting for ever: rank 0 at 0B0 for 1B0 of rank 1; rank 1 at 1F1 for 0F1 of rank 0"
    )
    assert problem.grid.splitlines()[1:] == ["rank 0  0F0  [0B0]  0F1  0B1", "rank 1  1F0  [1F1]  1B0  1B1"]


def test_the_grid_shows_the_neighbourhood_of_long_orders() -> None:
    orders = tuple(tuple(Action(Kind.F, rank, k) for k in range(100)) for rank in range(40))
    lines = marked_grid(orders, ((20, 50),)).splitlines()
    assert len(lines) == 1 + 9
    assert lines[0].split() == ["step", *map(str, range(46, 55))]


# Mutations: every class is found in legal schedules that are changed at random.


def legal(rng: Random, *, lowered: bool) -> tuple[Schedule, Costs]:
    num_microbatches = rng.choice((2, 3, 4))
    costs = random_costs(rng, num_microbatches)
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < 0.5)
    schedule = random_schedule(rng, costs, num_microbatches, split)
    closed = close_step(schedule, [len(ranks) > 1 for ranks in costs.ranks], optimizer=rng.random() < 0.5)
    return (lower(closed, simulate(closed, costs)) if lowered else closed), costs


def changed(schedule: Schedule, rank: int, order: list[Action]) -> Schedule:
    orders = list(schedule.orders)
    orders[rank] = tuple(order)
    return replace(schedule, orders=tuple(orders))


def cells_of(schedule: Schedule, *kinds: Kind) -> list[tuple[int, int]]:
    return [(r, i) for r, order in enumerate(schedule.orders) for i, a in enumerate(order) if a.kind in kinds]


def drop(rng: Random, schedule: Schedule) -> Schedule | None:
    rank, i = rng.choice(cells_of(schedule, *COMPUTE))
    return changed(schedule, rank, [a for j, a in enumerate(schedule.orders[rank]) if j != i])


def repeat(rng: Random, schedule: Schedule) -> Schedule | None:
    rank, i = rng.choice(cells_of(schedule, *COMPUTE))
    order = list(schedule.orders[rank])
    order.insert(rng.randint(0, len(order)), order[i])
    return changed(schedule, rank, order)


def move_to_another_rank(rng: Random, schedule: Schedule) -> Schedule | None:
    rank, i = rng.choice(cells_of(schedule, *COMPUTE))
    others = [r for r in range(len(schedule.orders)) if r != rank]
    if not others:
        return None
    other, action = rng.choice(others), schedule.orders[rank][i]
    without = changed(schedule, rank, [a for j, a in enumerate(schedule.orders[rank]) if j != i])
    order = list(without.orders[other])
    order.insert(rng.randint(0, len(order)), action)
    return changed(without, other, order)


def swap_with_need(rng: Random, schedule: Schedule, kind: Kind, need: Kind) -> Schedule | None:
    cells = cells_of(schedule, kind)
    if not cells:
        return None
    rank, i = rng.choice(cells)
    order = list(schedule.orders[rank])
    j = order.index(replace(order[i], kind=need))
    order[i], order[j] = order[j], order[i]
    return changed(schedule, rank, order)


def renumber(rng: Random, schedule: Schedule, **fields: int) -> Schedule | None:
    rank, i = rng.choice(cells_of(schedule, *COMPUTE))
    order = list(schedule.orders[rank])
    order[i] = replace(order[i], **fields)  # type: ignore[arg-type]
    return changed(schedule, rank, order)


def move_behind_opt(rng: Random, schedule: Schedule) -> Schedule | None:
    cells = cells_of(schedule, Kind.OPT)
    if not cells:
        return None
    rank = rng.choice(cells)[0]
    order = list(schedule.orders[rank])
    moved = order.pop(rng.choice([i for i, a in enumerate(order) if a.kind is not Kind.OPT]))
    return changed(schedule, rank, [*order, moved])


def drop_transfer(rng: Random, schedule: Schedule) -> Schedule | None:
    cells = cells_of(schedule, *SENDS, *RECEIVES)
    if not cells:
        return None
    rank, i = rng.choice(cells)
    return changed(schedule, rank, [a for j, a in enumerate(schedule.orders[rank]) if j != i])


def swap_on_a_link(rng: Random, schedule: Schedule) -> Schedule | None:
    """Swap two receives from one stage at another."""
    graph = schedule.graph
    cells = cells_of(schedule, *RECEIVES)
    rng.shuffle(cells)
    for rank, i in cells:
        order = list(schedule.orders[rank])
        sender = [graph.rank_of(a.peer, a.microbatch // graph.multiples[a.peer] * graph.multiples[a.peer])
                  if a.kind in RECEIVES else -1 for a in order]  # fmt: skip
        for j in range(i):
            if sender[j] == sender[i]:
                order[i], order[j] = order[j], order[i]
                return changed(schedule, rank, order)
    return None


MUTATIONS = {
    "missing": (False, drop),
    "duplicated": (False, repeat),
    "wrong-rank": (False, move_to_another_rank),
    "backward-before-forward": (False, lambda rng, s: swap_with_need(rng, s, rng.choice((Kind.B, Kind.I)), Kind.F)),
    "weight-before-input": (False, lambda rng, s: swap_with_need(rng, s, Kind.W, Kind.I)),
    "bad-microbatch": (False, lambda rng, s: renumber(rng, s, microbatch=s.num_microbatches + rng.randint(0, 2))),
    "bad-slice": (False, lambda rng, s: renumber(rng, s, slice_index=rng.randint(0, 2))),
    "after-opt": (False, move_behind_opt),
    "send-without-receive": (True, drop_transfer),
    "link-order": (True, swap_on_a_link),
}


@pytest.mark.parametrize(
    ("kind", "lowered"),
    [(kind, lowered) for kind, (needs, _) in MUTATIONS.items() for lowered in (False, True) if lowered or not needs],
)
def test_a_random_mutation_of_a_legal_schedule_is_found_as_what_it_is(kind: str, lowered: bool) -> None:
    mutate = MUTATIONS[kind][1]
    num_changed = 0
    for seed in range(60):
        rng = Random(seed)
        schedule, _ = legal(rng, lowered=lowered)
        assert validate_schedule(schedule) == ()
        mutant = mutate(rng, schedule)  # type: ignore[no-untyped-call]
        if mutant is not None:
            num_changed += 1
            assert kind in {p.kind for p in validate_schedule(mutant)}, mutant
    assert num_changed >= 10


def test_the_validator_and_the_engine_agree_on_what_waits_on_itself() -> None:
    """Orders shuffled at random within what each rank allows: legal for one exactly when for the other."""
    verdicts = set()
    for seed in range(300):
        rng = Random(seed)
        costs = random_costs(rng, 3, lists=False)
        schedule = random_schedule(rng, costs, 3)
        rank = rng.randrange(len(schedule.orders))
        order = list(schedule.orders[rank])
        if len(order) > 1:
            i = rng.randrange(len(order) - 1)
            j = rng.randrange(i + 1, len(order))
            order[i], order[j] = order[j], order[i]
        shuffled = changed(schedule, rank, order)
        try:
            simulate(shuffled, costs)
            runs = True
        except InvalidInput:
            runs = False
        assert (validate_schedule(shuffled) == ()) == runs
        verdicts.add(runs)
    assert verdicts == {True, False}


def littered(rng: Random, schedule: Schedule) -> Schedule:
    """Insert actions of any kind, drop and swap others."""
    kinds = [kind for kind in Kind if kind not in (Kind.UNSHARD, Kind.RESHARD, Kind.OFFLOAD, Kind.RELOAD)]
    orders = [list(order) for order in schedule.orders]
    for _ in range(rng.randint(1, 4)):
        order, kind = rng.choice([order for order in orders if order]), rng.choice(kinds)
        microbatch = -1 if kind in STAGE_WIDE and rng.random() < 0.7 else rng.randint(0, 5)
        piece = -1 if rng.random() < 0.7 or microbatch < 0 else rng.randint(0, 3)
        peer = rng.randint(0, 6) if kind in SENDS | RECEIVES else -1
        i = rng.randrange(len(order))
        if rng.random() < 0.5:
            order.insert(i, Action(kind, rng.randint(0, 6), microbatch, piece, peer))
        elif rng.random() < 0.5 and len(order) > 1:
            order.pop(i)
        else:
            j = rng.randrange(len(order))
            order[i], order[j] = order[j], order[i]
    return replace(schedule, orders=tuple(map(tuple, orders)))


def test_any_litter_is_named_or_runs_on_the_engine() -> None:
    num_legal = 0
    for seed in range(300):
        rng = Random(seed)
        schedule, costs = legal(rng, lowered=rng.random() < 0.5)
        schedule = littered(rng, schedule)
        if validate_schedule(schedule) == ():
            num_legal += 1
            simulate(schedule, costs)
    assert num_legal > 5


def test_every_kind_of_problem_is_one_of_the_twelve_classes() -> None:
    assert len(CLASSES) == 12
    for seed in range(100):
        rng = Random(seed)
        schedule, _ = legal(rng, lowered=True)
        for _ in range(2):
            rank = rng.randrange(len(schedule.orders))
            order = list(schedule.orders[rank])
            if order:
                order.insert(rng.randrange(len(order) + 1), order.pop(rng.randrange(len(order))))
                schedule = changed(schedule, rank, order)
        problems: tuple[ScheduleProblem, ...] = validate_schedule(schedule)
        assert {p.kind for p in problems} <= set(CLASSES)
