"""What a cluster is made of: kinds of devices, hosts, and links that join groups of devices."""

from dataclasses import dataclass
from typing import Annotated

from costmodel.codec import UNSAID, Json, Positive, record
from costmodel.forms import scaled
from costmodel.machines.links import SLOWEST_GBS

GIB = 2**30
SCALE_UP, NETWORK = LINK_KINDS = ("scale-up", "network")
"""What a link may be said to be: NVLink and its like, or NICs with their fabric."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A kind of device: its kind for torch (``cpu`` or ``cuda``), memory and catalogue id ("" if none).

    `price_per_hour` is in whatever money its user counts; 0 where it is not known.
    """

    name: str
    memory_bytes: Annotated[int, Json("memory_gib", form=scaled(GIB), needed=False)]
    type: Annotated[str, Json(allowed=("cpu", "cuda"))] = "cuda"
    catalogue: Annotated[str, Json(says="Id of the catalogue: gives the memory where memory_gib does not.")] = ""
    price_per_hour: Annotated[float, UNSAID, Json(says="Of one device, in any money; 0 where not known.")] = 0.0


@dataclass(frozen=True, slots=True)
class Host:
    """`count` hosts alike, each with `devices` devices of type `device`; host memory 0 when not given."""

    device: str
    devices: Positive
    count: Positive = 1
    memory_bytes: Annotated[int, Json("memory_gib", form=scaled(GIB), says="Host memory, for offload.")] = 0


record(Host, late=("device", "devices", "memory_gib"))


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """A link that joins groups of `group` consecutive devices (0: all of them).

    `bandwidth_gbs` is that of one device, one direction; `shared_gbs` (0: none) what all devices of one host share.
    `kind` is one of `LINK_KINDS`, or empty where the devices' own links and hosts tell (`Cluster.link_kind`).
    """

    name: str
    group: Annotated[int, Json(says="Consecutive devices that it joins; 0 = all.")]
    bandwidth_gbs: Annotated[float, Json(rules={"minimum": SLOWEST_GBS})]
    latency_ns: Annotated[int, Json("latency_us", form=scaled(1000))]
    shared_gbs: Annotated[float, Json(rules={"anyOf": [{"const": 0}, {"minimum": SLOWEST_GBS}]})] = 0.0
    kind: Annotated[str, UNSAID, Json(allowed=LINK_KINDS)] = ""
