"""Closed forms of bubble and peak activations, and the document that prints them."""

import re
from fractions import Fraction

import pytest

from simulator.schedules import SCHEDULES, Uniform
from simulator.schedules.kind import ClosedForm, ScheduleKind
from simulator.uniform import uniform_costs
from tests.properties.schedule_promises import closed_form_failures, times_of
from tests.support.repository import ROOT

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


def test_closed_forms_are_exact_wherever_they_claim_to_hold() -> None:
    assert closed_form_failures(300) == []


@pytest.mark.parametrize("m", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_gpipe_and_1f1b_always_take_p_minus_1_times_t_more_than_the_work(name: str, m: int) -> None:
    assert times_of(name, uniform_costs(16, 1, 3, 5, 7), m).step_time_ns == (m + 15) * 15


def test_peaks_are_those_of_the_literature() -> None:
    def peak(name: str, v: int = 1) -> Fraction | int:
        form = SCHEDULES[name].peak
        assert form
        return form.value(Uniform(8, v, 64, Fraction(1), Fraction(1), Fraction(1)), 0)

    assert peak("gpipe") == 64
    assert peak("1f1b") == 8
    assert peak("eager-1f1b") == 15
    assert peak("interleaved-1f1b", 2) == Fraction(23, 2)  # p + (p - 1) / v
    assert peak("looped-bfs", 2) == 64
    assert peak("zb-h1") == 8
    assert peak("zb-h2") == 15


def test_the_document_shows_the_table() -> None:
    text = (ROOT / "docs" / "schedules.md").read_text()
    assert catalogue_table() in text


def test_every_schedule_names_its_source_and_says_what_it_does() -> None:
    for name, kind in SCHEDULES.items():
        assert kind.name == name
        assert kind.placement in ("line", "loop", "wave", "two-way", "graph")
        assert kind.source
        assert kind.description
