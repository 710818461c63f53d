"""When the actions of a pipeline ran in one rank's Kineto trace: step by step, in the order in which they began.

torch's runtime of schedules marks its actions (``PP:1F0``), its GPipe ``Forward 0`` and ``Backward 0``; other schedules
of one stage a rank are seen by the calls of their stage, where the profiler ran with stacks. A mark begins with the
wait for a message, so an action lasts from the first operation behind it to the last one before the next mark (a loss
belongs to its forward): operations of the mark's own thread, or, on a GPU, kernels that were launched meanwhile by any
thread. What communicates does not count. Leaves out the optimizer, and overlapped pairs of actions.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import InvalidInput
from costmodel.importers.kineto import CHUNK, KERNELS, LAUNCHES, STEP, Event, RankTrace
from costmodel.importers.kineto_training import training_spans

COMPUTE = ("F", "B", "I", "W")
_RUNTIME = re.compile(r"PP:(\d{1,6})([A-Z]+(?:_[A-Z]+)?)(\d{0,6})", re.ASCII)
_GPIPE = re.compile(r"(Forward|Backward) (\d{1,6})", re.ASCII)
_OVERLAPPED = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_COMMUNICATION = ("c10d::", "gloo:", "nccl", "record_param_comms")
_OPTIMIZER = "Optimizer."

WAYS_OUT = (
    "profile a schedule of torch's runtime (its actions are marked PP:...), or GPipe, or any other with "
    "with_stack=True; of a training loop without a pipeline give one rank's trace, of whole steps"
)


@dataclass(frozen=True, slots=True)
class TracedAction:
    """An action of a stage: its kind is a letter of `COMPUTE`; `mark` is what it was read from."""

    stage: int
    kind: str
    microbatch: int
    start_ns: int
    end_ns: int
    mark: Event

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where an action begins; the name is empty for what is no action of a stage that computes."""

    stage: int
    kind: str
    microbatch: int
    event: Event


def traced_steps(trace: RankTrace, place: int, *, alone: bool = False) -> list[list[TracedAction]]:
    """Return a rank's actions, a list a step.

    Parameters
    ----------
    trace : RankTrace
    place : int
        The rank's place in the pipeline, its stage where marks name none.
    alone : bool
        Whether it is the only trace: then it may be of a training loop without a pipeline.

    Raises
    ------
    InvalidInput
        When no marks are found, or marks of pairs.
    """
    marks = _marks(trace, place, alone)
    if not any(mark.kind in COMPUTE for mark in marks):
        annotations = {event.name for event in trace.events if event.category == "user_annotation"}
        shown = ", ".join(repr(name[:40]) for name in sorted(annotations)[:5]) or "none at all"
        raise InvalidInput(f"{trace.path}: no action of a pipeline among its annotations ({shown}); {WAYS_OUT}")
    worked = _work(trace, marks)
    steps: list[list[TracedAction]] = [[]]
    seen: set[tuple[int, str, int]] = set()
    for index, mark in enumerate(marks):
        key = (mark.stage, mark.kind, mark.microbatch)
        if mark.kind not in COMPUTE:
            continue
        if key in seen:
            steps.append([])
            seen = set()
        seen.add(key)
        start_ns, end_ns = worked.get(index, (mark.event.start_ns, mark.event.end_ns))
        before_ns = steps[-1][-1].end_ns if steps[-1] else start_ns  # streams that run at the same time
        start_ns = max(start_ns, before_ns)
        steps[-1].append(TracedAction(*key, start_ns, max(start_ns, end_ns), mark.event))
    return steps


def _marks(trace: RankTrace, place: int, alone: bool) -> list[_Mark]:
    """Return the marks of a trace by start, those of the optimizer, which end an action, among them."""
    annotations = [event for event in trace.events if event.category == "user_annotation"]
    if any(_OVERLAPPED.fullmatch(event.name) for event in annotations):
        raise InvalidInput(
            f"{trace.path}: overlapped pairs (OVERLAP_F_B), whose two actions the trace does not tell apart"
        )
    found = [mark for event in annotations if (mark := _runtime(event))]
    found = found or [mark for event in annotations if (mark := _gpipe(event, place))]
    found = found or list(_calls(trace, place))
    if not found and alone:
        found = list(_training(trace, place))
    found += [_Mark(-1, "", -1, event) for event in annotations if event.name.startswith(_OPTIMIZER)]
    return sorted(found, key=lambda mark: mark.event.start_ns)


def _runtime(event: Event) -> _Mark | None:
    match = _RUNTIME.fullmatch(event.name)
    return _Mark(int(match[1]), match[2], int(match[3] or -1), event) if match else None


def _gpipe(event: Event, place: int) -> _Mark | None:
    match = _GPIPE.fullmatch(event.name)
    return _Mark(place, "F" if match[1] == "Forward" else "B", int(match[2]), event) if match else None


def _calls(trace: RankTrace, place: int) -> Iterator[_Mark]:
    """Yield the calls of a rank's one stage, numbered within each step."""
    steps = [event for event in trace.events if STEP.fullmatch(event.name)]
    for step in steps:
        counts = {"F": 0, "B": 0}
        for event in trace.events:
            match = CHUNK.fullmatch(event.name)
            if match and event.thread == step.thread and step.start_ns <= event.start_ns < step.end_ns:
                kind = "F" if match[1] == "forward" else "B"
                yield _Mark(place, kind, counts[kind], event)
                counts[kind] += 1


def _training(trace: RankTrace, place: int) -> Iterator[_Mark]:
    """Yield the forwards and backwards of a training loop, each backward with its end: what follows is not its own."""
    for span in training_spans(trace):
        yield _Mark(place, span.kind, 0, span.event)
        if span.kind == "B":
            yield _Mark(-1, "", -1, replace(span.event, start_ns=span.event.end_ns))


def _work(trace: RankTrace, marks: Sequence[_Mark]) -> dict[int, tuple[int, int]]:
    """Return first start and last end of what computes between each mark and the next."""
    starts = [mark.event.start_ns for mark in marks]
    threads = {mark.event.thread for mark in marks}
    found: dict[int, tuple[int, int]] = {}
    for issued_ns, event in working(trace, threads):
        index = bisect_right(starts, issued_ns) - 1
        if index >= 0:
            first, last = found.get(index, (event.start_ns, event.end_ns))
            found[index] = min(first, event.start_ns), max(last, event.end_ns)
    return found


def working(trace: RankTrace, threads: set[str]) -> Iterator[tuple[int, Event]]:
    """Yield what computes and when it was issued: kernels on a GPU, else operations of some threads."""
    kernels: dict[int, list[Event]] = {}
    for event in trace.events:
        if event.category in KERNELS and not _communicates(event):
            kernels.setdefault(event.correlation, []).append(event)
    if not kernels:
        for event in trace.events:
            if event.category == "cpu_op" and event.thread in threads and not _communicates(event):
                yield event.start_ns, event
    for event in trace.events if kernels else ():
        for kernel in kernels.get(event.correlation, ()) if event.category in LAUNCHES else ():
            yield event.start_ns, kernel


def _communicates(event: Event) -> bool:
    return event.name.startswith(_COMMUNICATION)
