"""What copies of a stage cost in time: summing gradients, gathering parameters, stepping the optimizer.

Data parallel: buckets summed while the last micro-batch's backward runs (Li et al., PyTorch Distributed, VLDB 2020,
section 3.2.3), all at once where nothing hides them; each message pays its latency. ZeRO-1: a reduce-scatter, then an
all-gather of stepped parameters (Rajbhandari et al., 2020, section 7). ZeRO-2: gradients are scattered after every
micro-batch, as none stays whole. ZeRO-3 and FSDP: parameters are gathered for each forward and again for each backward,
then dropped (Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2). Shard groups smaller than all copies: each does so
by itself, and once a step ranks that have the same part sum it among groups (section 3.2.2 there, hybrid sharding;
Zhang et al., MiCS, VLDB 2022). Offload: gradients go to the host, which steps and
sends parameters back (Ren et al., ZeRO-Offload, 2021). Leaves out clipping by a global norm.
"""

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, best_rate, reduce_scatter_ns
from costmodel.stages.strategies.division import ceil
from costmodel.stages.strategies.groups import Ranks

Collective = Callable[[Cluster, Ranks, int], int]


@dataclass(frozen=True, slots=True)
class Overlap:
    """How communication hides behind compute.

    Attributes
    ----------
    enabled : bool
    slowdown : float
        Factor by which compute slows meanwhile.
    """

    enabled: bool
    slowdown: float

    def exposed_ns(self, communication_ns: int, compute_ns: int, num_parts: int) -> int:
        """Return by how much `compute_ns` grows: one of `num_parts` has nothing to hide behind, the rest slows it."""
        if not self.enabled:
            return communication_ns
        exposed = max(communication_ns - compute_ns, ceil(communication_ns, max(1, num_parts)))
        return exposed + round((communication_ns - exposed) * self._slows)

    @property
    def least_exposed(self) -> float:
        """The part of communication by which compute grows at least, whatever hides it."""
        return self._slows if self.enabled else 1.0

    @property
    def _slows(self) -> float:
        return 1 - 1 / self.slowdown

    def least_growth_ns(self, communication_ns: float, compute_ns: float) -> float:
        """Return by how much compute of at least this time grows at least, whatever the number of stages and parts."""
        return max(communication_ns - compute_ns, communication_ns * self.least_exposed)


@dataclass(frozen=True, slots=True)
class Copies:
    """One kind of weights (dense, or experts') with the ranks that hold copies; bytes before states are sharded.

    `across` are those that hold the same part, one of each shard group.
    """

    ranks: Ranks
    across: Ranks
    weights: int
    trainable: int


class Collectives:
    """Times of collectives over copies, remembered: many stages of a sweep sum the same bytes over the same links."""

    def __init__(self, cluster: Cluster, gradient_scale: tuple[int, int] = (1, 1)) -> None:
        """Take gradients to be wider than weights by this factor."""
        self._cluster, self._scale = cluster, gradient_scale
        self._known: dict[tuple[Collective, Ranks, int], int] = {}

    def gradient_bytes(self, copies: Copies) -> int:
        """Return what is summed."""
        return copies.trainable * self._scale[0] // self._scale[1]

    def reduce_ns(self, copies: Copies, zero: int, num_parts: int) -> int:
        """Time in which gradients are summed, each copy ending with all (ZeRO-0) or its share."""
        collective = reduce_scatter_ns if zero else all_reduce_ns
        return self._ns(collective, copies.ranks, self.gradient_bytes(copies), num_parts)

    def across_ns(self, copies: Copies, num_parts: int) -> int:
        """Time in which shard groups sum the part of the gradients that each of their ranks has summed."""
        return self._ns(all_reduce_ns, copies.across, ceil(self.gradient_bytes(copies), len(copies.ranks)), num_parts)

    def gather_ns(self, copies: Copies, num_parts: int) -> int:
        """Time in which all parameters are gathered for use."""
        return self._ns(all_gather_ns, copies.ranks, copies.weights, num_parts)

    def gather_stepped_ns(self, copies: Copies, num_parts: int) -> int:
        """Time in which the parameters that the optimizer stepped are gathered."""
        return self._ns(all_gather_ns, copies.ranks, copies.trainable, num_parts)

    def least_ns(self, name: str, copies: Copies, size_bytes: int, num_parts: int) -> float:
        """Return the least time of a collective of these bytes in this number of parts, rounded as it is."""
        rate = best_rate(self._cluster, name, copies.ranks)
        return max(0.0, (size_bytes - num_parts) * rate - num_parts)

    def least_across_ns(self, copies: Copies, num_parts: int) -> float:
        """Return the least time of sums among shard groups in this number of parts."""
        size = copies.trainable // len(copies.ranks)
        rate = best_rate(self._cluster, "all_reduce", copies.across)
        return max(0.0, (size - num_parts) * rate - num_parts)

    def _ns(self, collective: Collective, ranks: Ranks, size_bytes: int, num_parts: int) -> int:
        """Return the time of the parts, one after the other: each pays its latency."""
        if len(ranks) == 1 or not size_bytes:
            return 0
        if num_parts > 1:
            parts_ns = num_parts * self._ns(collective, ranks, ceil(size_bytes, num_parts), 1)
            return max(parts_ns, self._ns(collective, ranks, size_bytes, 1))  # no part is rounded in favour of many
        key = (collective, ranks, size_bytes)
        if key not in self._known:
            self._known[key] = collective(self._cluster, ranks, size_bytes)
        return self._known[key]
