"""What people read of plans side by side: tables of speed, of memory and messages, of idle time, and of what differs.

The command prints them and the page shows them. Leaves out how the figures come about.
"""

from collections.abc import Callable, Iterator, Sequence

from planner.report.comparison.compared import ASSUMED, ComparedPlan
from planner.report.comparison.measured import Measurement
from planner.report.summary.figures import figures, told
from planner.report.summary.text import Table, duration, percent, size
from simulator.attribution import Attribution

Plans = Sequence[ComparedPlan]
Differing = Callable[[ComparedPlan], list[str]]
"""Returns in what a plan differs from the first."""

NUM_DRIFTS = 5
"""Kinds of action that people are shown."""
NUM_CAUSES = 6
"""Causes of idle time with a column of their own; the rest share one."""


def tables(plans: Plans, differing: Differing) -> list[str | Table]:
    """Return what people read of some plans."""
    names = [each.short + (" *" if differing(each) else "") for each in plans]
    named = list(zip(names, plans, strict=True))
    return [
        *_models(plans),
        _filled(("plan", *_SPEED), [(name, *_speed(each)) for name, each in named]),
        Table(_ROOM, [(name, *_room(each)) for name, each in named], _ROOM_TITLE),
        _idle(named),
        Table(
            ("plan", "gap", "lower bound", "status", "what the bound ranges over"),
            [(name, *_scope(each)) for name, each in named],
        ),
        *_differences(plans, differing),
        *_measured(plans),
    ]


def difference(measurement: Measurement) -> str:
    """Say where the difference between measured and predicted comes from."""
    found = measurement.attribution
    parts = ", ".join(f"{part} {_signed(time_ns)}" for part, time_ns in _parts(found).items())
    return f"difference on rank {found.rank}: {parts}"


def _models(plans: Plans) -> list[str]:
    """Say so where the plans are of several models or batches."""
    names = {each.plan.fingerprint: each.plan.model_name for each in plans}
    if len(names) > 1:
        return [f"plans of {len(names)} different models ({', '.join(names.values())}): their times do not compare"]
    if plans[0].samples > 1 or len({each.samples for each in plans}) > 1:
        return ["the plans' batches differ: their times compare by sample, not by step"]
    return []


_SPEED = {"step": "step_time_ns", "samples/s": "samples_per_s", "tokens/s": "tokens_per_s", "MFU": "mfu_causal",
          "bubble": "bubble_ratio", "peak memory": "peak_memory_bytes", "gap": "gap", "schedule": "schedule",
          "ranks": "ranks", "stages": "stages", "depth": "depth"}  # fmt: skip
"""Columns, and the figures in them."""


def _filled(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return the table without the columns in which no row has anything to say."""
    kept = [place for place in range(len(columns)) if any(row[place] != "-" for row in rows)]
    return Table(tuple(columns[place] for place in kept), [tuple(row[place] for place in kept) for row in rows])


def _speed(compared: ComparedPlan) -> tuple[str, ...]:
    return tuple(told(name, value) for name, value in figures(compared.plan, _SPEED.values()).items())


_ROOM = ("plan", "highest peak", "on rank", "lowest peak", "limit", "messages", "sent", "on their way", "reductions")
_ROOM_TITLE = "memory of a rank; messages between stages and reductions of gradients in one step, summed over ranks"


def _room(compared: ComparedPlan) -> tuple[str, ...]:
    peaks, sent = compared.plan.prediction.peak_memory_bytes, compared.communication
    limit = compared.limit_bytes
    return (
        size(max(peaks)),
        str(peaks.index(max(peaks))),
        size(min(peaks)),
        "-" if limit is None else size(limit),
        str(sent.messages),
        size(sent.message_bytes),
        duration(sent.message_ns),
        duration(sent.reduction_ns),
    )


def _idle(named: Sequence[tuple[str, ComparedPlan]]) -> Table:
    """Return the table of idle time by cause: the causes that take most, and the rest together."""
    found = [each.causes for _, each in named]
    sums = {cause: sum(row.get(cause, 0) for row in found) for cause in dict.fromkeys(c for row in found for c in row)}
    shown = [cause for cause in sorted(sums, key=lambda c: -sums[c]) if sums[cause]]
    columns, rest = shown[:NUM_CAUSES], shown[NUM_CAUSES:]
    rows = []
    for (name, each), causes in zip(named, found, strict=True):
        whole = len(each.plan.orders) * each.predicted.step_time_ns or 1
        parts = [[cause] for cause in columns] + ([rest] if rest else [])
        rows.append((name, *(percent(sum(causes.get(c, 0) for c in part) / whole) for part in parts)))
    columns += ["other"] if rest else []
    return Table(("plan", *columns), rows, "idle time by cause, as shares of ranks x step time")


def _scope(compared: ComparedPlan) -> tuple[str, ...]:
    search = compared.plan.search
    return percent(search.gap), duration(search.lower_bound_ns), search.status, search.scope


def _differences(plans: Plans, differing: Differing) -> Iterator[Table]:
    """Yield the table of what differs, if anything does."""
    found = {name for each in plans for name in differing(each)}
    if found:
        columns = [name for name in ("model", "batch", *ASSUMED) if name in found]
        rows = [(each.short, *(_said(each, name) for name in columns)) for each in plans]
        title = "* differs in this from the first plan: the step times do not compare"
        yield Table(("plan", *columns), rows, title + (", those of a sample do" if columns == ["batch"] else ""))


def _said(compared: ComparedPlan, name: str) -> str:
    plan = compared.plan
    asked = {"model": plan.model_name, "batch": f"{plan.batch.global_size} samples",
             "habits": ", ".join(plan.assumptions.habits)}  # fmt: skip
    found = asked[name] if name in asked else getattr(plan.assumptions, name)
    return found or "not recorded"


def _measured(plans: Plans) -> list[Table]:
    """Return the tables of the measured runs: the step times and their differences, and what is furthest off."""
    measured = [(each.short, each.measurement) for each in plans if each.measurement]
    if not measured:
        return []
    steps = [_step(name, measurement) for name, measurement in measured]
    drifts = [row for name, measurement in measured for row in _drifts(name, measurement)]
    parts = ("compute", "communication", "waiting", "Python", "on rank")
    columns = ("plan", "predicted", "measured", "error", "difference", *parts)
    furthest = ("plan", "actions", "number", "predicted", "measured", "difference")
    return [
        Table(columns, steps, "error: of the prediction; differences: measured minus predicted"),
        Table(furthest, drifts, "actions furthest from the plan, summed over micro-batches"),
    ]


def _step(name: str, measurement: Measurement) -> tuple[str, ...]:
    found = measurement.attribution
    return (
        name,
        duration(measurement.predicted.step_time_ns),
        duration(measurement.measured.step_time_ns),
        f"{measurement.error_percent:+.2f} %",
        _signed(found.parts.total),
        *map(_signed, _parts(found).values()),
        str(found.rank),
    )


def _drifts(name: str, measurement: Measurement) -> Sequence[tuple[str, ...]]:
    return [
        (
            name,
            f"{drift.kind} of stage {drift.stage}",
            str(drift.num_actions),
            duration(drift.predicted_ns),
            duration(drift.measured_ns),
            _signed(drift.difference_ns),
        )
        for drift in measurement.attribution.drifts[:NUM_DRIFTS]
    ]


def _parts(found: Attribution) -> dict[str, int]:
    parts = found.parts
    return {
        "compute": parts.compute,
        "communication": parts.communication,
        "waiting": parts.waiting,
        "Python": parts.python,
    }


def _signed(time_ns: int) -> str:
    return f"{time_ns / 1e6:+.3f} ms"
