"""What a cluster must hold to be one: known devices, links that nest and join all of them, ranks that exist.

Leaves out the form of its file, which `costmodel.machines.cluster` reads.
"""

from collections import Counter
from collections.abc import Sequence

from costmodel.errors import InvalidInput
from costmodel.machines import catalogue
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.machines.links import SLOWEST_GBS

SLOWEST = 1e-6
"""Speed factor of a rank: at least this, at most its inverse."""
MOST_DEVICES = 2**20
"""More are taken for a slip of the pen; every rank has a place in memory."""


def check_cluster(
    devices: Sequence[DeviceType],
    hosts: Sequence[Host],
    groups: Sequence[LinkGroup],
    speeds: Sequence[tuple[int, float]],
) -> None:
    """Raise `InvalidInput` on the first rule that the parts of a cluster break."""
    for kind, names in (
        ("[[device]] entries are named", [device.name for device in devices]),
        ("[[link]] entries are named", [group.name for group in groups]),
        ("[[rank]] entries have the index", [rank for rank, _ in speeds]),
    ):
        _check_distinct(kind, names)
    num_devices = sum(host.count * host.devices for host in hosts)
    _check_devices(devices, hosts, num_devices)
    _check_links(groups, num_devices)
    _check_nesting(groups, num_devices)
    for rank, speed in speeds:
        if not 0 <= rank < num_devices or not SLOWEST <= speed <= 1 / SLOWEST:
            raise InvalidInput(
                f"rank {rank} with speed {speed:g}: ranks are 0 to {num_devices - 1}, speeds {SLOWEST:g} to "
                f"{1 / SLOWEST:g}"
            )


def check_order(order: Sequence[int], num_devices: int) -> None:
    """Raise `InvalidInput` where the devices of ranks are not devices, or one of them is two ranks."""
    _check_distinct("ranks are on the device", order)
    for device in order:
        if not 0 <= device < num_devices:
            raise InvalidInput(f"a rank is on device {device}; devices are 0 to {num_devices - 1}")


def _check_distinct(kind: str, names: Sequence[object]) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise InvalidInput(f"two {kind} {twice!r}; keep one of them")


def _check_devices(devices: Sequence[DeviceType], hosts: Sequence[Host], num_devices: int) -> None:
    for device in devices:
        if device.catalogue:
            catalogue.device(device.catalogue)
    known = {device.name for device in devices}
    for host in hosts:
        if host.device not in known:
            raise InvalidInput(f"a host has the device {host.device!r}; the file defines {', '.join(sorted(known))}")
    if not 1 <= num_devices <= MOST_DEVICES:
        raise InvalidInput(f"{num_devices} devices; [[host]] entries must make 1 to {MOST_DEVICES}")


def _check_links(groups: Sequence[LinkGroup], num_devices: int) -> None:
    if not groups and num_devices > 1:
        raise InvalidInput("no [[link]]; several devices need one whose group holds them all (group = 0)")
    for group in groups:
        if group.bandwidth_gbs < SLOWEST_GBS or group.latency_ns < 0:
            raise InvalidInput(
                f"link {group.name!r}: bandwidth_gbs {group.bandwidth_gbs:g} must be at least {SLOWEST_GBS:g} "
                "(10^9 bytes a second, one direction), latency_us not below 0"
            )
        if group.shared_gbs and group.shared_gbs < SLOWEST_GBS:
            raise InvalidInput(
                f"link {group.name!r}: shared_gbs {group.shared_gbs:g} must be at least {SLOWEST_GBS:g} (10^9 bytes a "
                "second, one direction), or 0 where the devices of a host share nothing"
            )


def _check_nesting(groups: Sequence[LinkGroup], num_devices: int) -> None:
    inner = 1
    for group in groups:
        size = group.group or num_devices
        if num_devices % size:
            raise InvalidInput(
                f"link {group.name!r} joins groups of {size} devices, which does not divide the {num_devices} "
                "devices; choose a divisor, or 0 for all of them"
            )
        if size % inner:
            raise InvalidInput(
                f"link {group.name!r} joins groups of {size} devices, which do not hold whole groups of {inner} of the "
                "link before it; list links innermost first, each group a multiple of the one before"
            )
        inner = size
    if inner < num_devices and groups:
        raise InvalidInput(f"no link joins all {num_devices} devices; give an outermost [[link]] with group = 0")
