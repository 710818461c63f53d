"""Time of flash attention: share of peak by head width and length, the masked half skipped.

Forward: two matmuls over all pairs of query and key that see each other; backward: five (the scores once more).
Leaves out: attention that writes its scores (priced as matmuls and elementwise operators), dropout inside it.
"""

from itertools import pairwise

from costmodel.roofline import tables
from costmodel.roofline.rates import Rates
from costmodel.roofline.tables import AttentionRow, Scenarios
from costmodel.work import Work

BLOCK_QUERIES = 128
"""Queries that one processor takes at a time."""


def num_pairs(work: Work) -> int:
    """Return how many (query, key) pairs one head of one sample computes."""
    masked = min(work.tokens, work.context) if work.causal else 0
    return work.tokens * work.context - masked * (masked - 1) // 2


def attention_ns(rates: Rates, work: Work, samples: int) -> tuple[Scenarios, Scenarios]:
    """Return forward and backward of attention over so many samples."""
    forward, backward = 2 * (work.inner + work.outer), 2 * (3 * work.inner + 2 * work.outer)
    moved = samples * work.tokens * work.heads * (work.inner + work.outer)
    moved += samples * work.context * work.kv_heads * (work.inner + work.outer)
    return (
        _part_ns(rates, work, samples, "forward", forward, moved * rates.element_bytes),
        _part_ns(rates, work, samples, "backward", backward, 2 * moved * rates.element_bytes),
    )


def _part_ns(rates: Rates, work: Work, samples: int, part: str, pair_flop: int, size_bytes: int) -> Scenarios:
    """Return the time of one direction; no less than the processor takes that has the last queries."""
    rows = tables.attention()[rates.family, part]
    width = max(work.inner, work.outer, 1)
    slower = [(1 + rows[0].half_length / max(1, work.context)) / _fraction(rows, width, i) for i in range(3)]
    all_ns = samples * work.heads * num_pairs(work) * pair_flop / rates.peak
    last_ns = min(BLOCK_QUERIES, work.tokens) * work.context * pair_flop * rates.num_sm / rates.peak
    bandwidth = tables.traffic()["attention", "forward"].fraction
    launch = tables.overhead("kernel_ns")
    low, central, high = (
        launch[i] + max(max(all_ns, last_ns) * slower[i], size_bytes / (rates.bandwidth * bandwidth[i]))
        for i in range(3)
    )
    return low, central, high


def _fraction(rows: tuple[AttentionRow, ...], width: int, scenario: int) -> float:
    """Return the share of peak at a head width; time is interpolated, so that wider heads are never faster."""
    costs = [(row.head_width, row.head_width / row.fraction[scenario]) for row in rows]
    for (narrow, less), (wide, more) in pairwise(costs):
        if narrow <= width <= wide:
            return width / (less + (more - less) * (width - narrow) / (wide - narrow))
    return rows[0 if width < costs[0][0] else -1].fraction[scenario]
