"""Which links a set of ranks spans, innermost first, and how much of each it gets.

A level joins units (single ranks, or the blocks of the level within) into blocks. Every device of a host is taken
to use a shared link at the same time, each for a group like this one. Leaves out routes and collisions in a fabric.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from costmodel.errors import InvalidInput
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import LinkGroup


@dataclass(frozen=True, slots=True)
class Level:
    """One link that some of the ranks need.

    Attributes
    ----------
    link : LinkGroup
    kind : str
        ``nvlink``, ``pcie`` or ``network``: which of NCCL's latencies it has.
    num_units, num_blocks : int
        How many units there are, and how many blocks they are joined to.
    fanout : int
        Units of the largest block.
    peers : int
        Ranks that a rank reaches over this link, at most.
    unit_gbs, rank_gbs : float
        What the slowest unit and the slowest rank get of the link, one direction. Of a unit only as many devices
        count as can send side by side: those that no network joins (a ring leaves a rack through one host).
    """

    link: LinkGroup
    kind: str
    num_units: int
    num_blocks: int
    fanout: int
    peers: int
    unit_gbs: float
    rank_gbs: float

    @property
    def num_hops(self) -> int:
        """Steps of one round of a ring that go over this link."""
        return self.num_units - self.num_blocks


def levels_of(cluster: Cluster, ranks: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the levels of these ranks, none for a single one.

    Raises
    ------
    InvalidInput
        When a rank occurs twice or the cluster does not have it.
    """
    if len(set(ranks)) != len(ranks) or not ranks or min(ranks) < 0 or max(ranks) >= cluster.num_devices:
        raise InvalidInput(f"ranks {ranks}: name each once, of 0 to {cluster.num_devices - 1}")
    levels: list[Level] = []
    unit_of = {rank: rank for rank in ranks}
    lanes: dict[int, int] = {}
    for link in map(cluster.measured, cluster.groups):
        block_of = {rank: rank // link.group if link.group else 0 for rank in ranks}
        if len(set(block_of.values())) < len(set(unit_of.values())):
            if not lanes and cluster.link_kind(link) == "network":
                lanes = unit_of
            levels.append(_level(cluster, link, unit_of, block_of, lanes or unit_of))
            unit_of = block_of
    return tuple(levels)


def _level(
    cluster: Cluster, link: LinkGroup, unit_of: dict[int, int], block_of: dict[int, int], lanes: dict[int, int]
) -> Level:
    units, blocks = Counter(unit_of.values()), Counter(block_of.values())
    parent = {unit: block_of[rank] for rank, unit in unit_of.items()}
    fanout = Counter(parent.values())
    joined = [rank for rank in unit_of if fanout[block_of[rank]] > 1]
    flows = {rank: cluster.flow_gbs(rank, link) for rank in joined}
    side_by_side = _sums((lanes[rank], flow) for rank, flow in flows.items())
    return Level(
        link,
        cluster.link_kind(link),
        len(units),
        len(blocks),
        max(fanout.values()),
        max(blocks[block_of[rank]] - units[unit_of[rank]] for rank in joined),
        min(side_by_side.values()),
        min(flows.values()),
    )


def _sums(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0.0) + value
    return sums
