"""Where chain schedules run: one stage a rank in a line, or chunks of stages in a loop.

A chain schedule on a stage graph takes the stages in index order (strictly: in the topological order
that prefers low indices, which is the same whenever index order is topological).
"""

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.errors import UsageError
from simulator.actions import Action
from simulator.schedule import StageGraph
from simulator.schedules.kind import Orders, Request
from simulator.schedules.one_stage import forwards
from simulator.schedules.warmup import chain_in_flight


@dataclass(frozen=True, slots=True)
class LineRank:
    """One rank of a line.

    Attributes
    ----------
    stage : int
    microbatches : tuple of int
        First micro-batch of each of its actions.
    depth : int
        Actions that 1F1B keeps in flight here: stages from this one to the end of the line.
    longest : int
        The largest `depth` of the line: the number of stages.
    """

    stage: int
    microbatches: tuple[int, ...]
    depth: int
    longest: int


def line_orders(name: str, request: Request, order_of: Callable[[LineRank], tuple[Action, ...]]) -> Orders:
    """Return the orders of a line, made rank by rank; a stage without gradient has its forwards alone."""
    return tuple(
        order_of(place) if request.graph.backward[place.stage] else forwards(place.stage, place.microbatches)
        for place in line(name, request.graph, request.num_microbatches)
    )


def line(name: str, graph: StageGraph, num_microbatches: int) -> tuple[LineRank, ...]:
    """Return the ranks of a line.

    Raises
    ------
    UsageError
        When a rank has several stages.
    """
    depths = chain_in_flight(graph)
    ranks = []
    for rank in range(graph.num_ranks):
        stages = graph.stages_of(rank)
        if len(stages) != 1:
            raise UsageError(
                f"{name} runs one stage a rank, and rank {rank} has the stages {list(stages)}; "
                "take a schedule with loop or graph placement, or one stage a rank"
            )
        stage = stages[0]
        microbatches = graph.microbatches_of(stage, rank, num_microbatches)
        ranks.append(LineRank(stage, microbatches, depths[stage], max(depths)))
    return tuple(ranks)


@dataclass(frozen=True, slots=True)
class LoopRank:
    """One rank of a loop.

    Attributes
    ----------
    stages : tuple of int
        Its chunks, first to last.
    microbatches : tuple of int
        First micro-batch of each action of a chunk.
    position, num_positions : int
        Place in the line of p ranks (replicas share one), and p.
    """

    stages: tuple[int, ...]
    microbatches: tuple[int, ...]
    position: int
    num_positions: int


def loop(name: str, graph: StageGraph, num_microbatches: int) -> tuple[LoopRank, ...]:
    """Return the ranks of a loop.

    Raises
    ------
    UsageError
        When stage c p + r does not run on rank r of p for whole rounds of p stages, or stages are not alike.
    """
    positions = len(set(graph.ranks))
    for stage, ranks in enumerate(graph.ranks):
        if ranks != graph.ranks[stage % positions]:
            raise UsageError(
                f"{name} runs stage c p + r on rank r of p, and stage {stage} is on rank {list(ranks)} "
                f"instead of {list(graph.ranks[stage % positions])}; place the stages in a loop"
            )
    if graph.num_stages % positions:
        raise UsageError(
            f"{name} runs equally many stages on every rank, and {graph.num_stages} stages do not divide into "
            f"{positions}; add or join stages"
        )
    shared = sum(map(len, graph.ranks[:positions])) > graph.num_ranks
    if shared or len(set(graph.multiples)) > 1 or not all(graph.backward):
        raise UsageError(
            f"{name} needs stages that all have a backward, take equally many micro-batches in one action and "
            "share no rank but in a loop; take graph-1f1b for such a stage graph"
        )
    found = {rank: stage for stage in range(positions) for rank in graph.ranks[stage]}
    return tuple(
        LoopRank(
            tuple(range(found[rank], graph.num_stages, positions)),
            graph.microbatches_of(found[rank], rank, num_microbatches),
            found[rank],
            positions,
        )
        for rank in range(graph.num_ranks)
    )
