"""What ``penstock whatif`` answers: rows, tornado and scenarios, as JSON, as tables and as a picture.

Leaves out how they were found (`planner.commands.whatif`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.candidate.fit import NO_LIMIT
from planner.plan import Plan
from planner.plan.fitting import MAY_NOT_FIT
from planner.plan.rung import rung
from planner.report.summary.text import Table, duration, percent, size
from planner.report.whatif.outcome import Consequence, saturates
from planner.report.whatif.settings import DEVICES, Change
from planner.report.whatif.tornado import Bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.report.whatif.scenarios import StepSpread

MOST_BARS = 12
"""Bars of a tornado that people are told; the JSON has all."""


@dataclass
class ChangesAnswer:
    """What is known so far.

    Attributes
    ----------
    plan : Plan
    fixed, swept : tuple of Change
        What is always changed, and what by turns.
    rows : list of Consequence
        The plan as it is first, but for a sweep of devices.
    anew : dict of int to Consequence
        What would now be planned, by row.
    refused : list of (sequence of Change, str)
        PlanChanges under which nothing could be planned, and why.
    base_ns : int
        Step time that a tornado turns about.
    by : float
        By which share each of its inputs moves.
    drawn : mapping
        How scenarios were drawn.
    """

    plan: Plan
    fixed: tuple[Change, ...]
    swept: tuple[Change, ...]
    rows: list[Consequence] = field(default_factory=list)
    anew: dict[int, Consequence] = field(default_factory=dict)
    refused: list[tuple[Sequence[Change], str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    base_ns: int = 0
    by: float = 0.0
    spread: "StepSpread | None" = None
    drawn: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def by_devices(self) -> bool:
        """Whether every row is another plan on a number of devices."""
        return bool(self.swept) and self.swept[0].kind == DEVICES

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        body: dict[str, object] = {
            "step_time_ns": self.plan.prediction.step_time_ns,
            "rows": [self._row_json(index) for index in range(len(self.rows))],
            "refused": [{"change": _json(changes), "why": why} for changes, why in self.refused],
            "interrupted": self.interrupted,
        }
        if self.bars:
            bars = [bar.to_json() for bar in self.bars]
            body["tornado"] = {"by": self.by, "step_time_ns": self.base_ns, "bars": bars}
        if self.spread:
            body["scenarios"] = {**self.drawn, **self.spread.to_json()}
        return body

    def _row_json(self, index: int) -> dict[str, object]:
        each = self.rows[index]
        more: dict[str, object] = {}
        if self.by_devices:
            more = {
                "efficiency": self._efficiency(each),
                "saturates": saturates(self.rows[0], each),
                "device_ns_per_sample": dict(each.device_ns),
            }
        elif index in self.anew:
            more = {"replanned": self.anew[index].to_json()}
        return {"change": _json(each.changes), **each.to_json(), **more}

    def _efficiency(self, each: Consequence) -> float:
        """Return the samples a second of a device, against the first row's."""
        first = self.rows[0]
        return each.samples_per_s / each.num_devices / (first.samples_per_s / first.num_devices)

    def figure(self) -> "Figure":
        """Draw what there is; timelines where only ``--set`` was asked."""
        from planner.report.comparison.compared import ComparedPlan
        from planner.report.comparison.pictures import compare_figure
        from planner.report.whatif.pictures import changes_figure

        if not (self.swept or self.bars or self.spread):
            rows = [(called(each.changes), each.as_predicted) for each in self.rows]
            return compare_figure([ComparedPlan(name, plan, short=name) for name, plan in rows], comparable=True)
        first = 0 if self.by_devices else 1
        swept = self.rows[first:] if self.swept else []
        best = [self.anew[i] for i in range(first, len(self.rows)) if i in self.anew]
        return changes_figure(swept, best if len(best) == len(swept) else [], self.bars, self.base_ns, self.spread)

    def text(self) -> Iterator[str | Table]:
        """Say it to people."""
        yield self._scaling() if self.by_devices else self._table()
        own_ns, now_ns = self.plan.prediction.step_time_ns, self.rows[0].step_time_ns
        if not self.by_devices and own_ns != now_ns:
            yield (
                f"the plan as it is comes to {duration(now_ns)} here, and its file says {duration(own_ns)}: "
                "it was made from another profile, or by other rules"
            )
        notes = dict.fromkeys(note for each in self.rows for note in each.left_out)
        yield from (f"{'estimated' if self.by_devices else 'left out'}: {note}" for note in notes)
        yield from (f"{called(changes)}: {why}" for changes, why in self.refused)
        if self.bars:
            yield self._bars()
        if self.spread:
            yield _quantiles(self.spread)
        if self.interrupted:
            yield "interrupted: the rows above are all that were finished"

    def _table(self) -> Table:
        before = self.rows[0].step_time_ns
        rows = []
        for index, each in enumerate(self.rows):
            cells = (
                called(each.changes),
                duration(each.step_time_ns),
                _against(each.step_time_ns, before),
                f"{each.samples_per_s:.1f}",
                percent(each.times.bubble_ratio),
                size(max(each.peak_memory_bytes)),
                _room(each),
            )
            rows.append((*cells, *([_planned(self.anew.get(index))] if self.anew else [])))
        columns = ("change", "step", "against it", "samples/s", "bubble", "peak memory", "room")
        return Table((*columns, "planned anew") if self.anew else columns, rows)

    def _scaling(self) -> Table:
        rows = [
            (
                str(each.num_devices),
                rung(each.plan),
                str(len(each.plan.stages)),
                duration(each.step_time_ns),
                f"{each.samples_per_s:.1f}",
                percent(self._efficiency(each)),
                saturates(self.rows[0], each) or "-",
            )
            for each in self.rows
        ]
        columns = ("devices", "strategy", "stages", "step", "samples/s", "a device's rate", "grows most a sample")
        return Table(columns, rows, f"planned anew, the batch always {self.plan.batch.global_size}")

    def _bars(self) -> Table:
        rows = [
            (
                bar.key,
                _against(bar.smaller_ns, self.base_ns),
                _against(bar.larger_ns, self.base_ns),
                duration(bar.range_ns),
            )
            for bar in self.bars[:MOST_BARS]
        ]
        more = len(self.bars) - MOST_BARS
        title = f"each input {percent(self.by)} smaller and larger" + (f"; {more} more: see --json" if more > 0 else "")
        return Table(("input", "smaller", "larger", "range of the step"), rows, title)


def called(changes: Sequence[Change]) -> str:
    """Write some changes."""
    return ", ".join(map(str, changes)) or "as it is"


def _json(changes: Sequence[Change]) -> dict[str, str]:
    return {change.key: change.text for change in changes}


def _quantiles(spread: "StepSpread") -> str:
    from planner.report.whatif.scenarios import QUANTILES

    parts = [
        f"p{each} {duration(spread.quantile_ns(each))} ({_against(spread.quantile_ns(each), spread.planned_ns)})"
        for each in QUANTILES
    ]
    return f"{len(spread.steps_ns)} scenarios: planned {duration(spread.planned_ns)}, {', '.join(parts)}"


def _planned(anew: Consequence | None) -> str:
    if anew is None:
        return "-"
    return f"{duration(anew.step_time_ns)} {rung(anew.plan)}, {len(anew.plan.stages)} stages"


def _against(after_ns: int, before_ns: int) -> str:
    return f"{after_ns / max(1, before_ns) - 1:+.2%}"


def _room(each: Consequence) -> str:
    """Say how much memory is left, or lacking."""
    over, rank = each.worst
    if over > 0:
        return f"rank {rank} lacks {size(over)}"
    if -over > NO_LIMIT // 2:
        return "no limit known"
    return f"{size(-over)} left" + f", {each.fits}" * (each.fits == MAY_NOT_FIT)
