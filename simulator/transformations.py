"""Changes to the orders of any schedule: what a rank does besides, where it does it.

Recompute: a stage keeps only its input, and an R runs its forward again before the backward. R waits for its own
forward alone, so where it comes directly before the backward it runs while the rank waits for the gradient; within a
memory limit it may move further ahead, into idle time. Offload: what a forward keeps is copied to host memory and back,
where both copies fit together with what the rank does until the backward. Leaves out what either costs: that is in the
costs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs
from simulator.actions import COMPUTE, Action, Kind, numbered
from simulator.bounds.amount_of_action import amount_of
from simulator.engine import Structure, Times
from simulator.schedule import Schedule
from simulator.validation.order_memory import held_bytes

_BACKWARD = (Kind.B, Kind.I)
_MOST_ROUNDS = 20


def with_recompute(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Put an R directly before each backward of some stages.

    Parameters
    ----------
    schedule : Schedule
        Of the catalogue or one's own; its costs say how long R takes (`recompute_ns`) and what stays (the bytes of
        the stage's edges).
    stages : collection of int

    Raises
    ------
    InvalidInput
        For a stage that is not there, has no backward, or recomputes already.
    """
    _check_stages(schedule, stages, Kind.R)
    made = {stage: numbered(Kind.R, stage, range(schedule.num_microbatches)) for stage in stages}
    return replace(schedule, orders=tuple(tuple(_with_recomputes(order, made)) for order in schedule.orders))


def _check_stages(schedule: Schedule, stages: Collection[int], kind: Kind) -> None:
    """Refuse stages without a backward, and those that do already what they are to do, or the other thing."""
    graph = schedule.graph
    for stage in stages:
        if not 0 <= stage < graph.num_stages or not graph.backward[stage]:
            raise InvalidInput(f"stage {stage} has no backward for {kind}; stages are 0 to {graph.num_stages - 1}")
    found = {
        action.kind
        for order in schedule.orders
        for action in order
        if action.kind in (Kind.R, Kind.OFFLOAD) and action.stage in stages
    }
    if found:
        raise InvalidInput(f"the orders hold an {min(found)} of one of these stages already; take the schedule without")


def _with_recomputes(order: Sequence[Action], made: Mapping[int, Sequence[Action]]) -> Iterator[Action]:
    for action in order:
        if action.kind in _BACKWARD and action.stage in made:
            whole = action.slice_index < 0
            yield made[action.stage][action.microbatch] if whole else replace(action, kind=Kind.R)
        yield action


def recomputed_ahead(schedule: Schedule, costs: Costs, memory_limit_bytes: int, p2p: str = "latency") -> Schedule:
    """Move R's ahead into idle time that they fill without making anything wait, while that shortens the step.

    Parameters
    ----------
    schedule : Schedule
        With R's, not lowered.
    costs : Costs
    memory_limit_bytes : int
        Of each rank, static part included; R holds its activation from its start. A rank whose messages then do not
        fit together with them keeps its order.
    p2p : {"latency", "blocking", "links"}

    Returns
    -------
    Schedule
        The shortest found; the given one where it is beyond the limit, or nothing is gained.
    """
    best = schedule
    times = Structure(best, p2p).times(costs)
    for _ in range(_MOST_ROUNDS if max(times.peak_memory_bytes) <= memory_limit_bytes else 0):
        orders = [tuple(_ahead(best, costs, times, rank, memory_limit_bytes)) for rank in range(best.graph.num_ranks)]
        trial = replace(best, orders=tuple(orders))
        peaks = Structure(trial, p2p).times(costs).peak_memory_bytes
        trial = replace(
            best,
            orders=tuple(
                new if peak <= memory_limit_bytes else old
                for new, old, peak in zip(orders, best.orders, peaks, strict=True)
            ),
        )
        after = Structure(trial, p2p).times(costs)
        if after.step_time_ns >= times.step_time_ns or max(after.peak_memory_bytes) > memory_limit_bytes:
            break
        best, times = trial, after
    return best


def _ahead(schedule: Schedule, costs: Costs, times: Times, rank: int, limit: int) -> list[Action]:
    """Move into each wait of a rank's order the next R that can run there, as far as memory allows."""
    order, spans = list(schedule.orders[rank]), _spans(times, rank)
    held = np.fromiter(held_bytes(schedule, costs, rank), np.int64)
    moved = [(float(i), action) for i, action in enumerate(order)]
    again = [i for i, action in enumerate(order) if action.kind is Kind.R]
    ended = 0
    for i, action in enumerate(order):
        if action not in spans:
            continue
        start, end = spans[action]
        later = next((j for j in again if j > i), None)
        if later is not None and start > ended and action.kind is not Kind.R:
            one = order[later]
            ready, length = spans[replace(one, kind=Kind.F)][1], spans[one][1] - spans[one][0]
            taken = amount_of(
                costs.stages[one.stage].activation_bytes, one, schedule.graph.multiples[one.stage],
                schedule.num_microbatches, schedule.num_slices,
            )  # fmt: skip
            if max(ready, ended) + length <= start and held[i:later].max() + taken <= limit:
                held[i:later] += taken
                moved[later] = (i - 0.5, one)
                again.remove(later)
        ended = end
    return [action for _, action in sorted(moved, key=lambda item: item[0])]


def _spans(times: Times, rank: int) -> dict[Action, tuple[int, int]]:
    """Start and end of each compute action of a rank, in order."""
    of = times.structure.arrays.rank
    first, stop = np.searchsorted(of, [rank, rank + 1]).tolist()
    rows = zip(times.actions[first:stop], times.start[first:stop].tolist(), times.end[first:stop].tolist(), strict=True)
    return {action: (start, end) for action, start, end in rows if action.kind in COMPUTE}


@dataclass(slots=True)
class _Copied:
    """A forward's activation that may leave: places in the order, and when the copies there and back start and end."""

    forward: int
    backward: int
    length_ns: int
    away_ns: int
    wanted_ns: int


def with_offload(schedule: Schedule, costs: Costs, stages: Collection[int], p2p: str = "latency") -> Schedule:
    """Copy what forwards of some stages keep to the host and back, wherever that makes nothing wait.

    OFFLOAD directly follows F, so that copies leave as early as they can; RELOADs come as late as the step
    without them allows, one behind the other. A forward whose backward follows too soon for both copies keeps its
    activation. So the step takes as long as without, and no rank ever holds more.

    Parameters
    ----------
    schedule : Schedule
        Not lowered, without pairs.
    costs : Costs
        `offload_ns` says how long a copy takes.
    stages : collection of int
    p2p : {"latency", "blocking", "links"}
        How messages take time in the step that the copies are fitted into.

    Raises
    ------
    InvalidInput
        For a stage that is not there, has no backward, recomputes or is offloaded already; for overlapped pairs.
    """
    _check_stages(schedule, stages, Kind.OFFLOAD)
    if schedule.paired:
        raise InvalidInput("an OFFLOAD would come between the two of an overlapped pair; take orders without pairs")
    times = Structure(schedule, p2p).times(costs)
    orders = (_offloaded(schedule, costs, times, rank, stages) for rank in range(schedule.graph.num_ranks))
    return replace(schedule, orders=tuple(tuple(order) for order in orders))


def _offloaded(schedule: Schedule, costs: Costs, times: Times, rank: int, stages: Collection[int]) -> Iterator[Action]:
    order, spans = schedule.orders[rank], _spans(times, rank)
    before: dict[int, list[Action]] = {}
    behind: dict[int, Action] = {}
    ends = [0] + [spans[action][1] if action in spans else 0 for action in order]
    ends = np.maximum.accumulate(ends).tolist()
    for copy in _that_fit(schedule, costs, order, spans, stages):
        forward = order[copy.forward]
        place = int(np.searchsorted(ends[: copy.backward + 1], copy.wanted_ns, "right")) - 1
        behind[copy.forward] = replace(forward, kind=Kind.OFFLOAD)
        before.setdefault(max(place, copy.forward + 1), []).insert(0, replace(forward, kind=Kind.RELOAD))
    for i, action in enumerate(order):
        yield from before.get(i, ())
        yield action
        if i in behind:
            yield behind[i]


def _that_fit(
    schedule: Schedule,
    costs: Costs,
    order: Sequence[Action],
    spans: dict[Action, tuple[int, int]],
    stages: Collection[int],
) -> list[_Copied]:
    """Return the copies that fit, by the last backward first: each RELOAD ends before the next one has to start."""
    at = {action: i for i, action in enumerate(order)}
    found: list[_Copied] = []
    free = 0
    for i, action in enumerate(order):
        if action.kind is not Kind.F or action.stage not in stages:
            continue
        backward = next(at[b] for kind in _BACKWARD if (b := replace(action, kind=kind)) in at)
        length = amount_of(costs.stages[action.stage].offload_ns, action, schedule.graph.multiples[action.stage],
                           schedule.num_microbatches, schedule.num_slices)  # fmt: skip
        ended, wanted = spans[action][1], spans[order[backward]][0]
        if max(free, ended) + 2 * length <= wanted:
            free = max(free, ended) + length
            found.append(_Copied(i, backward, length, free, wanted))
    found.sort(key=lambda copy: -copy.backward)
    kept: list[_Copied] = []
    for copy in found:
        start = min(copy.wanted_ns, kept[-1].wanted_ns if kept else copy.wanted_ns) - copy.length_ns
        if start >= copy.away_ns:
            copy.wanted_ns = start
            kept.append(copy)
    return kept
