"""How many micro-batches each stage keeps in flight under 1F1B on a stage graph.

The rule, in micro-batches, for stages that take b micro-batches in one action: a sink keeps b; any
other stage i keeps the largest over its successors x of w_x + b_x where b_i <= b_x, else
w_x + 2 b_i - b_x, rounded up to a multiple of b_i. With one b for all it is b times the longest path to
a sink, in stages. It is the least that keeps the pipeline busy; uneven times are left out.

A stage with r replicas of k micro-batches each counts as one that takes b = k r at once, so that each
replica keeps w / r. Edges without a gradient count too: what they feed must not wait for a stage that
waits for its own backward.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from costmodel.stages.costs import Costs, at
from simulator.schedule import StageGraph


def in_flight_microbatches(
    batches: Mapping[int, int],
    order: Iterable[int],
    successors: Mapping[int, Mapping[int, int]],
    wanted: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Return the micro-batches in flight of each stage.

    Parameters
    ----------
    batches : mapping
        b of each stage.
    order : iterable of int
        The stages in a topological order.
    successors : mapping
        For each stage its successors, each with the micro-batches that the latency of the edge adds.
    wanted : mapping, optional
        Micro-batches that a stage is to keep at least.
    """
    kept: dict[int, int] = {}
    for stage in reversed(list(order)):
        batch = batches[stage]
        need = max(batch, wanted[stage]) if wanted else batch
        for target, extra in successors[stage].items():
            theirs = batches[target]
            need = max(need, kept[target] + extra + (theirs if batch <= theirs else 2 * batch - theirs))
        kept[stage] = -(-need // batch) * batch
    return kept


def graph_in_flight(costs: Costs, graph: StageGraph, num_microbatches: int, *, latency: bool) -> tuple[int, ...]:
    """Return, for each stage, how many actions each of its replicas keeps in flight on the stage graph.

    With `latency`, each edge between ranks with delay c adds ceil(2 c / period) micro-batches, where the
    period is the busiest rank's work for one micro-batch.
    """
    extra = _latency_extra(costs, graph, num_microbatches) if latency else {}
    successors = {
        stage: {x: extra.get((stage, x), 0) for x in targets} for stage, targets in enumerate(graph.successors)
    }
    return _actions(graph, in_flight_microbatches(_batches(graph), graph.order, successors))


def raised_in_flight(graph: StageGraph, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return actions in flight of each replica, raised where fewer would keep stages waiting for each other."""
    batches = _batches(graph)
    successors = {stage: dict.fromkeys(targets, 0) for stage, targets in enumerate(graph.successors)}
    wanted = {stage: number * batches[stage] for stage, number in enumerate(numbers)}
    return _actions(graph, in_flight_microbatches(batches, graph.order, successors, wanted))


def chain_in_flight(graph: StageGraph) -> tuple[int, ...]:
    """Return the same for the stages taken one after the other in topological (index) order."""
    order = graph.order
    following = dict(pairwise(order))
    successors = {stage: {following[stage]: 0} if stage in following else {} for stage in order}
    return _actions(graph, in_flight_microbatches(_batches(graph), order, successors))


def _batches(graph: StageGraph) -> dict[int, int]:
    return {stage: multiple * len(graph.ranks[stage]) for stage, multiple in enumerate(graph.multiples)}


def _actions(graph: StageGraph, kept: Mapping[int, int]) -> tuple[int, ...]:
    batches = _batches(graph)
    return tuple(kept[stage] // batches[stage] for stage in range(graph.num_stages))


def _latency_extra(costs: Costs, graph: StageGraph, num_microbatches: int) -> dict[tuple[int, int], int]:
    busy_ns = [0] * graph.num_ranks
    for stage, cost in enumerate(costs.stages):
        for microbatch in range(0, num_microbatches, graph.multiples[stage]):
            index = microbatch // graph.multiples[stage]
            work_ns = at(cost.forward_ns, index)
            if cost.backward:
                work_ns += at(cost.recompute_ns, index)
                work_ns += at(cost.backward_input_ns, index) + at(cost.backward_weight_ns, index)
            busy_ns[graph.rank_of(stage, microbatch)] += work_ns
    busiest_ns = max(max(busy_ns), 1)
    return {
        (edge.source, edge.target): -(-2 * edge.p2p_ns * num_microbatches // busiest_ns)
        for edge in costs.edges
        if graph.ranks[edge.source] != graph.ranks[edge.target]
    }
