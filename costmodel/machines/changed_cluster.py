"""A cluster with something else in it: a link's rate or latency, a device's memory, the speed of ranks, more hosts.

What was measured on a link changes with it by the same factor, for measured figures take the place of given ones.
Leaves out host time of messages, which is no link's, and the rest of what a file of the cluster may say.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from math import ceil

from costmodel.errors import UsageError
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import LinkGroup
from costmodel.machines.links import LinkClass, Links

New = Callable[[Fraction], Fraction]
"""From what a value was to what it is."""

BANDWIDTH, LATENCY, SHARED = ("bandwidth", "latency", "shared")


def with_link(cluster: Cluster, name: str, part: str, new: New) -> Cluster:
    """Return the cluster with another bandwidth, latency (ns) or shared rate of a link."""
    group = _named([group.name for group in cluster.groups], name, "link")
    before = cluster.measured(cluster.groups[group])
    after = _changed(before, part, new)
    if after == before:
        return cluster
    groups = tuple(after if i == group else each for i, each in enumerate(cluster.groups))
    return replace(cluster, groups=groups, links=_changed_links(cluster, before, after))


def capped_by_pairs(cluster: Cluster, name: str) -> list[str]:
    """Say which devices send each other less than a link's bandwidth, whatever that is."""
    group = next(group for group in cluster.groups if group.name == name)
    rates = {device.name: catalogue.device(device.catalogue).pair_gbs for device in cluster.devices if device.catalogue}
    return [
        f"two {device} send each other {rate:g} GB/s at most (catalogue): more bandwidth of link {name} makes sums of "
        "gradients faster, and no messages between stages"
        for device, rate in rates.items()
        if 0 < rate < group.bandwidth_gbs
    ]


def _changed(group: LinkGroup, part: str, new: New) -> LinkGroup:
    if part == LATENCY:
        return replace(group, latency_ns=round(new(Fraction(group.latency_ns))))
    if part == BANDWIDTH:
        return replace(group, bandwidth_gbs=float(new(Fraction(group.bandwidth_gbs))))
    return replace(group, shared_gbs=float(new(Fraction(group.shared_gbs))))


def _changed_links(cluster: Cluster, before: LinkGroup, after: LinkGroup) -> Links | None:
    """Return the measured links, faster or slower by as much as the link on which they were measured."""
    links = cluster.links
    if not links:
        return None
    last = min(max(links.num_ranks, 2), cluster.num_devices) - 1
    outermost = cluster.link_between(0, last).name if last > 0 else ""
    measured_on = dict.fromkeys(links.classes, outermost)
    measured_on |= {"p2p": cluster.link_between(0, 1).name if last > 0 else "", "p2p_host": ""}
    faster = Fraction(after.bandwidth_gbs) / Fraction(before.bandwidth_gbs)
    more_ns = after.latency_ns - before.latency_ns
    longer = Fraction(after.latency_ns, before.latency_ns) if before.latency_ns else None
    classes = {
        name: _scaled(each, faster, longer, more_ns) if measured_on[name] == after.name else each
        for name, each in links.classes.items()
    }
    return replace(links, classes=classes)


def _scaled(link: LinkClass, faster: Fraction, longer: Fraction | None, more_ns: int) -> LinkClass:
    ranges = tuple(
        replace(
            each,
            bandwidth_gbs=float(each.bandwidth_gbs * faster),
            latency_ns=round(each.latency_ns * longer) if longer is not None else each.latency_ns + more_ns,
        )
        for each in link.ranges
    )
    return LinkClass(ranges)


def with_memory(cluster: Cluster, name: str, new: New) -> Cluster:
    """Return the cluster with another memory of a device type, in bytes."""
    number = _named([device.name for device in cluster.devices], name, "device")
    devices = list(cluster.devices)
    devices[number] = replace(devices[number], memory_bytes=round(new(Fraction(devices[number].memory_bytes))))
    return replace(cluster, devices=tuple(devices))


def with_speed(cluster: Cluster, ranks: Collection[int], new: New) -> Cluster:
    """Return the cluster with another speed of some ranks."""
    for rank in ranks:
        if not 0 <= rank < cluster.num_devices:
            raise UsageError(f"there is no rank {rank}; ranks are 0 to {cluster.num_devices - 1}")
    speeds = dict(cluster.speeds)
    speeds |= {rank: float(new(Fraction(speeds.get(rank, 1.0)))) for rank in ranks}
    return replace(cluster, speeds=tuple(sorted((rank, speed) for rank, speed in speeds.items() if speed != 1)))


def ranks_of(cluster: Cluster, name: str) -> list[int]:
    """Return the ranks on devices of a type."""
    _named([device.name for device in cluster.devices], name, "device")
    return [rank for rank in range(cluster.num_devices) if cluster.device_of(rank).name == name]


def with_devices(cluster: Cluster, num_devices: int) -> Cluster:
    """Return a cluster with at least `num_devices` devices: its own in their order, then hosts like the last.

    Raises
    ------
    InvalidInput
        When no link joins that many.
    """
    if cluster.order:
        speeds = tuple(sorted((cluster.order[rank], speed) for rank, speed in cluster.speeds))
        cluster = replace(cluster, order=(), speeds=speeds)
    lacking, last = num_devices - cluster.num_devices, cluster.hosts[-1]
    if lacking <= 0:
        return cluster
    more = ceil(lacking / last.devices)
    return replace(cluster, hosts=(*cluster.hosts[:-1], replace(last, count=last.count + more)))


def with_hosts(cluster: Cluster, num_hosts: int) -> Cluster:
    """Return the cluster's first hosts alone, with the ranks on them.

    Raises
    ------
    UsageError
        When the cluster has fewer.
    InvalidInput
        When a link joins groups of devices that these hosts do not fill.
    """
    known = [replace(host, count=1) for host in cluster.hosts for _ in range(host.count)]
    if not 1 <= num_hosts <= len(known):
        raise UsageError(f"{num_hosts} hosts asked for; the cluster has {len(known)}, take from 1 to that many")
    hosts = tuple(replace(host, count=len(list(alike))) for host, alike in groupby(known[:num_hosts]))
    num_devices = sum(host.count * host.devices for host in hosts)
    groups = tuple(replace(each, group=0) if each.group > num_devices else each for each in cluster.groups)
    speeds = tuple((rank, speed) for rank, speed in cluster.speeds if rank < num_devices)
    return replace(cluster, hosts=hosts, groups=groups, speeds=speeds, order=())


def _named(names: list[str], name: str, kind: str) -> int:
    if name not in names:
        raise UsageError(f"the cluster has no {kind} {name!r}; it has {', '.join(names)}")
    return names.index(name)
