"""Tables, and times, sizes and shares written for people."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.printing import unit_of


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads; `title` is above them, and a `width` above 0 is that of a screen's table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    width: int = 0

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.columns, *self.rows)
        ]
        return "\n".join([*([self.title] if self.title else []), *lines])


def duration(time_ns: int | None) -> str:
    """Write a time for people in the unit that fits it, as ``27.0 min`` or ``3.602 s``; a dash where there is none."""
    if time_ns is None:
        return "-"
    _, unit, whole, digits = next((each for each in _TIMES if time_ns >= each[0]), _TIMES[-1])
    return f"{time_ns / whole:.{digits}f} {unit}"


_TIMES = (
    (36_000 * 10**9, "h", 3600 * 10**9, 1), (600 * 10**9, "min", 60 * 10**9, 1), (10**9, "s", 10**9, 3),
    (10**6, "ms", 10**6, 3), (1000, "us", 1000, 1), (0, "ns", 1, 0),
)  # fmt: skip
"""Units of time: from how many ns each is written, its ns, and its decimals."""


def money(cost: float | None) -> str:
    """Write an amount of money; a dash where there is none."""
    return "-" if cost is None else f"{cost:,.0f}" if cost >= 1000 else f"{cost:.4g}"


def amount(number: float) -> str:
    """Write a large number for people: ``15 T``, ``300 B``, ``4.2 M``."""
    name, whole = next(((name, whole) for name, whole in _AMOUNTS if number >= whole), ("", 1))
    return f"{number / whole:.4g} {name}".rstrip()


_AMOUNTS = (("T", 10**12), ("B", 10**9), ("M", 10**6))


def size(size_bytes: int) -> str:
    """Write a size for people in the largest unit that it fills: ``41.25 GiB``."""
    unit, whole = unit_of(size_bytes)
    return f"{size_bytes / whole:.2f} {unit}" if whole > 1 else f"{size_bytes} bytes"


def for_people(text: str) -> str:
    """Return a text of a plan file with its sizes in bytes written for people."""
    return re.sub(r"\b(\d+) bytes\b", lambda found: size(int(found[1])), text)


def percent(ratio: float | None) -> str:
    """Write a ratio for people; a dash where there is none."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
