"""Time of matmuls by shape: tiles dealt to processors in waves, or memory traffic, whichever is more.

Of the tiles of `tiles.csv`, whole or with the inner dimension split, the fastest counts, as a library's heuristic
would choose. The lower value lets a wave be filled in part (persistent kernels); the others wait for whole waves.
Leaves out: operands that do not fit the cache and are read again, alignment of odd shapes, clocks that fall under load
beyond what the achievable share says.
"""

from functools import lru_cache
from math import ceil, inf

from costmodel.roofline import tables
from costmodel.roofline.rates import Rates
from costmodel.roofline.tables import Scenarios

SPLITS = (1, 4, 16)
"""Into how many parts a matmul may cut its inner dimension, to give every processor work."""
PARTIAL_BYTES = 8
"""An element of a partial sum, written and read in fp32."""


def matmul_ns(rates: Rates, rows: int, inner: int, outer: int, groups: int = 1) -> Scenarios:
    """Return (low, central, high) of `groups` matmuls (rows x inner) x (inner x outer) in one kernel.

    Monotone in every argument, since each candidate is, and so is their minimum.
    """
    low, central, high = (scenario_ns(rates, rows, inner, outer, groups, scenario) for scenario in range(3))
    return low, central, high


def scenario_ns(rates: Rates, rows: int, inner: int, outer: int, groups: int, scenario: int) -> float:
    """Return one of the three values of `matmul_ns`; 1 is the central one."""
    factor = tables.overhead("grouped_factor")[scenario] if groups > 1 else 1.0
    narrow = rates.operand_bytes < rates.element_bytes  # an operand is read and written as it is cast
    moved = groups * rows * inner * (rates.element_bytes + rates.operand_bytes)
    quantise = moved / rates.bandwidth if narrow else 0.0
    return _fastest_ns(rates, rows, inner, outer, groups, scenario) * factor + scenario * quantise


@lru_cache(maxsize=65536)
def _fastest_ns(rates: Rates, rows: int, inner: int, outer: int, groups: int, scenario: int) -> float:
    """Return the time of the fastest tile and split in one scenario (0: low)."""
    lost = tables.overhead("tile_depth")[scenario]
    launch = tables.overhead("kernel_ns")[scenario]
    bandwidth = rates.bandwidth * tables.traffic()["matmul", "forward"].fraction[scenario]
    result = groups * rows * outer
    moved = groups * (rows + outer) * inner * rates.operand_bytes + result * rates.element_bytes
    best = inf
    for tile_rows, tile_columns, tile_ns in _tiles(rates, scenario):
        blocks = groups * ceil(rows / tile_rows) * ceil(outer / tile_columns) / rates.num_sm
        for split in SPLITS:
            waves = max(1.0, blocks * split) if scenario == 0 else ceil(blocks * split)
            compute_ns = waves * tile_ns * (inner / split + lost)
            partial = result * split * PARTIAL_BYTES if split > 1 else 0
            start_ns = launch if split == 1 else 2 * launch
            best = min(best, start_ns + max(compute_ns, (moved + partial) / bandwidth))
    return best


@lru_cache(maxsize=1024)
def _tiles(rates: Rates, scenario: int) -> tuple[tuple[int, int, float], ...]:
    """Return rows, columns, and the time of a wave by element of the inner dimension, of each tile."""
    share = rates.peak * rates.matmul[scenario]
    return tuple(
        (tile.rows, tile.columns, 2 * tile.rows * tile.columns * rates.num_sm / share / tile.fraction[scenario])
        for tile in tables.tiles()
    )
