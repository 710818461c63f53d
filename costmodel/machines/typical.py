"""A typical cluster of one device of the catalogue, for what is planned without a cluster file or measured links.

Hosts (or racks) of the catalogue's scale-up domain, joined by the network of a typical host with such devices;
latencies are those that NCCL itself assumes (docs/cluster.md). Devices that fill no whole number of hosts are in
equal parts on hosts as full as that allows. Leaves out racks, oversubscription and host memory.
"""

from costmodel.errors import UsageError
from costmodel.machines import catalogue
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup

SCALE_UP_NS, PCIE_NS, NETWORK_NS = 7_200, 7_600, 9_300
"""One small message, as NCCL's constants give it."""
THROUGH_HOST = 0.5
"""Of PCIe's rate, what devices without peer-to-peer reach through host memory when each sends and receives at once: two
RTX 5090 on PCIe 5 x8 30 GB/s in both directions together, 56 with a driver that allows it (published measurement)."""


def typical_host_devices(device_id: str) -> int:
    """Return how many devices a full host (or rack) of a catalogue device holds."""
    known = catalogue.device(device_id)
    return max(1, known.scaleup_domain, known.host_devices)


def typical_cluster(
    device_id: str, num_devices: int, host_network_gbs: float = 0.0, shares: tuple[float, float] = (1.0, 1.0)
) -> Cluster:
    """Return hosts of a catalogue device, with the host's own network where it is given, or else the catalogue's.

    Parameters
    ----------
    shares : (float, float)
        What of the rates within and between hosts is reached.

    Raises
    ------
    UsageError
        When the catalogue does not say how hosts are joined.
    """
    known = catalogue.device(device_id)
    kind = DeviceType(known.id, known.memory_bytes, "cuda", known.id)
    domain = max(1, known.scaleup_domain)
    inner_ns, inner_gbs = (SCALE_UP_NS, known.scaleup_gbs) if domain > 1 else (PCIE_NS, known.pcie_gbs)
    inner_gbs *= shares[0] * (1 if domain > 1 or known.peer_to_peer else THROUGH_HOST)
    full = typical_host_devices(device_id)
    if num_devices <= full:
        return Cluster((kind,), (Host(kind.name, num_devices),), (LinkGroup("host", 0, inner_gbs, inner_ns),))
    network_gbs = host_network_gbs or known.host_network_gbs
    if not network_gbs:
        raise UsageError(
            f"{num_devices} devices {device_id} fill more than one host of {full}, and the catalogue does not know how "
            "such hosts are joined; give a --cluster file that says so"
        )
    size = max(part for part in range(1, full + 1) if num_devices % part == 0)
    share = shares[1] * network_gbs / known.host_devices
    groups = (LinkGroup("host", size, inner_gbs, inner_ns), LinkGroup("network", 0, share, NETWORK_NS))
    return Cluster((kind,), (Host(kind.name, size, num_devices // size),), groups)
