"""Why ranks idle: every nanosecond in which a rank does not compute has exactly one cause.

A rank is idle from the start to the end of the step wherever it runs no F, B, I, W or R, so that the causes add up
to bubble ratio x ranks x step time. Before an action that starts late, the input that arrives last
decides (the rank's own order is no reason to be idle):

- ``communication``: the input was made and on its way, or the rank's stream was taken by transfers;
- ``waiting at a join``: all the inputs from other stages had arrived, this one was not made yet;
- otherwise the rank waits for the stage that makes it. Before the rank's first backward that is
  ``warm-up`` (the pipeline fills), behind its last forward ``cool-down`` (it drains); in between it is
  ``imbalance`` while the rank at the root of the wait is busy and has more work in the step than the waiting one,
  else ``waiting for stage s``. The root is found by asking the same of the rank that is waited for; when that
  ends in a message on its way, the cause is ``communication``.

Before a rank's first action it is ``warm-up``, behind its last ``cool-down``; ``reduction`` and ``optimizer``
are what REDUCE and OPT take of a rank that computes nothing. Leaves out causes inside an action.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs
from simulator.actions import Kind
from simulator.arrivals import Arrivals, Input
from simulator.schedule import Schedule
from simulator.timeline import Span, Timeline

WARM_UP, COOL_DOWN, COMMUNICATION = "warm-up", "cool-down", "communication"
JOIN, IMBALANCE, REDUCTION, OPTIMIZER = "waiting at a join", "imbalance", "reduction", "optimizer"
_ALWAYS_SHOWN = (WARM_UP, COOL_DOWN, COMMUNICATION, JOIN, IMBALANCE)
_CLOSING = {Kind.REDUCE: REDUCTION, Kind.OPT: OPTIMIZER}
_BACKWARD = (Kind.B, Kind.I)


@dataclass(frozen=True, slots=True)
class Idle:
    """A stretch of idle time of one rank.

    Attributes
    ----------
    rank, start_ns, end_ns : int
    cause : str
    stage : int
        The stage that is waited for, -1 for none.
    root : int
        The rank whose work holds this one up, -1 for none.
    """

    rank: int
    start_ns: int
    end_ns: int
    cause: str
    stage: int = -1
    root: int = -1

    @property
    def time_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class BubbleCauses:
    """Idle time of all ranks.

    Attributes
    ----------
    num_ranks : int
    idles : tuple of Idle
        In order of rank and time; two of one rank never overlap.
    """

    num_ranks: int
    idles: tuple[Idle, ...]

    @cached_property
    def per_rank(self) -> tuple[dict[str, int], ...]:
        """For each rank the ns of each cause that it has."""
        rows: tuple[dict[str, int], ...] = tuple({} for _ in range(self.num_ranks))
        for idle in self.idles:
            rows[idle.rank][idle.cause] = rows[idle.rank].get(idle.cause, 0) + idle.time_ns
        return rows

    @cached_property
    def totals(self) -> dict[str, int]:
        """For each cause the ns summed over ranks; the causes without a name in them are there even at 0."""
        return self.over([1] * self.num_ranks)

    def over(self, sizes: Sequence[int]) -> dict[str, int]:
        """Return `totals` where each rank represents several that work in lockstep, as many as `sizes` says."""
        sums = dict.fromkeys(_ALWAYS_SHOWN, 0)
        for row, size in zip(self.per_rank, sizes, strict=True):
            for cause in sorted(row):
                sums[cause] = sums.get(cause, 0) + size * row[cause]
        return sums


def bubble_causes(schedule: Schedule, costs: Costs, timeline: Timeline) -> BubbleCauses:
    """Account for all idle time of a timed schedule.

    Parameters
    ----------
    schedule : Schedule
        Lowered or not; the timeline holds its compute actions.
    costs : Costs
        What the timeline was made with.
    timeline : Timeline

    Raises
    ------
    InvalidInput
        When the three do not belong together: other ranks, or an action that the timeline lacks.
    """
    if not costs.num_ranks == schedule.graph.num_ranks == timeline.num_ranks:
        raise InvalidInput(
            f"costs of {costs.num_ranks} ranks, a schedule of {schedule.graph.num_ranks} and a timeline of "
            f"{timeline.num_ranks}; give the costs and the schedule that were simulated"
        )
    account = _Account(schedule, timeline)
    account.run()
    return BubbleCauses(timeline.num_ranks, tuple(idle for row in account.idles for idle in row))


@dataclass(frozen=True, slots=True)
class _Gap:
    """Time between two actions of a rank; `after` is None at the end of the step, `first` before the first action."""

    rank: int
    start_ns: int
    end_ns: int
    after: Span | None
    first: bool


class _Account:
    """Idle time found so far. Gaps are taken by their ends, so that what a wait leads back to is there."""

    def __init__(self, schedule: Schedule, timeline: Timeline) -> None:
        self.arrivals = Arrivals(schedule, timeline)
        self.begin_ns = min((span.start_ns for span in timeline.spans), default=0)
        self.end_ns = self.begin_ns + timeline.step_time_ns
        self.rows = timeline.compute_spans
        self.work = [sum(span.end_ns - span.start_ns for span in row) for row in self.rows]
        self.idles: list[list[Idle]] = [[] for _ in self.rows]
        self.filled = [
            next((s.start_ns for s in row if s.action.kind in _BACKWARD), self.begin_ns) for row in self.rows
        ]
        self.drains = [
            max((s.end_ns for s in row if s.action.kind is Kind.F), default=self.begin_ns) for row in self.rows
        ]
        self.closing: list[list[Span]] = [[] for _ in self.rows]
        for span in sorted(timeline.spans, key=lambda s: s.start_ns):
            if span.action.kind in _CLOSING:
                self.closing[span.rank].append(span)

    def run(self) -> None:
        """Give every idle nanosecond its cause."""
        gaps = (gap for rank in range(len(self.rows)) for gap in self._gaps(rank))
        for gap in sorted(gaps, key=lambda g: (g.end_ns, g.start_ns)):
            self.idles[gap.rank] += self._joined(self._explain(gap))

    def _gaps(self, rank: int) -> Iterator[_Gap]:
        now, first = self.begin_ns, True
        for span in self.rows[rank]:
            if span.start_ns > now:
                yield _Gap(rank, now, span.start_ns, span, first)
            now, first = max(now, span.end_ns), False
        if self.end_ns > now:
            yield _Gap(rank, now, self.end_ns, None, False)

    def _explain(self, gap: _Gap) -> Iterator[Idle]:
        """Take out what REDUCE and OPT use, and explain the rest."""
        now = gap.start_ns
        for span in self.closing[gap.rank]:
            start, end = max(now, span.start_ns), min(gap.end_ns, span.end_ns)
            if start < end and (gap.after is None or span.stream == "compute"):
                yield from self._waiting(gap, now, start)
                yield Idle(gap.rank, start, end, _CLOSING[span.action.kind])
                now = end
        yield from self._waiting(gap, now, gap.end_ns)

    def _waiting(self, gap: _Gap, start_ns: int, end_ns: int) -> Iterator[Idle]:
        """Split one stretch at the moments when inputs were made and arrived."""
        if start_ns == end_ns:
            return
        if gap.after is None or gap.first:
            yield Idle(gap.rank, start_ns, end_ns, COOL_DOWN if gap.after is None else WARM_UP)
            return
        late = self.arrivals.of(gap.after.action)
        last = max(late, key=lambda i: (i.arrived_ns, i.made.end_ns), default=None)
        made = min(max(start_ns, last.made.end_ns), end_ns) if last else start_ns
        if last:
            alone = min(max(start_ns, self._others_there(gap.after, last, late)), made)
            yield from self._for_stage(gap, last, start_ns, alone)
            yield Idle(gap.rank, alone, made, JOIN, last.made.action.stage, last.made.rank)
        yield Idle(gap.rank, made, end_ns, COMMUNICATION, last.made.action.stage if last else -1)

    def _others_there(self, after: Span, last: Input, late: tuple[Input, ...]) -> int:
        """Return when all inputs from stages other than the last one's had arrived; the end of time without any."""
        own = (last.made.action.stage, after.action.stage)
        others = [each.arrived_ns for each in late if each.made.action.stage not in own]
        return max(others, default=self.end_ns)

    def _for_stage(self, gap: _Gap, last: Input, start_ns: int, end_ns: int) -> Iterator[Idle]:
        """Follow a wait to its root, stretch by stretch."""
        stage, now = last.made.action.stage, start_ns
        rank = last.made.rank
        first = bisect_right(self.idles[rank], start_ns, key=lambda idle: idle.end_ns)
        for idle in self.idles[rank][first:]:
            start, end = max(now, idle.start_ns), min(end_ns, idle.end_ns)
            if start >= end:
                break
            yield Idle(gap.rank, now, start, self._cause(gap, stage, rank), stage, rank)
            carried = idle.cause == COMMUNICATION
            cause = COMMUNICATION if carried else self._cause(gap, stage, idle.root)
            yield Idle(gap.rank, start, end, cause, stage, idle.root)
            now = end
        yield Idle(gap.rank, now, end_ns, self._cause(gap, stage, rank), stage, rank)

    def _cause(self, gap: _Gap, stage: int, root: int) -> str:
        if gap.end_ns <= self.filled[gap.rank]:
            return WARM_UP
        if gap.start_ns >= self.drains[gap.rank]:
            return COOL_DOWN
        if root >= 0 and self.work[root] > self.work[gap.rank]:
            return IMBALANCE
        return f"waiting for stage {stage}"

    @staticmethod
    def _joined(idles: Iterable[Idle]) -> Iterator[Idle]:
        """Drop empty stretches and join those that are alike and touch."""
        before: Idle | None = None
        for idle in idles:
            if idle.start_ns == idle.end_ns:
                continue
            if before and replace(before, end_ns=idle.end_ns) == replace(idle, start_ns=before.start_ns):
                before = replace(before, end_ns=idle.end_ns)
                continue
            if before:
                yield before
            before = idle
        if before:
            yield before
