"""What a planner is asked: one problem in, one plan out.

Says which choices are fixed and which are free (`planner.question.space`, `planner.question.pins`), and what every
candidate is priced with: machines, profile of each device type, trainer's convention, precision. Leaves out how plans
are found (`planner.search`) and what a stage costs (`costmodel.stages`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from costmodel.architectures.estimate import estimated_again
from costmodel.calibration import Calibration, published
from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.cluster import Cluster, uniform_cluster
from costmodel.machines.cluster_parts import DeviceType
from costmodel.machines.typical import typical_cluster
from costmodel.model.origin import ROOFLINE
from costmodel.model.profile import DTYPES, Profile
from costmodel.roofline import OPTIMIZERS, scale_profile
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies import EXECUTOR, StrategyModel, TrainingJob
from costmodel.stages.strategies.trainers import MEGATRON
from costmodel.stages.strategies.training import PRECISIONS
from planner.plan import Plan
from planner.question.effort import Effort, check_reach
from planner.question.pins import Pins
from planner.question.prices import Prices
from planner.question.space import Space
from planner.question.validation import (
    check_devices,
    check_limits,
    check_numbers,
    check_old_plan,
    check_rank_order,
    check_recompute_layers,
    check_stages,
    divisors,
    is_of,
)
from simulator.schedules import SCHEDULES

AUTO = "auto"
SIMPLICITY = 0.01
"""By what share of the best step a plan of fewer mechanisms may be slower and be chosen (`docs/planning.md`)."""
AUTO_SCHEDULES = ("graph-1f1b", "graph-eager-1f1b", "1f1b", "eager-1f1b")
"""What ``auto`` tries, fewest micro-batches in flight first: F and whole B, one stage a rank.

The last two take the stages of a graph in one line for the warm-up alone, which keeps more micro-batches
in flight: the memory buys less waiting where stages are uneven.
"""
BY_NAME = ("megatron", "deepspeed")
"""Trainers that make the orders of a few schedules themselves, by their names (`planner.question.pipeline_support`)."""
AUTO_NAMED = ("graph-1f1b", "1f1b")
"""What ``auto`` tries for these."""
ONE_A_DEVICE = "deepspeed"
"""The trainer whose devices hold one stage each."""
AUTO_LOOPED = ("interleaved-1f1b",)
"""What ``auto`` tries where a place of the pipeline holds several stages."""
ANY = "any"

Report = Callable[[str], None]
"""Takes a line of progress: phase, best step time, lower bound, gap."""


@dataclass(frozen=True)
class Problem:
    """A planning problem.

    Attributes
    ----------
    profile : Profile
    cluster : Cluster, optional
        By default the device and links that the profile measured, or else a typical host of its catalogue device.
    num_devices : int
        Devices to plan for: the first ranks of the cluster.
    global_batch : int
        Samples of a step.
    microbatch_size : int, optional
        Fixes it; else every size of `microbatch_sizes` is tried.
    schedule : str
        A schedule of the catalogue, or ``auto``.
    optimizer : str
        A key of `costmodel.roofline.OPTIMIZERS`; with ``none`` the step has no optimizer.
    precision : str
        One of `costmodel.stages.strategies.training.PRECISIONS`; empty for the profile's.
    memory_limit_bytes : int, optional
        Bytes that a rank may hold; the memory of its device by default.
    memory_margin_bytes : int
        Bytes that are to stay free on each device beyond the upper bound of memory.
    allow_tight : bool
        Whether a plan that may not fit is preferred to a slower one that fits.
    max_stages : int, optional
        Most stages; the number of devices by default.
    space : Space
        What flags fix for every stage.
    pins : Pins, optional
        What is fixed for single operators and stages.
    target : str
        One of `planner.question.targets.TARGETS`; by default the executor for profiles of torch modules, else any.
    trainer : str
        Whose convention stages are priced by: the target's by default, see `trainer_name`.
    habits : mapping
        In which the trainer is told otherwise than it is used (`costmodel.stages.strategies.trainers.SAID`).
    calibration : Calibration
        Sustained rates of links, and what calls cost a trainer's host.
    planner : str
        A key of `planner.search.planners.PLANNERS`.
    effort : Effort
    exact : bool
        Whether the best plan is to be proved the best (`planner.search.bounders.proof`).
    other_profiles : tuple of Profile
        Of the same model on the other device types of a mixed cluster.
    old_plan : Plan, optional
        From which the search starts: made when profile, machines or choices were others.
    prices : Prices, optional
        Of devices, in place of those of the cluster.
    simplicity : float
        By what share of the best step a simpler plan may be slower.

    Raises
    ------
    UsageError
        When a value or a combination cannot be meant.
    InvalidInput
        When nothing in the profile takes any time, or the old plan leaves out operators.
    DoesNotMatch
        When the old plan is of another model.
    """

    profile: Profile
    cluster: Cluster | None
    num_devices: int
    global_batch: int
    microbatch_size: int | None = None
    schedule: str = AUTO
    optimizer: str = "adam"
    precision: str = ""
    memory_limit_bytes: int | None = None
    memory_margin_bytes: int = 0
    allow_tight: bool = False
    max_stages: int | None = None
    space: Space = field(default_factory=Space)
    pins: Pins | None = None
    target: str = ""
    trainer: str = ""
    habits: Mapping[str, object] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=published)
    planner: str = "ours"
    effort: Effort = field(default_factory=Effort)
    other_profiles: tuple[Profile, ...] = ()
    exact: bool = False
    old_plan: Plan | None = None
    prices: Prices | None = None
    simplicity: float = SIMPLICITY

    def __post_init__(self) -> None:
        check_reach(self.num_devices, self.global_batch, self.microbatch_size or self.profile.microbatch_sizes[-1])
        available = self.machines.num_devices if self.num_devices > 0 else 0  # no cluster is made of no devices
        check_numbers(self.num_devices, available, self.global_batch, self.microbatch_size, self.space.data or 1)
        check_limits(self.max_stages, self.memory_limit_bytes, self.memory_margin_bytes, self.simplicity)
        if self.exact and self.planner != "ours":
            raise UsageError(f"--exact proves plans of --planner ours, not of {self.planner}; drop one of the two")
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"optimizer {self.optimizer!r}; allowed are {', '.join(OPTIMIZERS)}")
        if self.schedule != AUTO and self.schedule not in SCHEDULES:
            raise UsageError(f"no schedule is called {self.schedule!r}; there are {', '.join((AUTO, *SCHEDULES))}")
        self.calibration.check_trainer(self.trainer_name)
        if not any(sum(times.forward_ns) for times in self.profile.times):
            raise InvalidInput(
                "every operator of the profile takes 0 ns, as after a dry run; there is nothing to plan: estimate the "
                f"model's times (penstock model {self.profile.graph.name} --device ID), or measure them (penstock "
                "profile)"
            )
        self.space.check(self.num_devices, self.global_batch)
        if self.space.recompute_layers:
            check_recompute_layers(self.planner, self.target, exact=self.exact)
        graph = self.profile.graph
        check_stages(self.space, self.max_stages, len(self.pins.stages) if self.pins else 0, graph)
        devices = [self.machines.device_of(rank) for rank in range(self.num_devices)]
        check_devices(devices, self.precision_name, self.profile, self.other_profiles)
        if self.space.rank_order:
            unlike = len(set(zip(self.device_names, self.speeds, strict=True))) > 1
            pinned = bool(self.pins and self.pins.stages)
            check_rank_order(self.planner, self.target, self.space.ranks, pinned=pinned, unlike=unlike)
        if self.old_plan:
            check_old_plan(self.planner, self.old_plan, graph)

    @property
    def near(self) -> float:
        """How many times as long as the best step a simpler plan may take."""
        return 1 + self.simplicity

    @cached_property
    def machines(self) -> Cluster:
        """The cluster, else devices like the one that was profiled: on measured links, or on those of typical hosts."""
        return self.prices.applied_to(self._cluster) if self.prices else self._cluster

    @property
    def _cluster(self) -> Cluster:
        if self.cluster:
            return self.cluster
        device = self.profile.device
        if self.links_from == "typical":
            shares = (1.0, 1.0) if self.has_module else self.calibration.shares(device.catalogue)
            return typical_cluster(device.catalogue, self.num_devices, shares=shares)
        kind = DeviceType(device.name, device.memory_bytes, device.type, device.catalogue)
        return uniform_cluster(kind, self.num_devices, self.profile.links)

    @property
    def links_from(self) -> str:
        """Where the prices of messages come from: one of `planner.plan.parts.LINKS`."""
        if self.cluster:
            return "given"
        if self.profile.links:
            return "measured"
        return "typical" if self.profile.device.catalogue else "free"

    @property
    def has_module(self) -> bool:
        """Whether there is a torch module that the executor could run: not for described and imported models."""
        return not self.profile.origin.plan_only

    @property
    def trainer_name(self) -> str:
        """Whose convention stages are priced by: asked for, the target's, or what such a model is usually run by."""
        if self.trainer:
            return self.trainer
        if self.target and self.target != ANY:
            return self.target
        if self.profile.extra.get("trainer"):
            return str(self.profile.extra["trainer"])
        return EXECUTOR if self.has_module else MEGATRON

    @cached_property
    def profiled_precision(self) -> str:
        """Precision of the profile's own dtype; empty where it has no name here."""
        return DTYPES.get(self.profile.dtype.removeprefix("torch."), "")

    @cached_property
    def precision_name(self) -> str:
        """Mixed precision asked for, or that of a described model; empty where states are kept as profiled.

        So does the executor keep them, which trains a model in the dtype that it has.
        """
        said = self.profile.origin.precision
        found = self.precision or (said if said in PRECISIONS else "")
        return "" if self.trainer_name == EXECUTOR and found == self.profiled_precision else found

    @cached_property
    def training(self) -> TrainingJob:
        """What holds for every stage; measured operators hold their own host's calls, so a trainer's pace estimates."""
        job = TrainingJob.of(self.trainer_name, self.precision_name, self.optimizer, self.habits, self.calibration)
        return job if ROOFLINE in self.profile.origin.estimated else replace(job, call_ns=0.0)

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Schedules to try where each place holds one stage, the simplest first."""
        auto = AUTO_NAMED if self.target in BY_NAME else AUTO_SCHEDULES
        return auto if self.schedule == AUTO else (self.schedule,)

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes to try on one replica."""
        return self.microbatch_sizes_of(1)

    def microbatch_sizes_of(self, data: int) -> tuple[int, ...]:
        """Micro-batch sizes to try with a number of replicas: divisors of a replica's batch in the measured range.

        Else the one nearest to it: outside that range times would be extrapolated, and a search likes nothing better
        than an optimistic guess.
        """
        if self.microbatch_size is not None:
            return (self.microbatch_size,) if self.global_batch % (self.microbatch_size * data) == 0 else ()
        if self.global_batch % data:
            return ()
        known = divisors(self.global_batch // data)
        low, high = self.profile.microbatch_sizes[0], self.profile.microbatch_sizes[-1]
        inside = tuple(d for d in known if low <= d <= high)
        return tuple(filter(self._is_taken_whole, inside)) or inside or (min(known, key=lambda d: (abs(d - low), d)),)

    def _is_taken_whole(self, microbatch_size: int) -> bool:
        """Whether the number of micro-batches is a multiple of what each pinned stage takes at a time."""
        number, stages = self.global_batch // microbatch_size, self.pins.stages if self.pins else ()
        return all(number % pin.microbatch_multiple == 0 for pin in stages)

    @cached_property
    def memory_limits_bytes(self) -> tuple[int, ...]:
        """Bytes that each rank may hold: the limit given, and never more than its device has (0: not known)."""
        limits = []
        for rank in range(self.num_devices):
            device = self.machines.device_of(rank).memory_bytes
            given = self.memory_limit_bytes or device
            limits.append(min(given, device) if device else given)
        return tuple(limits)

    @property
    def prefers_room(self) -> bool:
        """Whether a plan that fits for sure is preferred to a faster one that may not fit."""
        return self.planner in ("ours", "chain") and not self.exact and not self.allow_tight

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each rank."""
        known = dict(self.machines.speeds)
        return tuple(known.get(rank, 1.0) for rank in range(self.num_devices))

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """Device type of each rank."""
        return tuple(self.machines.device_of(rank).name for rank in range(self.num_devices))

    @cached_property
    def pairs_alike(self) -> tuple[tuple[int, int], ...]:
        """One pair of ranks for each link that joins any and the devices at its ends.

        Neighbours, and ranks one group of a link apart, meet every link.
        """
        found: dict[object, tuple[int, int]] = {}
        steps = {1, *(group.group for group in self.machines.groups)}
        for step in sorted(step for step in steps if 0 < step < self.num_devices):
            for i in range(self.num_devices - step):
                link = self.machines.link_between(i, i + step).name
                found.setdefault((link, self.device_names[i], self.device_names[i + step]), (i, i + step))
        return tuple(found.values())

    def profile_on(self, device: DeviceType) -> Profile:
        """Return the profile of a device type: the one that was made on it, else the first one scaled to it."""
        own = [profile for profile in self._profiles if is_of(profile, device)]
        if own or not (device.catalogue and self.profile.device.catalogue):
            return own[0] if own else self._profiles[0]
        return self._scaled(device.catalogue)

    @cached_property
    def _profiles(self) -> tuple[Profile, ...]:
        """The profiles, estimates as they are in the precision asked for and by the calibration."""
        given = (self.profile, *self.other_profiles)
        return tuple(estimated_again(profile, self.precision, self.calibration) for profile in given)

    def _scaled(self, catalogue: str) -> Profile:
        if catalogue not in self._scaled_profiles:
            self._scaled_profiles[catalogue] = scale_profile(self._profiles[0], catalogue)
        return self._scaled_profiles[catalogue]

    @cached_property
    def _scaled_profiles(self) -> dict[str, Profile]:
        return {}

    def measured(self, microbatch_size: int) -> MeasuredOperators:
        """Return the first profile's operators at one micro-batch size."""
        used = set(self.device_names)
        first = next(device for device in self.machines.devices if device.name in used)
        return self.stage_model(first, microbatch_size).measured

    def stage_model(self, device: DeviceType, microbatch_size: int) -> StrategyModel:
        """Return the one price of stages on a device type at one micro-batch size."""
        key = (device.name, microbatch_size)
        if key not in self._models:
            profile = self.profile_on(device)
            self._models[key] = StrategyModel(profile, self.machines, microbatch_size, self.training)
        return self._models[key]

    @cached_property
    def _models(self) -> dict[tuple[str, int], StrategyModel]:
        return {}
