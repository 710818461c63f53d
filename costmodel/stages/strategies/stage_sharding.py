"""How a stage's operators are sharded over its ranks: what all of its prices follow from."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.blocks import num_blocks
from costmodel.stages.strategies.gradients import Copies
from costmodel.stages.strategies.groups import StageGroups
from costmodel.stages.strategies.host_dispatch import HostDispatch
from costmodel.stages.strategies.states import Weights
from costmodel.stages.strategies.vectors import Vectors


class ActionTimes(NamedTuple):
    """F, I, W of one action and R, with communication inside the stage, ns."""

    forward: int
    backward_input: int
    backward_weight: int
    recompute: int

    @property
    def backward(self) -> int:
        """All of the backward, recompute included."""
        return self.backward_input + self.backward_weight + self.recompute


@dataclass(frozen=True)
class StageSharding:
    """Operators (rising positions), how they are configured, a rank of theirs, its groups and the operators' costs."""

    operators: Sequence[int]
    config: StageConfig
    rank: int
    groups: StageGroups
    vectors: Vectors

    @cached_property
    def copies(self) -> tuple[Copies, Copies]:
        """Dense weights and experts' with the ranks that hold copies."""
        return copies_of(self.vectors.weights, self.groups, self.operators)

    @property
    def trainable_bytes(self) -> int:
        """Bytes of trainable parameters on a rank before they are sharded."""
        return sum(copies.trainable for copies in self.copies)

    @cached_property
    def num_blocks(self) -> int:
        """Parts in which weights are gathered and activations copied, at least 1."""
        return num_blocks(self.vectors.blocks, self.operators)

    @property
    def sharded(self) -> bool:
        """Whether ZeRO has ranks to shard over."""
        return self.config.zero > 0 and len(self.groups.replicas) > 1

    @cached_property
    def key(self) -> object:
        """What prices depend on; consecutive operators are named by their ends."""
        members = self.operators
        ends: object = ("from", members.start, members.stop) if isinstance(members, range) else members
        return (ends, self.config, self.groups, self.rank if self.config.offload != "none" else 0)

    def times(self) -> ActionTimes:
        """Return the times that add up over operators, or those of the host where it takes longer."""
        vectors, operators = self.vectors, self.operators
        found = ActionTimes(
            vectors.times.forward.over(operators),
            vectors.times.backward_input.over(operators),
            vectors.times.backward_weight.over(operators),
            vectors.recomputed.over(operators),
        )
        return found if (host := vectors.times.host_dispatch) is None else self._paced_by_the_host(found, host)

    @property
    def host_ns(self) -> tuple[int, int]:
        """Return what the host takes to dispatch a forward, and a backward with its recompute."""
        host = self.vectors.times.host_dispatch
        return host.dispatch_ns(self.operators, self.vectors.dispatched_again) if host else (0, 0)

    def _paced_by_the_host(self, device: ActionTimes, host: HostDispatch) -> ActionTimes:
        """Return the times of actions that the host dispatches in turn; the parts of a backward keep their ratio."""
        forward = host.forward_ns(self.operators, device.forward)
        backward = host.backward_ns(self.operators, device.backward, self.vectors.dispatched_again)
        if backward == device.backward:
            return device._replace(forward=forward)
        whole = max(1, device.backward)
        weights, again = (part * backward // whole for part in (device.backward_weight, device.recompute))
        return ActionTimes(forward, backward - weights - again, weights, again)


def copies_of(weights: Weights, groups: StageGroups, operators: Sequence[int]) -> tuple[Copies, Copies]:
    """Return operators' dense weights and experts' with the ranks that hold copies."""
    return (
        Copies(groups.replicas, groups.across, weights.dense.over(operators), weights.trainable.over(operators)),
        Copies(
            groups.expert_replicas,
            groups.across,
            weights.experts.over(operators),
            weights.trainable_experts.over(operators),
        ),
    )
