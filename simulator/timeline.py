"""When everything happened: spans on the streams of each rank, and memory over time.

Predicted timelines come from the engine, measured ones from the executor: one type, one clock
(nanoseconds from the start of the step). Needs the standard library alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from costmodel.codec import Json, Positive, record
from costmodel.documents import Document
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.forms import JsonForm, listed, row, text, whole
from simulator.actions import COMPUTE, Action, action_pattern, parse_action

STREAMS = ("compute", "send", "receive", "collective", "offload", "reload")
EXCLUSIVE = frozenset({"compute", "collective", "offload", "reload"})
"""Streams that do one thing at a time; several messages may travel at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """One action on one stream of one rank, from `start_ns` to `end_ns`."""

    action: Action
    rank: int
    stream: str
    start_ns: int
    end_ns: int


def _action(node: Node) -> Action:
    written = node.text()
    return node.build(lambda: parse_action(written))


_ACTION = JsonForm[Action](_action, str, text(pattern=action_pattern()).schema)
_SPANS = listed(row(_ACTION, whole(), text(STREAMS), whole(), whole(), says="[action, rank, stream, start_ns, end_ns]"))
SPANS = JsonForm[tuple[Span, ...]](
    lambda node: tuple(Span(*each) for each in _SPANS.read(node)),
    lambda spans: [[str(s.action), s.rank, s.stream, s.start_ns, s.end_ns] for s in spans],
    _SPANS.schema,
)


@dataclass(frozen=True)
class Timeline:
    """Spans of all ranks, and the steps of each rank's memory.

    Attributes
    ----------
    num_ranks : int
    spans : tuple of Span
        In order of rank, stream and start. Two spans on one `EXCLUSIVE` stream of one rank never overlap.
    memory : tuple of tuple of (int, int)
        For each rank the points (time_ns, bytes) at which its memory changes, from the static part on.
    """

    num_ranks: Positive
    spans: Annotated[tuple[Span, ...], Json(form=SPANS)]
    memory: Annotated[tuple[tuple[tuple[int, int], ...], ...], Json(says="[time_ns, bytes]")] = field(default=())

    def __post_init__(self) -> None:
        last: dict[tuple[int, str], Span] = {}
        for span in self.spans:
            before = last.get((span.rank, span.stream))
            meets = before and span.stream in EXCLUSIVE and span.start_ns < before.end_ns
            if span.end_ns < span.start_ns or meets:
                raise InvalidInput(
                    f"rank {span.rank}, stream {span.stream}: {span.action} from {span.start_ns} to {span.end_ns} ns "
                    f"overlaps {before.action if before else 'itself'}; spans on one stream follow each other"
                )
            last[span.rank, span.stream] = span
        if len(self.memory) not in (0, self.num_ranks):
            raise InvalidInput(
                f"memory of {len(self.memory)} ranks in a timeline of {self.num_ranks}; give all or none"
            )

    @cached_property
    def step_time_ns(self) -> int:
        """First start to last end over all ranks."""
        if not self.spans:
            return 0
        return max(s.end_ns for s in self.spans) - min(s.start_ns for s in self.spans)

    @property
    def end_ns(self) -> int:
        """Last end over all ranks; 1 where there is none, for whoever draws to that width."""
        return max((span.end_ns for span in self.spans), default=1)

    @cached_property
    def spans_by_rank(self) -> tuple[tuple[Span, ...], ...]:
        """All spans of each rank, in their order."""
        rows: list[list[Span]] = [[] for _ in range(self.num_ranks)]
        for span in self.spans:
            rows[span.rank].append(span)
        return tuple(map(tuple, rows))

    @cached_property
    def compute_spans(self) -> tuple[tuple[Span, ...], ...]:
        """F, B, I, W and R of each rank, by start."""
        rows = ((span for span in row if span.action.kind in COMPUTE) for row in self.spans_by_rank)
        return tuple(tuple(sorted(row, key=lambda s: s.start_ns)) for row in rows)

    @cached_property
    def span_ns(self) -> int:
        """Largest, over ranks, of last end minus first start of the rank's own compute (Zero Bubble papers)."""
        return max((row[-1].end_ns - row[0].start_ns for row in self.compute_spans if row), default=0)

    @cached_property
    def compute_ns(self) -> int:
        """Compute of all ranks together."""
        return sum(s.end_ns - s.start_ns for row in self.compute_spans for s in row)

    @property
    def bubble_ratio(self) -> float:
        """1 - compute / (ranks x step time)."""
        return 1 - self.compute_ns / (self.num_ranks * self.step_time_ns) if self.step_time_ns else 0.0

    @property
    def bubble_ratio_span(self) -> float:
        """1 - compute / (ranks x span)."""
        return 1 - self.compute_ns / (self.num_ranks * self.span_ns) if self.span_ns else 0.0

    @cached_property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """Peak of each rank's memory; empty when none was recorded."""
        return tuple(max((size for _, size in points), default=0) for points in self.memory)


def _settled(values: dict[str, Any], node: Node) -> None:
    """Refuse spans of ranks that the timeline does not have."""
    for index, span in enumerate(values["spans"]):
        if span.rank >= values["num_ranks"]:
            node.child("spans").items()[index].items()[1].integer(0, values["num_ranks"] - 1)


TIMELINE: Document[Timeline] = Document("penstock-timeline", 1, record(Timeline, settle=_settled), ("extra",))


def write_timeline(path: str | Path, timeline: Timeline, extra: Mapping[str, object] | None = None) -> None:
    """Write a timeline file; a span is [action, rank, stream, start_ns, end_ns]."""
    TIMELINE.write(path, timeline, extra=extra or {})


def read_timeline(path: str | Path) -> Timeline:
    """Read a timeline file."""
    return TIMELINE.read(path)
