"""Forward and backward of an ordinary training loop in one rank's Kineto trace, where no pipeline marks its actions.

A backward is what autograd's engine evaluates (``autograd::engine::evaluate_function``), and its forward is the
operations with the same sequence numbers, from the first of them, or the call of the module that holds it, up to the
backward: the loss belongs to it. Each forward with its backward is a step of one micro-batch, however many the
optimizer waits for. Leaves out the optimizer, data loading, and forwards without a backward.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel.importers.kineto import MODULE, Event, RankTrace

BACKWARD = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class TrainingSpan:
    """A forward or backward (`kind` F or B)."""

    kind: str
    event: Event


def training_spans(trace: RankTrace) -> list[TrainingSpan]:
    """Return the forwards and backwards of a trace, by start; nothing where it holds no backward."""
    evaluated = [event for event in trace.events if event.category == "cpu_op" and event.name.startswith(BACKWARD)]
    numbers = {event.sequence for event in evaluated if event.sequence >= 0}
    begins = _forward_begins(_outermost(trace.events, numbers, evaluated))
    found: list[TrainingSpan] = []
    calls = _module_calls(trace)
    for start_ns, run in _runs(begins, evaluated):
        first, last = run[0].start_ns, max(event.end_ns for event in run)
        within = bisect_right(calls, start_ns, key=lambda call: call.start_ns) - 1
        begun_ns = calls[within].start_ns if within >= 0 and start_ns < calls[within].end_ns else start_ns
        forward = Event("forward", "user_annotation", begins[start_ns].thread, begun_ns, first)
        found.append(TrainingSpan("F", forward))
        found.append(TrainingSpan("B", Event("backward", "user_annotation", run[0].thread, first, last)))
    return found


def _module_calls(trace: RankTrace) -> list[Event]:
    """Return the calls of modules that lie in no other's, where the profiler saw any."""
    found: list[Event] = []
    for event in trace.events:
        if event.name.startswith(MODULE) and (not found or event.start_ns >= found[-1].end_ns):
            found.append(event)
    return found


def _outermost(events: Sequence[Event], numbers: set[int], evaluated: Sequence[Event]) -> Iterator[Event]:
    """Yield operations that autograd's numbers name, in no other operation of their thread and in no backward."""
    until: dict[str, int] = {}
    backward_ns, place = 0, 0
    for event in events:
        while place < len(evaluated) and evaluated[place].start_ns <= event.start_ns:
            backward_ns = max(backward_ns, evaluated[place].end_ns)
            place += 1
        if event.category != "cpu_op" or event.start_ns < until.get(event.thread, 0):
            continue
        until[event.thread] = event.end_ns
        if event.start_ns >= backward_ns and event.sequence in numbers:
            yield event


def _forward_begins(operations: Iterator[Event]) -> dict[int, Event]:
    """Return by start the operation that made each of autograd's numbers: the last that has it, others only saw it."""
    made: dict[int, Event] = {}
    for event in operations:
        made[event.sequence] = event
    return {event.start_ns: event for event in made.values()}


def _runs(begins: dict[int, Event], evaluated: Sequence[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Yield the start of each forward with what is evaluated behind it, up to the next forward."""
    marks = sorted([*((ns, None) for ns in begins), *((e.start_ns, e) for e in evaluated)], key=lambda mark: mark[0])
    start_ns, run = -1, list[Event]()
    for ns, event in marks:
        if event is None and run:
            yield start_ns, run
            start_ns, run = ns, []
        elif event is None:
            start_ns = ns if start_ns < 0 else start_ns
        elif start_ns >= 0:
            run.append(event)
    if run:
        yield start_ns, run
