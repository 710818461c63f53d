"""The catalogue as a table for people: what docs/schedules.md shows. Models nothing."""

from simulator.schedules import SCHEDULES
from simulator.schedules.kind import ClosedForm, ScheduleKind

HEADINGS = ("schedule", "placement", "backward", "what it does", "bubble", "peak activations", "source")


def catalogue_table() -> str:
    """Return the catalogue as a Markdown table, one row a schedule."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_row, SCHEDULES.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(kind: ScheduleKind) -> tuple[str, ...]:
    return (
        f"`{kind.name}`",
        kind.placement,
        "split" if kind.split else "fused",
        kind.description,
        _form(kind.bubble),
        _form(kind.peak),
        kind.source,
    )


def _form(form: ClosedForm | None) -> str:
    if form is None:
        return "no closed form"
    return f"{form.text} ({form.condition})"
