"""How long collectives take: rings, trees, sums in the switch and pairwise exchange over the levels of a cluster.

As NCCL runs them: a time is latency plus bytes over rate, the least over its algorithms and protocols; sizes are those
of the whole buffer, as nccl-tests counts them: what every rank holds of an all-reduce, what every rank ends with of an
all-gather, starts with of a reduce-scatter, and sends in all (its own part included) of an all-to-all. Leaves out
SHARP (sums inside the network's switches), and what else runs on the links.
"""

from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives.algorithms import (
    exchange_lines,
    is_gloo,
    pat_lines,
    ring_lines,
    switch_lines,
    tree_lines,
)
from costmodel.machines.collectives.levels import levels_of
from costmodel.machines.collectives.measured import measured
from costmodel.machines.collectives.price import Line, Modelled, Price

__all__ = ["all_gather_ns", "all_reduce_ns", "all_to_all_ns", "best_rate", "reduce_scatter_ns"]


def all_reduce_ns(cluster: Cluster, ranks: tuple[int, ...], size_bytes: int) -> int:
    """Time in which `ranks` sum a buffer of `size_bytes`: as measured, else the fastest of ring, tree and switch.

    A ring takes 2 (n - 1) steps and sends 2 (n - 1) / n of the buffer over each link: Patarasuk and Yuan, Bandwidth
    optimal all-reduce algorithms for clusters of workstations, 2009. A tree sends it up and down: Sanders et al.,
    Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009, with NCCL's rates (``tuning.cc``).
    A switch that sums (NVLS) is sent it once: Klenk et al., An in-network architecture for accelerating shared-memory
    multiprocessor collectives, 2020.

    Returns
    -------
    int
        Nanoseconds; 0 for one rank or nothing to sum.
    """
    return _time_ns(cluster, "all_reduce", ranks, size_bytes)


def all_gather_ns(cluster: Cluster, ranks: tuple[int, ...], size_bytes: int) -> int:
    """Time until each of `ranks` has all parts of a buffer of `size_bytes`: as measured, else ring or PAT.

    A ring takes n - 1 steps and sends (n - 1) / n of the buffer over each link: Thakur, Rabenseifner and Gropp,
    Optimization of collective communication operations in MPICH, 2005.
    """
    return _time_ns(cluster, "all_gather", ranks, size_bytes)


def reduce_scatter_ns(cluster: Cluster, ranks: tuple[int, ...], size_bytes: int) -> int:
    """Time until each of `ranks` has its part of the sum of buffers of `size_bytes`: as measured, else a ring.

    Source as of `all_gather_ns`, which runs the same steps the other way.
    """
    return _time_ns(cluster, "reduce_scatter", ranks, size_bytes)


def all_to_all_ns(cluster: Cluster, ranks: tuple[int, ...], size_bytes: int) -> int:
    """Time in which each of `ranks` sends an equal part of its `size_bytes` to each: as measured, else by pairs.

    Pairwise exchange, n - 1 messages a rank (Thakur et al., 2005); levels carry their parts side by side, the
    slowest one counts.
    """
    return _time_ns(cluster, "all_to_all", ranks, size_bytes)


def best_rate(cluster: Cluster, name: str, ranks: tuple[int, ...]) -> float:
    """Return the ns that a byte takes at least of a collective (``all_gather``), however a buffer is divided."""
    return _known_price(cluster, name, ranks).best_rate if len(ranks) > 1 else 0.0


def _time_ns(cluster: Cluster, name: str, ranks: tuple[int, ...], size_bytes: int) -> int:
    if size_bytes == 0 or len(ranks) == 1:
        return 0
    return _known_price(cluster, name, ranks).time_ns(size_bytes)


def _known_price(cluster: Cluster, name: str, ranks: tuple[int, ...]) -> Price:
    price = cluster.collectives.get((name, ranks))
    if price is None:
        price = cluster.collectives[name, ranks] = _price(cluster, name, ranks)
    return price


def _price(cluster: Cluster, name: str, ranks: tuple[int, ...]) -> Price:
    levels, num_ranks = levels_of(cluster, ranks), len(ranks)
    known = measured(cluster, name, num_ranks, levels)
    if known:
        return known
    lines: tuple[Line, ...]
    if name == "all_to_all":
        lines = exchange_lines(cluster, levels, num_ranks)
    elif name == "all_reduce":
        lines = ring_lines(cluster, levels, num_ranks, 2)
        lines += () if is_gloo(cluster) else (*tree_lines(levels), *switch_lines(cluster, levels, ranks))
    else:
        lines = ring_lines(cluster, levels, num_ranks, 1)
        lines += () if is_gloo(cluster) else pat_lines(levels, num_ranks)
    return Modelled(lines)
