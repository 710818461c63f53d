"""Random schedules with all that the engine takes, legal but for a few that are scrambled on purpose."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from costmodel.stages.costs import Amount, Costs, EdgeCost, PairCost, StageCost
from simulator.actions import Action, Kind
from simulator.schedule import Schedule, StageGraph, stage_graph
from tests.support.event_queue_engine import BACKWARD, COPIES, Needs, units

SENDS = {Kind.F: (Kind.SEND_F, Kind.RECV_F), Kind.B: (Kind.SEND_B, Kind.RECV_B), Kind.I: (Kind.SEND_B, Kind.RECV_B)}


@dataclass(frozen=True)
class Case:
    """One step to simulate."""

    schedule: Schedule
    costs: Costs
    p2p: str
    optimizer_mode: str
    speeds: tuple[float, ...]


def random_case(rng: Random) -> Case:
    """Return a random case."""
    num_microbatches, num_slices = rng.choice((1, 2, 3, 4, 4, 6)), rng.choice((1, 1, 1, 1, 2, 3))
    costs = random_costs(rng, num_microbatches, num_slices)
    p2p = rng.choice(("latency", "blocking", "links"))
    schedule = random_orders(rng, costs, num_microbatches, num_slices, lowered=rng.random() < 0.5)
    if rng.random() < 0.05:
        schedule = scrambled(rng, schedule)
    num_ranks = schedule.graph.num_ranks
    speeds = tuple(rng.choice((1, 0.5, 0.9, 1.25, 3)) for _ in range(num_ranks)) if rng.random() < 0.3 else ()
    mode = rng.choice(("independent", "global-norm", "post-validated"))
    case = Case(schedule, costs, p2p, mode, speeds)
    return _with_pairs(rng, case) if rng.random() < 0.5 else case


def _with_pairs(rng: Random, case: Case) -> Case:
    """Let some forwards run overlapped with the backwards directly behind them, some in a time of their own."""
    lowered = any(action.peer >= 0 for order in case.schedule.orders for action in order)
    if case.p2p == "blocking" or lowered:
        return case
    met = [
        (first, second)
        for order in case.schedule.orders
        for first, second in pairwise(order)
        if first.kind is Kind.F and second.kind is Kind.B
        if (first.stage, first.microbatch) != (second.stage, second.microbatch)
    ]
    chosen = [pair for pair in met if rng.random() < 0.7]
    ends = sorted({(first.stage, second.stage) for first, second in chosen})
    pairs = tuple(PairCost(*end, rng.randint(0, 25)) for end in ends if rng.random() < 0.8)
    paired = frozenset(first for first, _ in chosen)
    return replace(
        case,
        schedule=replace(case.schedule, paired=paired),
        costs=replace(case.costs, pairs=pairs),
        speeds=() if chosen else case.speeds,
    )


def random_costs(rng: Random, num_microbatches: int, num_slices: int) -> Costs:
    """Return costs of a random stage DAG whose stages are numbered in any order."""
    count = rng.randint(1, 5)
    name = rng.sample(range(count), count)
    edges = tuple(
        EdgeCost(name[i], name[j], rng.choice((0, 3, 7, 40)), rng.choice((0, 5, 64)), rng.random() < 0.85)
        for j in range(count)
        for i in range(j)
        if rng.random() < 0.5
    )
    multiples = tuple(rng.choice([d for d in (1, 1, 2, 3) if num_microbatches % d == 0]) for _ in range(count))
    stages = tuple(_stage(rng, num_microbatches // multiple, num_slices) for multiple in multiples)
    if rng.random() < 0.1:
        edges = tuple(replace(edge, size_bytes=0) for edge in edges)
    return Costs(stages, edges, _placement(rng, count), multiples)


def _stage(rng: Random, num_groups: int, num_slices: int) -> StageCost:
    length = rng.choice((0, 0, 0, num_groups, num_groups * num_slices))

    def amount(low: int, high: int) -> Amount:
        return tuple(rng.randint(low, high) for _ in range(length)) if length else rng.randint(low, high)

    return StageCost(
        amount(1, 9),
        amount(0, 9),
        amount(0, 9),
        recompute_ns=rng.choice((0, 0, amount(1, 5))),
        activation_bytes=amount(50, 99),
        weight_activation_bytes=amount(0, 16),
        static_bytes=rng.choice((0, 1000)),
        reduce_ns=rng.choice((0, 5, 30)),
        optimizer_ns=rng.choice((0, 3)),
        backward=rng.random() < 0.9,
        offload_ns=rng.choice((0, 2, 9, 30)),
    )


def _placement(rng: Random, count: int) -> tuple[tuple[int, ...], ...]:
    """Place stages on ranks: one each, several together, replicas."""
    num_ranks = rng.randint(1, count + 1)
    ranks = [tuple(rng.sample(range(num_ranks), min(num_ranks, rng.choice((1, 1, 1, 2, 3))))) for _ in range(count)]
    used = sorted({rank for group in ranks for rank in group})
    return tuple(tuple(used.index(rank) for rank in group) for group in ranks)


def random_orders(rng: Random, costs: Costs, num_microbatches: int, num_slices: int, *, lowered: bool) -> Schedule:
    """Return the projections of one random global order in which nothing stands before what it needs."""
    graph = stage_graph(costs)
    actions = [
        action
        for stage in range(graph.num_stages)
        for piece in (range(num_slices) if num_slices > 1 and rng.random() < 0.7 else [-1])
        for action in _actions(rng, costs, stage, piece, num_microbatches)
    ]
    schedule = Schedule("random", graph, num_microbatches, (tuple(actions),), num_slices)
    before = _all_needs(rng, schedule, actions, lowered)
    sequence = _linear_extension(rng, before)
    orders: list[list[Action]] = [[] for _ in range(graph.num_ranks)]
    for item in sequence:
        for rank, action in _issued(graph, item):
            orders[rank].append(action)
    if lowered and rng.random() < 0.3:
        orders = [_receives_moved(rng, order) for order in orders]
    return replace(schedule, orders=tuple(map(tuple, orders)))


def _actions(rng: Random, costs: Costs, stage: int, piece: int, num_microbatches: int) -> list[Action]:
    split, again = rng.random() < 0.5, rng.random() < 0.2
    copied = not again and rng.random() < 0.3
    found = []
    for k in range(0, num_microbatches, costs.multiples[stage]):
        found.append(Action(Kind.F, stage, k, piece))
        if costs.stages[stage].backward:
            kinds = ([Kind.R] if again else []) + ([Kind.I, Kind.W] if split else [Kind.B])
            if copied and rng.random() < 0.7:
                kinds += [Kind.OFFLOAD, Kind.RELOAD]
            found += [Action(kind, stage, k, piece) for kind in kinds]
    return found


def _all_needs(rng: Random, schedule: Schedule, actions: list[Action], lowered: bool) -> dict[Hashable, list[Hashable]]:
    """What stands before what: compute actions, pairs of transfers, reductions and updates."""
    graph, needs, copied = schedule.graph, Needs(schedule), [a for a in actions if a.kind in COPIES]
    actions = [action for action in actions if action.kind not in COPIES]
    before: dict[Hashable, list[Hashable]] = {action: list(needs.of(action)) for action in actions}
    for copy in copied:
        before[copy] = [replace(copy, kind=Kind.F if copy.kind is Kind.OFFLOAD else Kind.OFFLOAD)]
        for backward in (replace(copy, kind=kind) for kind in BACKWARD if copy.kind is Kind.RELOAD):
            if backward in before:
                before[backward].append(copy)
    for target in actions if lowered else ():
        for source in needs.of(target):
            ranks = [graph.rank_of(end.stage, end.microbatch) for end in (source, target)]
            if source.stage != target.stage and ranks[0] != ranks[1]:
                pair = ("transfer", source, target, min(units(schedule, source) & units(schedule, target))[0], *ranks)
                before[pair] = [source]
                before[target].append(pair)
    for stage in range(graph.num_stages) if rng.random() < 0.5 else ():
        last: list[Hashable] = [a for a in actions if a.stage == stage and a.kind in (*BACKWARD, Kind.W)]
        if last and rng.random() < 0.7:
            before["wide", Action(Kind.REDUCE, stage), -1] = last
            last = [("wide", Action(Kind.REDUCE, stage), -1)]
        for rank in graph.ranks[stage] if last else ():
            before["wide", Action(Kind.OPT, stage), rank] = last
    return before


def _linear_extension(rng: Random, before: dict[Hashable, list[Hashable]]) -> list[Hashable]:
    waits = {item: set(needed) for item, needed in before.items()}
    users: dict[Hashable, list[Hashable]] = {item: [] for item in before}
    for item, needed in waits.items():
        for need in sorted(needed, key=str):
            users[need].append(item)
    ready = [item for item, needed in waits.items() if not needed]
    lean, sequence = rng.random(), []
    while ready:
        late = [i for i, item in enumerate(ready) if not (isinstance(item, Action) and item.kind is Kind.F)]
        item = ready.pop(rng.choice(late) if late and rng.random() < lean else rng.randrange(len(ready)))
        sequence.append(item)
        for user in users[item]:
            waits[user].discard(item)
            if not waits[user]:
                ready.append(user)
    return sequence


def _issued(graph: StageGraph, item: Hashable) -> list[tuple[int, Action]]:
    """Who issues an item of the global order, as which action."""
    if isinstance(item, Action):
        return [(graph.rank_of(item.stage, item.microbatch), item)]
    assert isinstance(item, tuple)
    if item[0] == "wide":
        _, action, rank = item
        return [(r, action) for r in (graph.ranks[action.stage] if rank < 0 else [rank])]
    _, source, target, k, sender, receiver = item
    send, receive = SENDS[source.kind]
    piece = max(source.slice_index, target.slice_index)
    return [
        (sender, Action(send, source.stage, k, piece, target.stage)),
        (receiver, Action(receive, target.stage, k, piece, source.stage)),
    ]


def _receives_moved(rng: Random, order: Sequence[Action]) -> list[Action]:
    """Post each receive somewhere else; a late one may hold up its link for ever."""
    moved = list(order)
    for i, action in enumerate(order):
        if action.kind in (Kind.RECV_F, Kind.RECV_B) and rng.random() < 0.3:
            moved.remove(action)
            moved.insert(max(0, i + rng.randint(-6, 2)), action)
    return moved


def scrambled(rng: Random, schedule: Schedule) -> Schedule:
    """Swap two actions of one rank, which mostly makes the order wait on itself."""
    orders = [list(order) for order in schedule.orders]
    order = rng.choice([order for order in orders if order])
    i, j = rng.randrange(len(order)), rng.randrange(len(order))
    order[i], order[j] = order[j], order[i]
    return replace(schedule, orders=tuple(map(tuple, orders)))
