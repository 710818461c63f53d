"""A timeline as a trace: JSON for Perfetto and chrome://tracing, and one file a rank for Holistic Trace Analysis.

A process a rank; compute, send, receive and collective have tracks of their own, and where transfers of a
stream overlap, further tracks: complete events on one track never overlap. An arrow leads from each send to its
receive; memory is a counter. In a folder of one file a rank the events also look like kernels of GPU streams
with a profiler step around them, which is what Holistic Trace Analysis (0.5) reads; transfers and reductions
are then named as NCCL kernels, by which it tells communication from computation. Times are microseconds, as
the format wants, with the nanoseconds as decimals; that tool rounds them to whole microseconds. Several timelines
are one below the other in one file, their processes named after them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.files import write_text
from costmodel.outputs import check_kind
from simulator.actions import RECEIVES, SENDS, Kind, receive_of
from simulator.timeline import STREAMS, Span, Timeline

Event = dict[str, object]
LANES_A_STREAM = 1000
KERNEL_OF = {
    **dict.fromkeys(SENDS | RECEIVES, "ncclDevKernel_SendRecv"),
    Kind.REDUCE: "ncclDevKernel_AllReduce",
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a timeline among others: its first process and arrow, and what its processes are called."""

    first_process: int = 0
    first_arrow: int = 0
    name: str = ""


FIRST = _Place()


def write_trace(path: str | Path, timeline: Timeline) -> None:
    """Write a trace.

    Parameters
    ----------
    path : str or Path
        A name that ends in ``.json`` or ``.json.gz`` makes one file of all ranks; a folder (or a name without
        a suffix) gets one file a rank, ``rank0.json`` and so on.
    timeline : Timeline

    Raises
    ------
    UsageError
        On another suffix.
    """
    target = Path(path)
    if target.is_dir() or not target.suffix:
        for rank in range(timeline.num_ranks):
            head = {"distributedInfo": _distributed_info(timeline, rank)}
            _write(target / f"rank{rank}.json", rank_events(timeline, rank), head)
    elif target.name.endswith((".json", ".json.gz")):
        _write(target, trace_events(timeline), {"displayTimeUnit": "ms"})
    else:
        raise UsageError(f"{path}: a trace is written as .json, .json.gz, or into a folder; choose one of these")


def write_traces(path: str | Path, timelines: Sequence[tuple[str, Timeline]]) -> None:
    """Write several named timelines into one ``.json`` or ``.json.gz`` file.

    Raises
    ------
    UsageError
        On another suffix.
    """
    target = Path(path)
    if target.is_dir() or not target.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{path}: a trace of several timelines is one .json or .json.gz file; choose such a name")
    events: list[Event] = []
    process = arrow = 0
    for name, timeline in timelines:
        events += trace_events(timeline, _Place(process, arrow, f"{name}: "))
        process, arrow = process + timeline.num_ranks, arrow + len(timeline.spans)
    _write(target, events, {"displayTimeUnit": "ms"})


def trace_events(timeline: Timeline, place: _Place = FIRST) -> list[Event]:
    """Return the events of all ranks: tracks, actions, arrows and memory."""
    events: list[Event] = []
    flows = _flows(timeline)
    for rank in range(timeline.num_ranks):
        process = place.first_process + rank
        events += _names(process, f"{place.name}rank {rank}")
        for span, track in _tracks(timeline, rank):
            events.append({**_complete(span, track, str(span.action), span.stream, {}), "pid": process})
            if span in flows:
                events.append({**_arrow(span, track, place.first_arrow + flows[span]), "pid": process})
        events += [{**event, "pid": process} for event in _counters(timeline, rank)]
    return events


def rank_events(timeline: Timeline, rank: int) -> list[Event]:
    """Return the events of one rank as kernels on streams, inside a profiler step."""
    end = max((span.end_ns for span in timeline.spans), default=0)
    step = {"name": "ProfilerStep#0", "cat": "user_annotation", "ph": "X", "pid": 1000 + rank, "tid": 0,
            "ts": 0.0, "dur": end / 1000, "args": {}}  # fmt: skip
    events: list[Event] = [*_names(rank, f"rank {rank}"), step]
    for number, (span, track) in enumerate(_tracks(timeline, rank)):
        kernel = KERNEL_OF.get(span.action.kind)
        name = f"{kernel} {span.action}" if kernel else str(span.action)
        events.append(_complete(span, track, name, "kernel", {"stream": track, "correlation": number + 1}))
    return [*events, *_counters(timeline, rank)]


def _distributed_info(timeline: Timeline, rank: int) -> dict[str, object]:
    return {"backend": "nccl", "rank": rank, "world_size": timeline.num_ranks}


def _names(process: int, name: str) -> Iterator[Event]:
    """Yield the names of a rank's process and its tracks."""
    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "args": {"sort_index": process}}
    for stream in STREAMS:
        track = _track(stream, 0)
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": track, "args": {"name": stream}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": track, "args": {"sort_index": track}}


def _track(stream: str, lane: int) -> int:
    return 1 + LANES_A_STREAM * STREAMS.index(stream) + lane


def _tracks(timeline: Timeline, rank: int) -> Iterator[tuple[Span, int]]:
    """Yield a rank's spans, each with a track on which nothing overlaps it."""
    ends: dict[str, list[int]] = {stream: [] for stream in STREAMS}
    for span in sorted((s for s in timeline.spans if s.rank == rank), key=lambda s: (s.start_ns, s.end_ns)):
        lanes = ends[span.stream]
        lane = next((i for i, end in enumerate(lanes) if end <= span.start_ns), len(lanes))
        lanes[lane:] = [span.end_ns, *lanes[lane + 1 :]]
        yield span, _track(span.stream, lane)


def _complete(span: Span, track: int, name: str, category: str, more: dict[str, object]) -> Event:
    action = span.action
    arguments = {"kind": str(action.kind), "stage": action.stage, "microbatch": action.microbatch, **more}
    return {
        "name": name, "cat": category, "ph": "X", "pid": span.rank, "tid": track, "ts": span.start_ns / 1000,
        "dur": (span.end_ns - span.start_ns) / 1000, "args": arguments,
    }  # fmt: skip


def _flows(timeline: Timeline) -> dict[Span, int]:
    """Give both ends of each message one number; a measured receive ends with the last of its spans, the wait."""
    sends = {receive_of(s.action): s for s in timeline.spans if s.action.kind in SENDS}
    receives = {s.action: s for s in timeline.spans if s.action in sends}
    pairs = [(sends[action], span) for action, span in receives.items()]
    return {span: number for number, pair in enumerate(pairs) for span in pair}


def _arrow(span: Span, track: int, number: int) -> Event:
    ends: Event = {"ph": "s"} if span.action.kind in SENDS else {"ph": "f", "bp": "e"}
    return {
        "name": "message", "cat": "message", **ends, "id": number, "pid": span.rank, "tid": track,
        "ts": span.start_ns / 1000,
    }  # fmt: skip


def _counters(timeline: Timeline, rank: int) -> Iterator[Event]:
    for time_ns, size in timeline.memory[rank] if timeline.memory else ():
        yield {"name": "memory", "ph": "C", "pid": rank, "ts": time_ns / 1000, "args": {"bytes": size}}


def _write(path: Path, events: Iterable[Event], head: Mapping[str, object]) -> None:
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in events)
    start = json.dumps(head, allow_nan=False)[:-1]
    check_kind(path, '"traceEvents"', "a trace")
    write_text(path, f'{start}, "traceEvents": [\n{lines}\n]}}\n')
