"""Measured collectives: when the cluster's links hold a measurement that speaks for a set of ranks.

It speaks for ranks joined by the same links, as many of them within each level but the outermost. For another number
of ranks it is scaled (an estimate): the bytes on a link by (n - 1) / n, and the steps of more ranks are added.
"""

from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives.algorithms import ring_lines
from costmodel.machines.collectives.levels import Level, levels_of
from costmodel.machines.collectives.price import Measured


def measured(cluster: Cluster, name: str, num_ranks: int, levels: tuple[Level, ...]) -> Measured | None:
    """Return the price of `num_ranks` ranks with these levels by measurement, None without one."""
    links = cluster.links
    if not links or name not in links.classes:
        return None
    num_measured = min(max(links.num_ranks, 2), cluster.num_devices)
    known = levels_of(cluster, tuple(range(num_measured)))
    if _shape(known) != _shape(levels):
        return None
    share = (1 - 1 / num_ranks) / (1 - 1 / num_measured)
    rounds = 2 if name == "all_reduce" else 1
    steps = [
        ring_lines(cluster, row, count, rounds)[0].latency_ns
        for row, count in ((levels, num_ranks), (known, num_measured))
    ]
    return Measured(links.classes[name], share, max(0, round(steps[0] - steps[1])))


def _shape(levels: tuple[Level, ...]) -> tuple[tuple[str, int], ...]:
    """Return the links, and the fanout of all but the outermost."""
    return tuple((level.link.name, level.fanout if i + 1 < len(levels) else 0) for i, level in enumerate(levels))
