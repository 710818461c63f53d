"""Random costs and legal orders for tests, and a plain pass that times them; shares no code with the engine."""

from random import Random

from costmodel.stages.costs import Costs, EdgeCost, StageCost, at
from simulator.actions import Action, Kind
from simulator.schedule import Schedule, StageGraph, stage_graph
from simulator.timeline import Span, Timeline

BACKWARD = (Kind.B, Kind.I)


def random_costs(rng: Random, num_microbatches: int, *, one_stage_a_rank: bool = False, lists: bool = True) -> Costs:
    """Return costs of a random stage DAG: latency, multiples, replicas, shared ranks, frozen sources, recompute."""
    num_stages = rng.randint(1, 5)
    edges = [
        EdgeCost(i, j, rng.choice((0, 0, 3, 7)), gradient=rng.random() < 0.85)
        for j in range(num_stages)
        for i in range(j)
        if rng.random() < 0.5
    ]
    backward = [True] * num_stages
    for stage in range(num_stages):
        if all(not backward[e.source] for e in edges if e.target == stage) and rng.random() < 0.3:
            backward[stage] = False
    divisors = [d for d in (1, 2, 3) if num_microbatches % d == 0]
    multiples = tuple(rng.choice(divisors) for _ in range(num_stages))
    if one_stage_a_rank:
        ranks, next_rank = [], 0
        for _ in range(num_stages):
            count = rng.choice((1, 1, 2))
            ranks.append(tuple(range(next_rank, next_rank + count)))
            next_rank += count
    else:
        num_ranks = rng.randint(1, num_stages)
        owner = [r % num_ranks for r in range(num_stages)]
        rng.shuffle(owner)
        ranks = [(r,) for r in owner]
        for stage in range(num_stages):
            if rng.random() < 0.25 and num_ranks > 1:
                pair = [ranks[stage][0], (ranks[stage][0] + rng.randrange(1, num_ranks)) % num_ranks]
                rng.shuffle(pair)
                ranks[stage] = tuple(pair)

    def amount(stage: int, low: int, high: int) -> int | tuple[int, ...]:
        if lists and rng.random() < 0.3:
            return tuple(rng.randint(low, high) for _ in range(num_microbatches // multiples[stage]))
        return rng.randint(low, high)

    sizes = Random(f"{edges} {ranks}")  # of its own, so that sizes can change without changing all other cases
    activations = [
        sizes.choice((4, sizes.randint(0, 9), tuple(sizes.randint(0, 9) for _ in range(num_microbatches // k))))
        if lists
        else sizes.randint(0, 9)
        for k in multiples
    ]
    stages = tuple(
        StageCost(
            amount(s, 1, 9),
            amount(s, 0, 9),
            amount(s, 0, 9),
            recompute_ns=rng.choice((0, 0, rng.randint(0, 4))),
            activation_bytes=activations[s],
            weight_activation_bytes=half(activations[s]),
            static_bytes=sizes.choice((0, 3)),
            reduce_ns=rng.choice((0, 5)),
            optimizer_ns=rng.choice((0, 3)),
            backward=backward[s],
        )
        for s in range(num_stages)
    )
    return Costs(stages, tuple(edges), tuple(ranks), multiples)


def half(amount: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return amount // 2 if isinstance(amount, int) else tuple(value // 2 for value in amount)


def gradient_flows(graph: StageGraph, source: int, target: int) -> bool:
    return graph.backward[source] and graph.backward[target]


def needed(graph: StageGraph, action: Action, split: frozenset[int]) -> list[Action]:
    """What an action waits for, written down a second time."""
    s, k = action.stage, action.microbatch
    mine = set(range(k, k + graph.multiples[s]))
    if action.kind is Kind.F:
        return [
            Action(Kind.F, p, g)
            for p in graph.predecessors[s]
            for g in sorted({j // graph.multiples[p] * graph.multiples[p] for j in mine})
        ]
    if action.kind is Kind.W:
        return [Action(Kind.I, s, k)]
    found = [Action(Kind.F, s, k)]
    for e in graph.edges:
        if e.source == s and e.gradient and gradient_flows(graph, e.source, e.target):
            kind = Kind.I if e.target in split else Kind.B
            groups = sorted({j // graph.multiples[e.target] * graph.multiples[e.target] for j in mine})
            found += [Action(kind, e.target, g) for g in groups]
    return found


def random_schedule(
    rng: Random,
    costs: Costs,
    num_microbatches: int,
    split: frozenset[int] = frozenset(),
    *,
    lean: float | None = None,
) -> Schedule:
    """Return a legal order: a random linear extension of all actions, seen from each rank.

    `lean` is the share of moments at which a backward is preferred where one is ready; random by default.
    """
    graph = stage_graph(costs)
    todo: list[Action] = []
    for s in range(graph.num_stages):
        for k in range(0, num_microbatches, graph.multiples[s]):
            todo.append(Action(Kind.F, s, k))
            if graph.backward[s]:
                todo += [Action(Kind.I, s, k), Action(Kind.W, s, k)] if s in split else [Action(Kind.B, s, k)]
    orders: list[list[Action]] = [[] for _ in range(graph.num_ranks)]
    done: set[Action] = set()
    lean = rng.random() if lean is None else lean
    while todo:
        ready = [a for a in todo if all(n in done for n in needed(graph, a, split))]
        late = [a for a in ready if a.kind is not Kind.F]
        action = rng.choice(late) if late and rng.random() < lean else rng.choice(ready)
        todo.remove(action)
        done.add(action)
        orders[graph.rank_of(action.stage, action.microbatch)].append(action)
    return Schedule("random", graph, num_microbatches, tuple(map(tuple, orders)))


def duration(costs: Costs, action: Action) -> int:
    stage, i = costs.stages[action.stage], action.microbatch // costs.multiples[action.stage]
    backward_input = at(stage.backward_input_ns, i) + at(stage.recompute_ns, i)
    return {
        Kind.F: lambda: at(stage.forward_ns, i),
        Kind.I: lambda: backward_input,
        Kind.W: lambda: at(stage.backward_weight_ns, i),
        Kind.B: lambda: backward_input + at(stage.backward_weight_ns, i),
    }[action.kind]()


def timed(schedule: Schedule, costs: Costs, speeds: tuple[float, ...] = ()) -> Timeline:
    """Start each compute action as early as order, data and latency allow."""
    graph = schedule.graph
    delay = {(e.source, e.target): e.p2p_ns for e in costs.edges}
    split = frozenset(a.stage for order in schedule.orders for a in order if a.kind is Kind.I)
    end: dict[Action, int] = {}
    free, at_position, spans = [0] * graph.num_ranks, [0] * graph.num_ranks, []
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while at_position[rank] < len(order):
                action = order[at_position[rank]]
                wants = needed(graph, action, split)
                if any(n not in end for n in wants):
                    break
                start = free[rank]
                for n in wants:
                    apart = graph.rank_of(n.stage, n.microbatch) != rank
                    late = delay.get((n.stage, action.stage), delay.get((action.stage, n.stage), 0)) if apart else 0
                    start = max(start, end[n] + late)
                end[action] = free[rank] = start + duration(costs, action)
                spans.append(Span(action, rank, "compute", start, end[action]))
                at_position[rank] += 1
                moved = True
    assert all(p == len(o) for p, o in zip(at_position, schedule.orders, strict=True)), "the order waits on itself"
    spans.sort(key=lambda s: (s.rank, s.start_ns, s.end_ns))
    return Timeline(graph.num_ranks, tuple(spans))
