"""What a cluster is made of: kinds of devices, hosts, and links that join groups of devices."""

from dataclasses import dataclass

GIB = 2**30
SCALE_UP, NETWORK = LINK_KINDS = ("scale-up", "network")
"""What a link may be said to be: NVLink and its like, or NICs with their fabric."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A kind of device: its kind for torch (``cpu`` or ``cuda``), memory and catalogue id ("" if none).

    `price_per_hour` is in whatever money its user counts; 0 where it is not known.
    """

    name: str
    memory_bytes: int
    type: str = "cuda"
    catalogue: str = ""
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Host:
    """`count` hosts alike, each with `devices` devices of type `device`; host memory 0 when not given."""

    device: str
    devices: int
    count: int = 1
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """A link that joins groups of `group` consecutive devices (0: all of them).

    `bandwidth_gbs` is that of one device, one direction; `shared_gbs` (0: none) what all devices of one host share.
    `kind` is one of `LINK_KINDS`, or empty where the devices' own links and hosts tell (`Cluster.link_kind`).
    """

    name: str
    group: int
    bandwidth_gbs: float
    latency_ns: int
    shared_gbs: float = 0.0
    kind: str = ""
