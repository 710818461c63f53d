"""Tables, and times, sizes and shares written for people."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads; `title` is above them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.columns, *self.rows)
        ]
        return "\n".join([*([self.title] if self.title else []), *lines])


def milliseconds(time_ns: int | None) -> str:
    """Write a time for people; a dash where there is none."""
    return "-" if time_ns is None else f"{time_ns / 1e6:.3f} ms"


def mebibytes(size_bytes: int) -> str:
    """Write a size for people."""
    return f"{size_bytes / 2**20:.1f} MiB"


def unit_of(size_bytes: float) -> tuple[str, int]:
    """Return the largest unit that a size fills, and its bytes."""
    return next((unit for unit in _UNITS if size_bytes >= unit[1]), ("bytes", 1))


def money(cost: float | None) -> str:
    """Write an amount of money; a dash where there is none."""
    return "-" if cost is None else f"{cost:,.0f}" if cost >= 1000 else f"{cost:.4g}"


def amount(number: float) -> str:
    """Write a large number for people: ``15 T``, ``300 B``, ``4.2 M``."""
    name, whole = next(((name, whole) for name, whole in _AMOUNTS if number >= whole), ("", 1))
    return f"{number / whole:.4g} {name}".rstrip()


_AMOUNTS = (("T", 10**12), ("B", 10**9), ("M", 10**6))
_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size(size_bytes: int) -> str:
    """Write a size for people in the largest unit that it fills: ``41.25 GiB``."""
    unit, whole = unit_of(size_bytes)
    return f"{size_bytes / whole:.2f} {unit}" if whole > 1 else f"{size_bytes} bytes"


def percent(ratio: float | None) -> str:
    """Write a ratio for people; a dash where there is none."""
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
