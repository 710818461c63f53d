"""The efficiency tables in this folder, each row with its source and confidence.

Fractions are of a device's data-sheet peak, given as (high, central, low) so that they make (low, central, high)
times. Leaves out which device has which peak: `costmodel.machines.catalogue`.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent

Scenarios = tuple[float, float, float]
"""One value each for the low, the central and the high time."""


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """How a kernel bound by memory moves bytes: factor on its operator's passes, kernels, fraction of bandwidth."""

    factor: float
    num_kernels: int
    fraction: Scenarios


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of a matmul's output that one processor computes, and the fraction of its rate that this reaches."""

    rows: int
    columns: int
    fraction: Scenarios


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """Fraction of peak of flash attention at one head width, half of it reached at `half_length` keys."""

    head_width: int
    half_length: int
    fraction: Scenarios


@cache
def rows(name: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a table of this folder."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def kernels() -> Mapping[tuple[str, str], float]:
    """Return by (family, kernel) by how much a kernel of attention takes longer than the family's table says."""
    return {(row["family"], row["kernel"]): float(row["factor"]) for row in rows("kernels")}


@cache
def achievable() -> Mapping[tuple[str, str], Scenarios]:
    """Return by (device, precision) the fraction of peak that large matmuls reach.

    The row ``catalogue`` holds factors on the catalogue's own fraction, the rows ``*`` are for any other device.
    """
    return {(row["device"], row["precision"]): _fraction(row) for row in rows("achievable")}


@cache
def processors() -> Mapping[str, tuple[int, str]]:
    """Return by device its number of streaming multiprocessors and the family of its attention kernels."""
    return {row["device"]: (int(row["num_sm"]), row["family"]) for row in rows("processors")}


@cache
def tiles() -> tuple[Tile, ...]:
    """Return the tiles that a matmul may use."""
    return tuple(Tile(int(row["rows"]), int(row["columns"]), _fraction(row)) for row in rows("tiles"))


@cache
def traffic() -> Mapping[tuple[str, str], KernelTraffic]:
    """Return by (kind, part) how kernels bound by memory behave."""
    return {
        (row["kind"], row["part"]): KernelTraffic(float(row["traffic"]), int(row["kernels"]), _fraction(row))
        for row in rows("traffic")
    }


@cache
def attention() -> Mapping[tuple[str, str], tuple[AttentionRow, ...]]:
    """Return by (family, part) the rows of attention, by rising head width."""
    found: dict[tuple[str, str], tuple[AttentionRow, ...]] = {}
    for row in rows("attention"):
        key = (row["family"], row["part"])
        entry = AttentionRow(int(row["head_width"]), int(row["half_length"]), _fraction(row))
        found[key] = (*found.get(key, ()), entry)
    return found


@cache
def overhead(what: str) -> Scenarios:
    """Return an overhead: of starting a kernel, of grouping matmuls, of a tile's start and end."""
    (row,) = (row for row in rows("overheads") if row["what"] == what)
    return float(row["low"]), float(row["central"]), float(row["high"])


def _fraction(row: Mapping[str, str]) -> Scenarios:
    return float(row["high"]), float(row["central"]), float(row["low"])
