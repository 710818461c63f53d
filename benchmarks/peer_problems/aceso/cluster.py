"""The hosts and links that Aceso's archive was measured on, as a cluster with measured links.

Messages take the rates of the archive's point-to-point tables, within a host and between hosts; collectives the tables
of all GPUs of a host. Leaves out that a group's rate depends on where the host seats it (docs/validation.md).
"""

import json
from pathlib import Path
from statistics import median

from benchmarks.peer_problems.aceso.archive import LARGE_MIB, MIB, AcesoArchive
from benchmarks.peer_problems.aceso.devices import aceso_device
from costmodel.files import write_text
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.link_fit import fit_ranges
from costmodel.machines.links import LinkClass, Links, write_links

CLASSES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def aceso_cluster(archive: AcesoArchive) -> Cluster:
    """Return as many hosts as the archive's largest configuration of the model needs."""
    known = aceso_device(archive.device)
    card = catalogue_device(known.catalogue)
    most = max(sum(found.devices) for found in archive.configurations.values())
    devices = min(known.devices_per_host, most)
    inside, between = (LinkGroup(name, group, _rate(archive, where), 0)
                       for name, group, where in (("pcie", devices, "intra"), ("network", 0, "inter")))  # fmt: skip
    return Cluster(
        (DeviceType(archive.device, card.memory_bytes, "cuda", known.catalogue),),
        (Host(archive.device, devices, -(-most // devices)),),
        (inside, between),
        links=_links(archive, devices),
    )


def write_aceso_cluster(path: str | Path, cluster: Cluster) -> None:
    """Write a cluster file, and the measured links in a file beside it, which it names."""
    path = Path(path)
    links = path.with_name(f"{path.stem}.links.json")
    assert cluster.links
    write_links(links, cluster.links, {"imported": "aceso"})
    device, host = cluster.devices[0], cluster.hosts[0]
    lines = ['format = "penstock-cluster"', "version = 1", f"links = {json.dumps(links.name)}", ""]
    lines += ["[[device]]", f'name = "{device.name}"', f'catalogue = "{device.catalogue}"', ""]
    lines += ["[[host]]", f"count = {host.count}", f'device = "{host.device}"', f"devices = {host.devices}"]
    for link in cluster.groups:
        lines += ["", "[[link]]", f'name = "{link.name}"', f"group = {link.group}"]
        lines += [f"bandwidth_gbs = {link.bandwidth_gbs}", f"latency_us = {link.latency_ns / 1000}"]
    write_text(path, "\n".join([*lines, ""]))


def _rate(archive: AcesoArchive, where: str) -> float:
    """Return the median rate of large messages, 10^9 bytes a second."""
    return median(gbs for mib, gbs in archive.messages[where] if mib >= LARGE_MIB)


def _links(archive: AcesoArchive, num_ranks: int) -> Links:
    """Return messages within a host and the collectives of all its GPUs."""
    table = tuple((round(mib * MIB), round(mib * MIB / gbs)) for mib, gbs in archive.messages["intra"])
    classes = {"p2p": LinkClass(fit_ranges(table), table)}
    for name in CLASSES:
        pairs = archive.collectives.get((name, num_ranks), ())
        rows = tuple((round(mib * MIB), round(ms * 1e6)) for mib, ms in pairs)
        if rows:
            classes[name] = LinkClass(fit_ranges(rows), rows)
    return Links("nccl", archive.device, num_ranks, classes)
