"""Questions whose answer hangs on memory: one host of H100s with memory or none, every rung open."""

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from planner import Effort, Problem, Space

GIB = 2**30
WHOLE_OPERATORS = Space(tensor=1, context=1, expert=1, chunks=1)


def cluster(num_devices: int, *, host_gib: float = 0, price: float = 0.0, gbs: float = 300.0) -> Cluster:
    """One host of H100s."""
    return Cluster(
        (DeviceType("h100", 80 * GIB, "cuda", "h100-sxm-80", price),),
        (Host("h100", num_devices, 1, round(host_gib * GIB)),),
        (LinkGroup("nvlink", 0, gbs, 6_000),),
    )


def asked(profile: Profile, machines: Cluster, batch: int, **options: object) -> Problem:
    """A described model, whose operators stay whole, with every rung open; 16 bytes a parameter under Adam."""
    given: dict[str, object] = {"space": WHOLE_OPERATORS, "target": "any", "effort": Effort(2.0, 0.0)}
    given |= {"habits": {"gradient_bytes": 2, "graphs": True}, **options}  # the host takes nothing of such small models
    return Problem(profile, machines, machines.num_devices, batch, **given)  # type: ignore[arg-type]
