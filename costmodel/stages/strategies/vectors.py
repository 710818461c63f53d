"""What every operator costs under one configuration, so that a stage is a few differences of prefix sums.

Made once a configuration (degrees, recompute, groups that lie alike) and micro-batch size. Leaves out what copies
of a stage cost together (`costmodel.stages.strategies.gradients`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.stages.strategies.blocks import BlockMost
from costmodel.stages.strategies.host_dispatch import HostDispatch
from costmodel.stages.strategies.saved_activations import SavedActivations
from costmodel.stages.strategies.shared_sums import SharedSums
from costmodel.stages.strategies.states import Weights
from costmodel.stages.strategies.units import UnitWeights
from costmodel.stages.strategies.workspace_memory import WorkspaceMemory


@dataclass(frozen=True)
class TimeVectors:
    """Times of operators with exposed communication; what several operators gather together counts once.

    ``gathered`` holds the bytes that each operator has gathered while it runs; ``host_dispatch`` says what the host
    takes, where that is known.
    """

    forward: SharedSums
    backward_input: SharedSums
    backward_weight: SharedSums
    gathered: tuple[int, ...]
    host_dispatch: HostDispatch | None = None

    @cached_property
    def any_gathered(self) -> bool:
        """Whether any operator gathers."""
        return any(self.gathered)


@dataclass(frozen=True)
class Vectors:
    """Costs of operators under one configuration.

    Attributes
    ----------
    times : TimeVectors
    recomputed, dispatched_again : SharedSums
        The forwards that run again: what they take the device, and its host.
    saved : SavedActivations
    weights : Weights
    names : tuple of str
        Block of each operator; empty for those in none.
    blocks : tuple of range
        Positions of blocks.
    recompute_spans : tuple of range
        Positions of what recompute makes again together.
    workspace : WorkspaceMemory or None
        None where the profile knows nothing of it.
    """

    times: TimeVectors
    recomputed: SharedSums
    dispatched_again: SharedSums
    saved: SavedActivations
    weights: Weights
    names: tuple[str, ...]
    blocks: tuple[range, ...]
    recompute_spans: tuple[range, ...]
    workspace: WorkspaceMemory | None

    def gathered_bytes(self, operators: Sequence[int]) -> int:
        """Return the most bytes that one of the operators holds gathered."""
        if not self.times.any_gathered:
            return 0
        if operators not in self._gathered:
            self._gathered[operators] = max(map(self.times.gathered.__getitem__, operators))
        return self._gathered[operators]

    def recompute_peak(self, operators: Sequence[int]) -> int:
        """Return the most bytes that recompute makes again at once, beyond what is kept anyhow."""
        return self._recompute.over(operators)

    def workspace_peak(self, operators: Sequence[int]) -> int | None:
        """Return the most bytes beyond what is kept or made again, None where the profile does not know them."""
        if self.workspace is None:
            return None
        if operators not in self._worked:
            most = self.workspace.over(operators)
            again = BlockMost(self.recompute_spans, self.workspace.over).over(operators) if self.recompute_spans else 0
            self._worked[operators] = max(most, again)
        return self._worked[operators]

    def largest_weights(self, operators: Sequence[int]) -> int:
        """Return the most bytes of weights that one block, or one operator outside of blocks, has."""
        return max(self._dense_block.over(operators), self._expert_block.over(operators), self._alone(operators))

    @cached_property
    def units(self) -> UnitWeights:
        """What is gathered together where copies divide weights."""
        return UnitWeights(self.names, (self.weights.dense, self.weights.experts))

    def largest_kept(self, operators: Sequence[int]) -> int:
        """Return the most bytes that one block, or one operator outside of blocks, keeps."""
        alone = max(
            (sum(self.saved.until_backward.rows[i].values()) for i in operators if i in self._beside), default=0
        )
        return max(self._kept_block.over(operators), alone)

    @cached_property
    def _worked(self) -> dict[Sequence[int], int]:
        return {}

    @cached_property
    def _gathered(self) -> dict[Sequence[int], int]:
        return {}

    @cached_property
    def _recompute(self) -> BlockMost:
        return BlockMost(self.recompute_spans, self._made_again)

    @cached_property
    def _dense_block(self) -> BlockMost:
        return BlockMost(self.blocks, self.weights.dense.over)

    @cached_property
    def _expert_block(self) -> BlockMost:
        return BlockMost(self.blocks, self.weights.experts.over)

    @cached_property
    def _kept_block(self) -> BlockMost:
        return BlockMost(self.blocks, self.saved.until_backward.over)

    @cached_property
    def _beside(self) -> frozenset[int]:
        """Operators in no block."""
        return frozenset(range(len(self.saved.until_backward.rows))).difference(i for span in self.blocks for i in span)

    def _alone(self, operators: Sequence[int]) -> int:
        rows = self.weights.dense.rows
        return max((sum(rows[i].values()) for i in self._beside if i in operators), default=0)

    def _made_again(self, part: Sequence[int]) -> int:
        """Return what a block's recompute makes, less the inputs among it that are kept."""
        dropped, kept = self.saved.dropped, self.saved.until_backward
        inputs = {key: min(size, dropped.size_of.get(key, 0)) for i in part for key, size in kept.rows[i].items()}
        return max(0, dropped.over(part) - sum(size for key, size in inputs.items() if dropped.holds(part, key)))
