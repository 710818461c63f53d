"""The catalogue as a table for people: what docs/schedules.md shows. Models nothing."""

import re

from simulator.schedules import SCHEDULES
from simulator.schedules.kind import ClosedForm, ScheduleKind

HEADINGS = ("schedule", "stages, backward", "what it does", "bubble", "peak activations", "source")


def catalogue_table() -> str:
    """Return the catalogue as a Markdown table, one row a schedule."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_row, SCHEDULES.values())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(kind: ScheduleKind) -> tuple[str, ...]:
    return (
        f"`{kind.name}`",
        f"{kind.placement}, {'split' if kind.split else 'fused'}",
        kind.description,
        _form(kind.bubble),
        _form(kind.peak),
        ", ".join(re.findall(r"(?:arXiv|doi):[\w./]+", kind.source)) or kind.source.partition(";")[0],
    )


def _form(form: ClosedForm | None) -> str:
    return f"{form.text} ({form.condition})" if form else ""
