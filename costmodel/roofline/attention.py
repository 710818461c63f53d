"""Time of flash attention: share of peak by head width and length, the masked half skipped.

Forward: two matmuls over all pairs of query and key that see each other; backward: five (the scores once more).
Leaves out: attention that writes its scores (priced as matmuls and elementwise operators), dropout inside it.
"""

from itertools import pairwise

from costmodel.model.work import Work
from costmodel.roofline import tables
from costmodel.roofline.rates import Rates
from costmodel.roofline.tables import AttentionRow, Scenarios

BLOCK_QUERIES = 128
"""Queries that one processor takes at a time."""


def kernel_factor(device_id: str, kernel: str) -> float:
    """Return by how much a kernel takes longer on a device than `attention_ns` says, which is between kernels."""
    known = tables.processors()
    return tables.kernels().get((known.get(device_id, known["*"])[1], kernel), 1.0)


def num_pairs(work: Work) -> int:
    """Return how many (query, key) pairs one head of one sample computes."""
    masked = min(work.tokens, work.context) if work.causal else 0
    return work.tokens * work.context - masked * (masked - 1) // 2


def attention_ns(rates: Rates, work: Work, samples: int) -> tuple[Scenarios, Scenarios]:
    """Return forward and backward of attention over a number of samples."""
    moved = samples * work.tokens * work.heads * (work.inner + work.outer)
    moved += samples * work.context * work.kv_heads * (work.inner + work.outer)
    return (
        _part_ns(rates, work, samples, "forward", (1, 1), moved * rates.element_bytes),
        _part_ns(rates, work, samples, "backward", (3, 2), 2 * moved * rates.element_bytes),
    )


def _part_ns(rates: Rates, work: Work, samples: int, part: str, matmuls: tuple[int, int], size_bytes: int) -> Scenarios:
    """Return the time of one direction; no less than the processor takes that has the last queries.

    `matmuls` says how many have the width of queries and keys, and of values, as their inner or outer dimension.
    """
    rows = tables.attention()[rates.family, part]
    short = 1 + rows[0].half_length / max(1, work.context)
    pairs = max(samples * work.heads * num_pairs(work), min(BLOCK_QUERIES, work.tokens) * work.context * rates.num_sm)
    bandwidth = tables.traffic()["attention", "forward"].fraction
    launch = tables.overhead("kernel_ns")
    low, central, high = (
        launch[i]
        + max(
            2 * pairs * short * (matmuls[0] * _cost(rows, work.inner, i) + matmuls[1] * _cost(rows, work.outer, i))
            / rates.peak,
            size_bytes / (rates.bandwidth * bandwidth[i]),
        )
        for i in range(3)
    )  # fmt: skip
    return low, central, high


def _cost(rows: tuple[AttentionRow, ...], width: int, scenario: int) -> float:
    """Return width / share of peak, straight lines between the table's widths, so that wider is never faster."""
    costs = [(row.head_width, row.head_width / row.fraction[scenario]) for row in rows]
    for (narrow, less), (wide, more) in pairwise(costs):
        if narrow <= width <= wide:
            return less + (more - less) * (width - narrow) / (wide - narrow)
    return width / rows[0 if width < costs[0][0] else -1].fraction[scenario]
