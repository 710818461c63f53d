"""`looped-bfs`: breadth first over several chunks a rank: a chunk takes all micro-batches, then the next."""

from simulator.actions import Action, Kind
from simulator.schedules.closed_forms import everything_held, looped
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.placement import ChunkRank, loop


def orders(request: Request) -> Orders:
    """Return all forwards chunk by chunk, then all backwards chunk by chunk from the last micro-batch on."""
    return tuple(map(_order, loop("looped-bfs", request.graph, request.num_microbatches)))


def _order(place: ChunkRank) -> tuple[Action, ...]:
    ahead = [Action(Kind.F, stage, k) for stage in place.stages for k in place.microbatches]
    return (*ahead, *(Action(Kind.B, action.stage, action.microbatch) for action in reversed(ahead)))


KIND = ScheduleKind(
    name="looped-bfs",
    placement="loop",
    split=False,
    description="All micro-batches through chunk after chunk, forwards first: every activation is held",
    source="Lamy-Poirier, Breadth-first pipeline parallelism, MLSys 2023 (arXiv:2211.05953)",
    orders=orders,
    bubble=looped("c = 0 and m >= p", lambda u: u.p2p == 0 and u.microbatches >= u.ranks),
    peak=everything_held(),
)
