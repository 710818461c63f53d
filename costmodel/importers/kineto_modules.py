"""What the modules of a stage took in a Kineto trace: rows of a table of layers, a stage itself where none were seen.

Module spans (``nn.Module: Linear_0``) are there when the profiler ran with stacks; the innermost count. Their backward
is that of the operations within, by autograd's sequence numbers; where these tell nothing, it is divided as the forward
is. All is scaled to what the stage's actions took. Leaves out bytes, which a trace does not hold: rows have none.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.importers.kineto import MODULE, Event, RankTrace
from costmodel.importers.kineto_actions import TracedAction, working
from costmodel.importers.kineto_training import BACKWARD
from costmodel.importers.layers import LayerRow


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What an action of a stage takes, ns; `weight_ns` is a part of the backward."""

    forward_ns: int
    backward_ns: int
    weight_ns: int


def stage_rows(
    traces: Sequence[RankTrace], actions: Sequence[Sequence[TracedAction]], stages: Sequence[StageTimes]
) -> list[LayerRow]:
    """Return the rows of all stages, each after the one before it.

    Parameters
    ----------
    traces : sequence of RankTrace
    actions : sequence of sequence of TracedAction
        Of each trace, all steps together.
    stages : sequence of StageTimes
    """
    modules: dict[int, Mapping[str, tuple[int, int]]] = {}
    for trace, row in zip(traces, actions, strict=True):
        for stage in {action.stage for action in row}:
            modules[stage] = _modules(trace, [action for action in row if action.stage == stage])
    rows: list[LayerRow] = []
    for stage, times in enumerate(stages):
        found = modules.get(stage) or {f"stage{stage}": (1, 1)}
        forward = _divided(times.forward_ns, [f for f, _ in found.values()])
        shares = [b for _, b in found.values()]
        shares = shares if any(shares) else [f for f, _ in found.values()]
        backward, weight = (_divided(ns, shares) for ns in (times.backward_ns, times.weight_ns))
        for name, *parts in zip(found, forward, backward, weight, strict=True):
            called = f"stage{stage}.{name}" if modules.get(stage) else name
            after = (rows[-1].name,) if rows else ()
            rows.append(LayerRow(called, after, parts[0], parts[1], min(parts[1], parts[2]), 0, 1, 0))
    return rows


def _divided(whole: int, shares: Sequence[int]) -> list[int]:
    """Divide a time by shares; the parts sum to it."""
    total, found, given, so_far = sum(shares) or 1, [], 0, 0
    for share in shares:
        so_far += share
        found.append(whole * so_far // total - given)
        given += found[-1]
    return found


def _modules(trace: RankTrace, actions: Sequence[TracedAction]) -> dict[str, tuple[int, int]]:
    """Return forward and backward of a stage's innermost modules over all its actions, in order of first call."""
    cost = _Cost(trace, {action.mark.thread for action in actions})
    forwards = [action for action in actions if action.kind == "F"]
    spans = [event for event in trace.events if event.name.startswith(MODULE)]
    starts = [event.start_ns for event in spans]
    found: dict[str, list[int]] = {}
    owner: dict[int, str] = {}
    for action in forwards:
        inside = spans[bisect_left(starts, action.mark.start_ns) : bisect_left(starts, action.mark.end_ns)]
        for event in _innermost([e for e in inside if e.thread == action.mark.thread]):
            name = event.name.removeprefix(MODULE)
            found.setdefault(name, [0, 0])[0] += cost.within(event)
            owner |= dict.fromkeys(cost.sequences(event), name)
    for event in trace.events:
        if event.name.startswith(BACKWARD) and event.sequence in owner:
            found[owner[event.sequence]][1] += cost.within(event)
    return {name: (forward, backward) for name, (forward, backward) in found.items()}


def _innermost(events: Sequence[Event]) -> Iterator[Event]:
    """Yield spans, in order of start, that hold no other."""
    for place, event in enumerate(events):
        if place + 1 == len(events) or events[place + 1].start_ns >= event.end_ns:
            yield event


class _Cost:
    """What a span cost: its length, or on a GPU the kernels that were launched in it."""

    def __init__(self, trace: RankTrace, threads: set[str]) -> None:
        self._on_gpu = any(event.category == "kernel" for event in trace.events)
        issued = sorted(working(trace, threads), key=lambda row: row[0]) if self._on_gpu else []
        self._issued = [issued_ns for issued_ns, _ in issued]
        self._summed = [0]
        for _, event in issued:
            self._summed.append(self._summed[-1] + event.end_ns - event.start_ns)
        self._operations = [
            e for e in trace.events if e.category == "cpu_op" and e.sequence >= 0 and e.thread in threads
        ]
        self._starts = [event.start_ns for event in self._operations]

    def within(self, event: Event) -> int:
        """Return the cost of a span, ns."""
        if not self._on_gpu:
            return event.end_ns - event.start_ns
        first, last = (bisect_left(self._issued, ns) for ns in (event.start_ns, event.end_ns))
        return self._summed[last] - self._summed[first]

    def sequences(self, event: Event) -> set[int]:
        """Return autograd's numbers of the operations within a span."""
        first, last = (bisect_left(self._starts, ns) for ns in (event.start_ns, event.end_ns))
        return {each.sequence for each in self._operations[first:last]}
