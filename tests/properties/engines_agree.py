"""The product's engine and the event-queue engine on one case: where do they differ?"""

from random import Random

from costmodel.errors import InvalidInput
from simulator.actions import RECEIVES, SENDS
from simulator.engine import Structure
from simulator.engine.times import Times
from tests.support.event_queue_engine import EventQueueEngine, WaitsOnItself
from tests.support.random_cases import Case, random_case


def disagreement(case: Case) -> str | None:
    """Return what the two engines see differently; None if nothing."""
    try:
        second = EventQueueEngine(case.schedule, case.costs, case.p2p, case.optimizer_mode, case.speeds).run()
    except WaitsOnItself:
        second = None
    try:
        structure = Structure(case.schedule, case.p2p, case.optimizer_mode)
    except InvalidInput as error:
        return None if second is None and "wait on each other" in str(error) else f"refused: {error}"
    if second is None:
        return "only the second engine sees that the order waits on itself"
    times = structure.times(case.costs, case.speeds)
    return _times_differ(times, second) or _memory_differs(times, second) or _timeline_differs(times)


def _times_differ(times: Times, second: EventQueueEngine) -> str | None:
    ranks = times.structure.arrays.rank.tolist()
    for action, rank, *span in zip(times.actions, ranks, times.start.tolist(), times.end.tolist(), strict=True):
        if action.kind in SENDS | RECEIVES:
            message = second.message_of(action)
            other = message.sent if action.kind in SENDS else message.received
        else:
            other = second.span[rank, action]
        if tuple(span) != other:
            return f"{action} on rank {rank}: {span} and {other}"
    return None


def _memory_differs(times: Times, second: EventQueueEngine) -> str | None:
    points = [times.memory.points(rank) for rank in range(len(times.peak_memory_bytes))]
    for rank, (row, peak) in enumerate(zip(points, times.peak_memory_bytes, strict=True)):
        levels = second.memory(rank)
        if (peak, row[-1][1]) != (max(levels), levels[-1]):
            return f"memory of rank {rank}: {peak}, {row[-1][1]} at the end, and {max(levels)}, {levels[-1]}"
        if levels[-1] != row[0][1]:
            return f"rank {rank} ends with {levels[-1]} bytes and began with {row[0][1]}"
    return None


def _timeline_differs(times: Times) -> str | None:
    timeline = times.timeline()
    for name in ("step_time_ns", "span_ns", "compute_ns", "bubble_ratio", "bubble_ratio_span", "peak_memory_bytes"):
        if getattr(timeline, name) != getattr(times, name):
            return f"{name}: {getattr(timeline, name)} in the timeline, {getattr(times, name)} in the times"
    return None


def disagreements(num_cases: int, first_seed: int = 0) -> list[str]:
    """Compare the engines on random cases; return what differs, with the seed of each."""
    found = []
    for seed in range(first_seed, first_seed + num_cases):
        difference = disagreement(random_case(Random(seed)))
        if difference:
            found.append(f"seed {seed}: {difference}")
    return found
