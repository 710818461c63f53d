"""What offload to host memory takes: the link to the host, the optimizer's step there, the room there.

Source: Ren et al., ZeRO-Offload, 2021 (gradients down, parameters up, Adam on the processor at the speed of its
memory); Rajbhandari et al., ZeRO-Infinity, 2021 (parameters and activations). Leaves out disks, and hosts whose
devices share one PCIe switch.
"""

from costmodel.errors import NoPlanFits, UsageError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import Host

ASSUMED_PCIE_GBS = 12.0
"""PCIe 3 x16 as NCCL counts it, for devices that the catalogue does not know: the slowest link in use."""
HOST_MEMORY_GBS = 100.0
"""Bandwidth at which a host's processors step an optimizer, all devices of the host together: an assumption (a
two-socket server streams 150 to 400 GB/s; half of the slower figure is left to the step)."""
STEP_COPIES = 2
"""Each state is read and written once in a step."""


def link_gbs(cluster: Cluster, rank: int) -> float:
    """Rate between a rank's device and its host, one direction."""
    name = cluster.device_of(rank).catalogue
    return catalogue_device(name).pcie_gbs if name else ASSUMED_PCIE_GBS


def transfer_ns(cluster: Cluster, rank: int, size_bytes: int) -> int:
    """Time of a copy between a device and its host."""
    return round(size_bytes / link_gbs(cluster, rank))


def step_ns(cluster: Cluster, rank: int, state_bytes: int) -> int:
    """Time of the optimizer's step on the host over `state_bytes` of each of its devices."""
    return round(STEP_COPIES * state_bytes * host_of(cluster, rank).devices / HOST_MEMORY_GBS)


def check_room(cluster: Cluster, rank: int, size_bytes: int) -> None:
    """Refuse to offload more than a device's share of its host's memory.

    Raises
    ------
    UsageError
        When the cluster does not say how much the host has.
    NoPlanFits
        When it is too little.
    """
    host = host_of(cluster, rank)
    if not host.memory_bytes:
        raise UsageError(
            f"offload keeps {size_bytes} bytes of rank {rank} in host memory, and its [[host]] names none; give "
            "memory_gib there, or plan without --offload"
        )
    share = host.memory_bytes // host.devices
    if size_bytes > share:
        raise NoPlanFits(
            f"offload keeps {size_bytes} bytes of rank {rank} in host memory; a host of {host.devices} devices has "
            f"{share} for each, {size_bytes - share} too few: shard over more devices, or offload less"
        )


def host_of(cluster: Cluster, rank: int) -> Host:
    """Return the kind of host that a rank is on."""
    first = 0
    for host in cluster.hosts:
        first += host.count * host.devices
        if rank < first:
            return host
    raise UsageError(f"rank {rank} is not one of the cluster's {first} devices; ranks are numbered from 0")
