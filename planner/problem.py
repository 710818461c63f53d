"""What a planner is asked: one problem in, one plan out.

Says which choices are free (micro-batch size, schedule, how many stages) and within which limits. Leaves
out how plans are found (`planner.search`) and what a stage costs (`costmodel.stages.measured`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.cluster import Cluster, DeviceType, uniform_cluster
from costmodel.model.profile import Profile
from costmodel.roofline import scale_profile
from costmodel.stages.measured import OPTIMIZER_STATES, CostModel
from planner.choices import Choices
from planner.pins import Pins
from planner.typical import typical_cluster
from simulator.schedules import SCHEDULES

AUTO = "auto"
AUTO_SCHEDULES = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b")
"""What ``auto`` tries, fewest micro-batches in flight first: F and whole B, one stage a rank.

The last two take the stages of a graph in one line for the warm-up alone, which keeps more micro-batches
in flight: the memory buys less waiting where stages are uneven.
"""


Report = Callable[[str], None]
"""Takes a line of progress: phase, best step time, lower bound, gap."""


@dataclass(frozen=True)
class Problem:
    """A planning problem.

    Attributes
    ----------
    profile : Profile
    cluster : Cluster, optional
        The device and links that the profile measured by default.
    num_devices : int
        Devices to plan for: the first ranks of the cluster.
    global_batch : int
        Samples of a step.
    microbatch_size : int, optional
        Fixes it; else every size of `microbatch_sizes` is tried.
    schedule : str
        A schedule of the catalogue that runs one stage a rank, or ``auto``; with pinned stages any of the catalogue.
    optimizer : str
        A key of `costmodel.stages.measured.OPTIMIZER_STATES`; with ``none`` the step has no optimizer.
    memory_limit_bytes : int, optional
        Bytes that a rank may hold; the memory of its device by default.
    max_stages : int, optional
        Most stages; the number of devices by default.
    time_limit_s : float
        Wall clock after which the search returns what it has.
    deterministic_limit : float, optional
        Work limit of the solver, in its own deterministic seconds: what it finds then does not depend on the machine.
    seed : int
    planner : str
        A key of `planner.planners.PLANNERS`.
    pins : Pins, optional
        What is fixed beforehand.
    choices : Choices
        What flags fix for every stage.
    target : str
        One of `planner.targets.TARGETS`, or empty: whatever takes the plan, the executor for one that is searched for.
    other_profiles : tuple of Profile
        Of the same model on the other device types of a mixed cluster.

    Raises
    ------
    UsageError
        When a value or a combination cannot be meant.
    InvalidInput
        When nothing in the profile takes any time.
    """

    profile: Profile
    cluster: Cluster | None
    num_devices: int
    global_batch: int
    microbatch_size: int | None = None
    schedule: str = AUTO
    optimizer: str = "none"
    memory_limit_bytes: int | None = None
    max_stages: int | None = None
    time_limit_s: float = 10.0
    deterministic_limit: float | None = None
    seed: int = 0
    planner: str = "ours"
    pins: Pins | None = None
    choices: Choices = field(default_factory=Choices)
    target: str = ""
    other_profiles: tuple[Profile, ...] = ()

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise UsageError(f"{self.num_devices} devices asked for; at least one is needed")
        if self.num_devices > self.machines.num_devices:
            raise UsageError(
                f"{self.num_devices} devices asked for; the cluster has {self.machines.num_devices}, take no more"
            )
        if self.global_batch < 1:
            raise UsageError(f"a batch of {self.global_batch} samples; at least one is needed")
        size = self.microbatch_size
        if size is not None and (size < 1 or self.global_batch % size):
            raise UsageError(
                f"micro-batch size {size} does not divide the batch of {self.global_batch}; "
                f"its divisors are {', '.join(map(str, divisors(self.global_batch)))}"
            )
        if self.max_stages is not None and self.max_stages < 1:
            raise UsageError(f"at most {self.max_stages} stages; at least one is needed")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise UsageError(f"a memory limit of {self.memory_limit_bytes} bytes; give the bytes a rank may hold")
        if self.optimizer not in OPTIMIZER_STATES:
            raise UsageError(f"optimizer {self.optimizer!r}; allowed are {', '.join(OPTIMIZER_STATES)}")
        if self.time_limit_s < 0 or (self.deterministic_limit is not None and self.deterministic_limit < 0):
            raise UsageError("a time limit is below 0; 0 keeps the heuristic plan alone")
        if not any(sum(times.forward_ns) for times in self.profile.times):
            raise InvalidInput(
                "every operator of the profile takes 0 ns; there is nothing to plan: profile the model again"
            )
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.choices.any or (self.pins and self.pins.stages):
            return  # `build_schedule` says what runs on the given ranks
        fitting = [name for name, kind in SCHEDULES.items() if kind.placement in ("line", "graph") and not kind.split]
        if self.schedule != AUTO and self.schedule not in fitting:
            raise UsageError(
                f"the schedule {self.schedule!r} does not run F and whole B with one stage a rank, which is what is "
                f"planned; choose {AUTO} or one of {', '.join(fitting)}"
            )

    @cached_property
    def machines(self) -> Cluster:
        """The cluster, or else as many devices as are asked for like the one that was profiled.

        A job with fixed choices on a device of the catalogue, whose links nobody measured, gets typical hosts.
        """
        if self.cluster:
            return self.cluster
        device = self.profile.device
        if self.has_typical_links:
            return typical_cluster(device.catalogue, self.num_devices)
        kind = DeviceType(device.name, device.memory_bytes, device.type, device.catalogue)
        return uniform_cluster(kind, self.num_devices, self.profile.links)

    @property
    def has_typical_links(self) -> bool:
        """Whether the links are the catalogue's, for want of others."""
        given = self.cluster or self.profile.links
        return self.choices.any and not given and bool(self.profile.device.catalogue)

    @property
    def num_stages(self) -> int:
        """Most stages that a plan may have: one device a stage."""
        return min(self.num_devices, self.max_stages or self.num_devices)

    @property
    def schedules(self) -> tuple[str, ...]:
        """Schedules to try, the simplest first."""
        return AUTO_SCHEDULES if self.schedule == AUTO else (self.schedule,)

    @cached_property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes to try: the divisors of the batch within the measured range, else the nearest to it.

        Outside that range times would be extrapolated, and a search likes nothing better than an optimistic guess.
        """
        if self.microbatch_size is not None:
            return (self.microbatch_size,)
        low, high = self.profile.microbatch_sizes[0], self.profile.microbatch_sizes[-1]
        inside = tuple(d for d in divisors(self.global_batch) if low <= d <= high)
        nearest = min(divisors(self.global_batch), key=lambda d: (abs(d - low), d))
        return inside or (nearest,)

    @cached_property
    def memory_limits_bytes(self) -> tuple[int, ...]:
        """Bytes that each rank may hold: the limit given, and never more than its device has (0: not known)."""
        limits = []
        for rank in range(self.num_devices):
            device = self.machines.device_of(rank).memory_bytes
            given = self.memory_limit_bytes or device
            limits.append(min(given, device) if device else given)
        return tuple(limits)

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each rank."""
        return tuple(self.machines.speed_of(rank) for rank in range(self.num_devices))

    @cached_property
    def priced_profile(self) -> Profile:
        """The profile, scaled where all devices are of another catalogue id than the one that was measured."""
        asked = {self.machines.device_of(rank).catalogue for rank in range(self.num_devices)}
        if len(asked) != 1 or not all(asked) or not self.profile.device.catalogue:
            return self.profile
        return scale_profile(self.profile, asked.pop())

    def estimated(self, microbatch_size: int) -> tuple[str, ...]:
        """Return why times at this micro-batch size are estimates; nothing where all were measured."""
        reasons = ["the profile's times are roofline estimates"] if self.profile.provenance.get("estimated") else []
        scaled = self.priced_profile.extra.get("estimated", ())
        reasons += map(str, scaled if isinstance(scaled, list | tuple) else (scaled,))
        sizes = self.priced_profile.microbatch_sizes
        if not sizes[0] <= microbatch_size <= sizes[-1]:
            reasons.append(
                f"times at micro-batch size {microbatch_size} are continued from the measured sizes {sizes[0]} to "
                f"{sizes[-1]}"
            )
        if self.has_typical_links:
            reasons.append("the links are those of a typical host with this device")
        return tuple(reasons)

    def cost_model(self, microbatch_size: int) -> CostModel:
        """Return the cost model at one micro-batch size."""
        return CostModel(self.priced_profile, self.machines, microbatch_size, self.optimizer)


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, rising."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)
