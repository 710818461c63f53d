"""What a job with fixed choices asks for: its shape, whether that can be, and who prices it.

A job that the executor runs is priced as the executor does it (`planner.placed`), any other as trainers do it
(`planner.grouped`). Leaves out the cut.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

from costmodel.errors import UsageError
from costmodel.machines.catalogue import check_precision
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import DeviceType
from costmodel.model.graph import Tensor
from costmodel.model.profile import Profile
from costmodel.roofline import scale_profile
from costmodel.stages.strategies import Training
from costmodel.stages.strategies.training import DTYPES, PRECISIONS
from planner.choices import Shape, shape_of
from planner.fixed import Pricing
from planner.grouped import GroupPricing
from planner.placed import PlacedStage, price
from planner.pricing import Layout
from planner.problem import Problem, divisors
from planner.targets import in_line


class Job:
    """A problem with what follows from its choices."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.shape = shape_of(problem.choices, problem.num_devices)
        self._check()

    def _check(self) -> None:
        problem, shape = self.problem, self.shape
        if problem.pins and problem.pins.stages:
            raise UsageError("[[stage]] pins give every stage its configuration, and so do the flags; drop one")
        if problem.max_stages is not None and problem.max_stages < shape.num_stages:
            raise UsageError(f"--max-stages {problem.max_stages} is below the {shape.num_stages} stages; drop one")
        if problem.planner == "single" and shape.num_stages > 1:
            raise UsageError(f"--planner single has one stage, and the flags make {shape.num_stages}; drop one")
        data, size = shape.config.data, problem.microbatch_size or 1
        if problem.global_batch % (data * size):
            raise UsageError(
                f"the batch of {problem.global_batch} does not divide into {data} replicas of micro-batches of {size}; "
                f"choose a --batch that is a multiple of {data * size}"
            )
        works = [operator.work for operator in problem.profile.graph.operators]
        if shape.config.expert > 1 and not any(work and work.experts for work in works):
            raise UsageError(
                f"--expert {shape.config.expert}, and {problem.profile.graph.name} has no experts; drop it"
            )
        self._check_devices()

    def _check_devices(self) -> None:
        """Refuse precisions that a device lacks, and profiles that no device or another model is of."""
        problem = self.problem
        devices = [problem.machines.device_of(rank) for rank in range(problem.num_devices)]
        for name in sorted({device.catalogue for device in devices} - {""}):
            if self.precision:
                check_precision(catalogue_device(name), self.precision)
        for profile in problem.other_profiles:
            if profile.graph.fingerprint != problem.profile.graph.fingerprint:
                raise UsageError(
                    f"the profiles are of the models {problem.profile.graph.name} and {profile.graph.name}, which "
                    "differ; give profiles of one model, one a device type"
                )
        for profile in (problem.profile, *problem.other_profiles) if problem.other_profiles else ():
            if not any(_is_of(profile, device) for device in devices):
                raise UsageError(
                    f"a profile was made on {profile.device.name!r}, and the devices are "
                    f"{', '.join(sorted({device.name for device in devices}))}; give one profile a device type of the "
                    "cluster"
                )

    @cached_property
    def precision(self) -> str:
        """The precision asked for, or that of a described model."""
        said = str(self.problem.profile.provenance.get("precision", ""))
        return self.problem.choices.precision or (said if said in PRECISIONS else "")

    @cached_property
    def as_executor(self) -> bool:
        """Whether the job is priced as the executor runs it."""
        problem, config = self.problem, self.shape.config
        if problem.target not in ("", "executor") or problem.profile.extra.get("plan_only"):
            return False
        profiled = DTYPES.get(problem.profile.dtype.removeprefix("torch."), "")
        return (
            config.tensor == config.context == config.expert == 1
            and config.zero <= 1
            and config.recompute != "selective"
            and config.offload == "none"
            and self.precision in ("", profiled)
            and not problem.other_profiles
        )

    @cached_property
    def pricings(self) -> tuple[Pricing, ...]:
        """One for each micro-batch size to try."""
        if self.as_executor:
            return tuple(_ReplicaPricing(self.problem, self.shape, size) for size in self._sizes)
        training = Training(precision=self.precision, optimizer=self.problem.optimizer)
        return tuple(GroupPricing(self.problem, self._profiles, self.shape, training, size) for size in self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes that divide a replica's part of the batch."""
        problem = self.problem
        if problem.microbatch_size:
            return (problem.microbatch_size,)
        own = problem.global_batch // self.shape.config.data
        low, high = problem.profile.microbatch_sizes[0], problem.profile.microbatch_sizes[-1]
        inside = tuple(d for d in divisors(own) if low <= d <= high)
        return inside or (min(divisors(own), key=lambda d: (abs(d - low), d)),)

    @cached_property
    def _profiles(self) -> Mapping[str, Profile]:
        """The profile of each device type: the one that was made on it, else the first one scaled to it."""
        problem = self.problem
        given = (problem.profile, *problem.other_profiles)
        found: dict[str, Profile] = {}
        for rank in range(problem.num_devices):
            device = problem.machines.device_of(rank)
            if device.name not in found:
                own = [profile for profile in given if _is_of(profile, device)]
                scaled = problem.profile.device.catalogue and device.catalogue
                found[device.name] = (
                    own[0] if own else (scale_profile(problem.profile, device.catalogue) if scaled else problem.profile)
                )
        return found


def _is_of(profile: Profile, device: DeviceType) -> bool:
    """Whether a profile was made on this type of device."""
    if device.catalogue and profile.device.catalogue:
        return device.catalogue == profile.device.catalogue
    return device.name == profile.device.name


class _ReplicaPricing:
    """Prices cuts whose stages have replicas alone, as the executor runs them."""

    def __init__(self, problem: Problem, shape: Shape, microbatch_size: int) -> None:
        self.problem, self.shape, self.microbatch_size = problem, shape, microbatch_size
        self._model = problem.cost_model(microbatch_size)

    @cached_property
    def work_ns(self) -> tuple[int, ...]:
        """What each operator takes."""
        model = self._model
        each = zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True)
        return tuple(map(sum, each))

    def work_at(self, place: int) -> tuple[int, ...]:
        """Return what each operator takes at a place: the same at all, the profile being one device's."""
        return self.work_ns

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor."""
        return self._model.tensor_bytes(tensor)

    def price(self, stages: Sequence[tuple[int, ...]]) -> Layout:
        """Price a cut."""
        shape = self.shape
        placed = [PlacedStage(row, shape.ranks(i % shape.places), shape.config) for i, row in enumerate(stages)]
        return price(self.problem, self.microbatch_size, placed, in_line(self.problem))
