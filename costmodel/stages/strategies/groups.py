"""Which ranks of a stage talk to each other in each kind of parallelism.

A stage's ranks are numbered tensor innermost, then context, then data, as Megatron orders them; experts' own grid lies
over the same ranks: parts of an expert innermost, then the ranks of other experts, then copies. Of several groups alike
in kind the slowest counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import lcm

from costmodel.errors import UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import all_reduce_ns
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.division import Degrees

Ranks = tuple[int, ...]
PROBE_BYTES = 2**20
"""Size of the all-reduce by which groups are compared."""


@dataclass(frozen=True, slots=True)
class StageGroups:
    """The slowest group of each kind.

    Attributes
    ----------
    tensor, context, expert : tuple of int
    expert_tensor : tuple of int
        Ranks that hold parts of the same experts.
    replicas : tuple of int
        Ranks that hold the same part of the weights (data and context) and divide its states under ZeRO: all of them,
        or a shard group. They sum gradients.
    expert_replicas : tuple of int
        Ranks that hold the same part of the same experts, and divide its states, as `replicas` do.
    across : tuple of int
        Ranks that hold the same part of the states, one of each shard group: they sum what their groups have summed.
    """

    tensor: Ranks
    context: Ranks
    expert: Ranks
    replicas: Ranks
    expert_replicas: Ranks
    across: Ranks
    expert_tensor: Ranks

    @property
    def inside(self) -> tuple[Ranks, ...]:
        """Ranks that send each other values within an action."""
        return self.tensor, self.context, self.expert, self.expert_tensor


class GroupFinder:
    """Finds the groups of stages on one cluster; groups that lie alike are named by the first of their kind."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[tuple[Ranks, int, int, int, int, int], StageGroups] = {}

    def of(self, ranks: Sequence[int], config: StageConfig) -> StageGroups:
        """Return the groups of a stage.

        Raises
        ------
        UsageError
            When data x tensor x context is not the number of ranks, or the degrees do not go together.
        """
        if len(ranks) != config.data * config.tensor * config.context:
            raise UsageError(
                f"{len(ranks)} ranks for data {config.data} x tensor {config.tensor} x context {config.context}; "
                "their product is the number of a stage's ranks"
            )
        experts = config.expert, config.expert_tensor
        key = (tuple(ranks), config.tensor, config.context, *experts, config.num_sharers)
        if key not in self._known:
            Degrees.of(config, True)  # experts that the ranks do not hold alike have no groups
            alike = (self.canonical(ranks), *key[1:])  # so do their groups lie on the links
            if alike not in self._known:
                self._known[alike] = self._groups(*alike)
            self._known[key] = self._known[alike]
        return self._known[key]

    def _groups(self, ranks: Ranks, tensor: int, context: int, expert: int, inner: int, sharers: int) -> StageGroups:
        copies = [ranks[i::tensor] for i in range(tensor)]
        shards = [row[i : i + sharers] for row in copies for i in range(0, len(row), sharers)]
        several, held = len(shards) > tensor, expert * inner
        together = [ranks[i : i + held] for i in range(0, len(ranks), held)]
        sharing = [ranks[i : i + tensor * sharers] for i in range(0, len(ranks), tensor * sharers)]
        return StageGroups(
            self._slowest(ranks[i : i + tensor] for i in range(0, len(ranks), tensor)),
            self._slowest(row[i : i + context] for row in copies for i in range(0, len(row), context)),
            self._slowest(row[i::inner] for row in together for i in range(inner)),
            self._slowest(shards),
            self._slowest(row[i::held] for row in sharing for i in range(held)),
            self._slowest(row[i::sharers] for row in copies for i in range(sharers)) if several else ranks[:1],
            self._slowest(ranks[i : i + inner] for i in range(0, len(ranks), inner)),
        )

    def _slowest(self, groups: Iterable[Ranks]) -> Ranks:
        distinct = list(dict.fromkeys(map(self.canonical, groups)))
        if len(distinct) == 1 or len(distinct[0]) == 1:
            return distinct[0]
        return max(distinct, key=lambda group: all_reduce_ns(self.cluster, group, PROBE_BYTES))

    def lie_alike(self, num_ranks: int) -> bool:
        """Whether stages of this number of ranks, one after the other, all have the same links."""
        cluster = self.cluster
        sizes = [cluster.hosts[0].devices, *(group.group for group in cluster.groups if group.group)]
        alike = not cluster.speeds and len(cluster.hosts) == 1
        return alike and all(size % num_ranks == 0 or num_ranks % size == 0 for size in sizes)

    def canonical(self, ranks: Sequence[int]) -> Ranks:
        """Return the lowest ranks that lie on the links as these do."""
        first, last = min(ranks), max(ranks)
        # within a block that one link joins it matters how they lie in the smaller blocks alone
        beyond = [size for size in self._blocks if first // size != last // size]
        period = max(beyond, default=1) if self._blocks else self._period
        return tuple(rank - first // period * period for rank in ranks)

    @property
    def _unlike(self) -> bool:
        """Whether hosts or ranks differ, so that ranks' numbers do not tell how they lie."""
        cluster = self.cluster
        return bool(cluster.speeds or cluster.order) or len(cluster.hosts) > 1

    @cached_property
    def _blocks(self) -> list[int]:
        """How many ranks each kind of link joins, rising; empty where ranks differ, or blocks overlap."""
        sizes = sorted({self.cluster.hosts[0].devices, *(group.group for group in self.cluster.groups if group.group)})
        nested = all(larger % smaller == 0 for smaller, larger in pairwise(sizes))
        return sizes if nested and not self._unlike else []

    @cached_property
    def _period(self) -> int:
        """Ranks after which the links repeat; all of them where they differ."""
        if self._unlike:
            return self.cluster.num_devices
        return lcm(self.cluster.hosts[0].devices, *(group.group or 1 for group in self.cluster.groups))
