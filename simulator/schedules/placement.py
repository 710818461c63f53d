"""Where chain schedules run: one stage a rank in a line, chunks of stages in a loop or a wave, or in both directions.

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
from simulator.uniform import in_a_loop, in_a_wave


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
class ChunkRank:
    """One rank of a loop or a wave.

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


def loop(name: str, graph: StageGraph, num_microbatches: int) -> tuple[ChunkRank, ...]:
    """Return the ranks of a loop.

    Raises
    ------
    UsageError
        When stage c p + r does not run on rank r of p for whole rounds of p stages, or stages are not alike.
    """
    return _chunked(name, graph, num_microbatches, in_a_loop, "runs stage c p + r on rank r of p")


def wave(name: str, graph: StageGraph, num_microbatches: int, chunks: int | None = None) -> tuple[ChunkRank, ...]:
    """Return the ranks of a wave.

    Parameters
    ----------
    chunks : int, optional
        How many stages a rank has to have; any even number by default.

    Raises
    ------
    UsageError
        When stage c p + r does not run on rank r of p (even c) or p - 1 - r (odd c), or stages are not alike.
    """
    rule = "runs stage c p + r on rank r of p, and on rank p - 1 - r where c is odd"
    ranks = _chunked(name, graph, num_microbatches, in_a_wave, rule)
    found = len(ranks[0].stages)
    if found % 2 or found != (chunks or found):
        raise UsageError(f"{name} runs {chunks or 'an even number of'} stages a rank, not {found}; change --chunks")
    return ranks


def _chunked(
    name: str, graph: StageGraph, num_microbatches: int, place_of: Callable[[int, int], int], rule: str
) -> tuple[ChunkRank, ...]:
    positions = len(set(graph.ranks))
    for stage, ranks in enumerate(graph.ranks):
        first = graph.ranks[place_of(stage, positions)]
        if ranks != first:
            raise UsageError(f"{name} {rule}, and stage {stage} is on rank {list(ranks)} instead of {list(first)}")
    if graph.num_stages % positions:
        raise UsageError(
            f"{name} runs equally many stages on every rank, and {graph.num_stages} stages do not divide into "
            f"{positions}; add or join stages"
        )
    shared = sum(map(len, graph.ranks[:positions])) > graph.num_ranks
    if shared or len(set(graph.multiples)) > 1 or not all(graph.backward):
        raise UsageError(
            f"{name} needs stages that all have a backward, take equally many micro-batches in one action and "
            "share no rank but by its placement; take graph-1f1b for such a stage graph"
        )
    found = {rank: place for place in range(positions) for rank in graph.ranks[place]}
    return tuple(
        ChunkRank(
            graph.stages_of(rank), graph.microbatches_of(found[rank], rank, num_microbatches), found[rank], positions
        )
        for rank in range(graph.num_ranks)
    )


@dataclass(frozen=True, slots=True)
class TwoWayRank:
    """One rank of two pipelines in opposite directions, each with a copy of the parameters.

    Attributes
    ----------
    stages : tuple of int
        Its stage of the pipeline that enters at the nearer end of the line, then that of the other.
    microbatches : tuple of tuple of int
        The micro-batches of each of the two.
    distance, half : int
        How far its nearer end is, and p / 2.
    """

    stages: tuple[int, int]
    microbatches: tuple[tuple[int, ...], tuple[int, ...]]
    distance: int
    half: int


def two_way(name: str, graph: StageGraph, num_microbatches: int) -> tuple[TwoWayRank, ...]:
    """Return the ranks of two opposite pipelines.

    Raises
    ------
    UsageError
        For an odd number of ranks or micro-batches, or when stage s does not run on the ranks s and p - 1 - s.
    """
    p = graph.num_stages
    if p % 2 or num_microbatches % 2:
        raise UsageError(f"{name} needs even numbers of ranks and micro-batches, not {p} and {num_microbatches}")
    if graph.ranks != tuple((stage, p - 1 - stage) for stage in range(p)):
        raise UsageError(f"{name} runs stage s on the ranks s and p - 1 - s; these stages run elsewhere")
    if max(graph.multiples) > 1 or not all(graph.backward):
        raise UsageError(f"{name} needs stages that all have a backward and take one micro-batch in one action")
    found = []
    for rank in range(p):
        near, far = (rank, p - 1 - rank) if rank < p // 2 else (p - 1 - rank, rank)
        rows = [graph.microbatches_of(stage, rank, num_microbatches) for stage in (near, far)]
        found.append(TwoWayRank((near, far), (rows[0], rows[1]), near, p // 2))
    return tuple(found)
