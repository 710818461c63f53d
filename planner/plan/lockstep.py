"""Blocks: the ranks that do one replica's work of a stage together, all in one order.

Tensor and context parallel ranks hold parts of the same thing and work in lockstep: ranks follow each other tensor
innermost, then context, then data. What holds of a block is recorded for its first rank, the lead. Leaves out what
ranks of a block send each other: that is part of their stage's times.
"""

from collections.abc import Sequence
from typing import TypeVar

from costmodel.errors import InvalidInput

Block = tuple[int, ...]
Value = TypeVar("Value")


def in_blocks(ranks: Sequence[int], size: int) -> tuple[Block, ...]:
    """Divide the ranks of a stage into blocks of `size`."""
    if size == 1:
        return tuple((rank,) for rank in ranks)
    return tuple(tuple(ranks[i : i + size]) for i in range(0, len(ranks), size))


def blocks_of(rows: Sequence[Sequence[Block]]) -> tuple[Block, ...]:
    """Return the blocks of all stages: replica by replica, the stage with the lowest rank first.

    Parameters
    ----------
    rows : sequence of sequence of Block
        The blocks of each stage.

    Raises
    ------
    InvalidInput
        When a rank is in two different blocks.
    """
    home: dict[int, Block] = {}
    for block in (block for row in rows for block in row):
        for rank in block:
            if home.setdefault(rank, block) != block:
                raise InvalidInput(
                    f"rank {rank} works with the ranks {list(home[rank])} in one stage and with {list(block)} in "
                    "another; stages that share a rank divide among the same ranks"
                )
    lowest_first = sorted(rows, key=lambda row: min(map(min, row)))
    return tuple(dict.fromkeys(block for row in lowest_first for block in row))


def spread(blocks: Sequence[Block], values: Sequence[Value]) -> tuple[Value, ...]:
    """Return one value a rank from one value a block."""
    by_rank = {rank: value for block, value in zip(blocks, values, strict=True) for rank in block}
    return tuple(by_rank[rank] for rank in sorted(by_rank))
