"""What every operator costs under one configuration, so that a stage is a few differences of prefix sums.

Made once a configuration (degrees, recompute, groups that lie alike) and micro-batch size. Leaves out what copies
of a stage cost together (`costmodel.strategies.gradients`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.strategies.blocks import inside
from costmodel.strategies.kept import Kept
from costmodel.strategies.states import Weights
from costmodel.strategies.unions import Item, UnionSums


@dataclass(frozen=True)
class Vectors:
    """Costs of operators under one configuration.

    Attributes
    ----------
    forward, backward_input, backward_weight : UnionSums
        Times with exposed communication; what several operators gather together counts once.
    recomputed : UnionSums
        The forwards that run again.
    gathered : tuple of tuple
        Items of bytes that operators hold gathered while they run.
    kept : Kept
    weights : Weights
    blocks : tuple of range
        Positions of blocks.
    recompute_spans : tuple of range
        Positions of what recompute makes again together.
    """

    forward: UnionSums
    backward_input: UnionSums
    backward_weight: UnionSums
    recomputed: UnionSums
    gathered: tuple[Item, ...]
    kept: Kept
    weights: Weights
    blocks: tuple[range, ...]
    recompute_spans: tuple[range, ...]

    @cached_property
    def _gathered_at(self) -> tuple[int, ...]:
        largest = [0] * len(self.forward.rows)
        for position, _, size in self.gathered:
            largest[position] = max(largest[position], size)
        return tuple(largest)

    def gathered_bytes(self, operators: Sequence[int]) -> int:
        """Return the most bytes that one of the operators holds gathered."""
        return max((self._gathered_at[i] for i in operators), default=0) if any(self._gathered_at) else 0

    def recompute_peak(self, operators: Sequence[int]) -> int:
        """Return the most bytes that recompute makes again at once, beyond what is kept anyhow."""
        parts = (inside(span, operators) for span in self.recompute_spans)
        return max((self._made_again(part) for part in parts if part), default=0)

    def _made_again(self, part: Sequence[int]) -> int:
        """Return what a block's recompute makes, less the inputs among it that are kept."""
        inputs = sum(
            min(size, self.kept.dropped.size_of[key])
            for i in part
            for key, size in self.kept.kept.rows[i].items()
            if key in self.kept.dropped.rows[i]
        )
        return max(0, self.kept.dropped.over(part) - inputs)

    def largest_block(self, operators: Sequence[int], sums: UnionSums) -> int:
        """Return the most that one block, or one operator beside the blocks, takes of `sums`."""
        parts = [part for span in self.blocks if (part := inside(span, operators))]
        covered = sum(map(len, parts))
        most = max(map(sums.over, parts), default=0)
        if covered == len(operators):
            return most
        alone = set(operators).difference(i for part in parts for i in part)
        return max(most, *(sum(sums.rows[i].values()) for i in alone))

    def num_blocks(self, operators: Sequence[int]) -> int:
        """Return how many blocks the operators touch, at least 1."""
        return max(1, sum(bool(inside(span, operators)) for span in self.blocks))
