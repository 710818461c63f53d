"""What copies of a stage cost in time: summing gradients, gathering parameters, stepping the optimizer.

Data parallel: buckets of 25 MB summed while the last micro-batch's backward runs (Li et al., PyTorch Distributed,
VLDB 2020, section 3.2.3). ZeRO-1: a reduce-scatter, then an all-gather of stepped parameters (Rajbhandari et al.,
2020, section 7). ZeRO-2: gradients are scattered after every micro-batch, as none stays whole. ZeRO-3 and FSDP:
parameters are gathered for each forward and again for each backward, then dropped (Zhao et al., PyTorch FSDP, VLDB
2023, section 3.2). Offload: gradients go to the host, which steps and sends parameters back (Ren et al.,
ZeRO-Offload, 2021). Leaves out clipping by a global norm.
"""

from dataclasses import dataclass

from costmodel.cluster import Cluster
from costmodel.collectives import all_gather_ns, all_reduce_ns, reduce_scatter_ns
from costmodel.strategies.division import ceil
from costmodel.strategies.groups import Ranks

BUCKET_BYTES = 25 * 2**20
"""torch's default ``bucket_cap_mb``."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How communication hides behind compute.

    Attributes
    ----------
    enabled : bool
    slowdown : float
        Factor by which compute slows beside it.
    """

    enabled: bool
    slowdown: float

    def exposed_ns(self, communication_ns: int, compute_ns: int, num_parts: int) -> int:
        """Return by how much `compute_ns` grows: one of `num_parts` has nothing to hide behind, the rest slows it."""
        if not self.enabled:
            return communication_ns
        exposed = max(communication_ns - compute_ns, ceil(communication_ns, max(1, num_parts)))
        return exposed + round((communication_ns - exposed) * (1 - 1 / self.slowdown))


@dataclass(frozen=True, slots=True)
class Copies:
    """One kind of weights (dense, or experts') with the ranks that hold copies; bytes before states are sharded."""

    ranks: Ranks
    weights: int
    trainable: int

    def reduce_ns(self, cluster: Cluster, zero: int) -> int:
        """Time in which gradients are summed, each copy ending with all (ZeRO-0) or its share."""
        collective = reduce_scatter_ns if zero else all_reduce_ns
        return collective(cluster, self.ranks, self.trainable)

    def gather_ns(self, cluster: Cluster) -> int:
        """Time in which all parameters are gathered for use."""
        return all_gather_ns(cluster, self.ranks, self.weights)

    def gather_stepped_ns(self, cluster: Cluster) -> int:
        """Time in which the parameters that the optimizer stepped are gathered."""
        return all_gather_ns(cluster, self.ranks, self.trainable)
