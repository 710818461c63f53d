"""Whether the parts of a problem go together: choices and model, profiles and devices, the old plan and the planner.

Leaves out choices that flags fix for every stage (`planner.question.space`).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt

from costmodel.errors import UsageError
from costmodel.machines.catalogue import check_precision
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster_parts import DeviceType
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from planner.plan import Plan
from planner.plan.rank_order import RankOrder
from planner.question.in_stage_support import rank_order_refusal
from planner.question.same_model import check_same_model
from planner.question.space import Space

STARTED = ("ours", "chain")
"""Planners whose search may start from an old plan."""


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, rising."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(dict.fromkeys([*small, *(number // d for d in reversed(small))]))


def check_numbers(num_devices: int, available: int, batch: int, microbatch_size: int | None, data: int) -> None:
    """Refuse numbers of devices, and a batch, that cannot be meant (`UsageError`)."""
    if num_devices < 1:
        raise UsageError(f"{num_devices} devices asked for; at least one is needed")
    if num_devices > available:
        raise UsageError(f"{num_devices} devices asked for; the cluster has {available}, take no more")
    if batch < 1:
        raise UsageError(f"a batch of {batch} samples; at least one is needed")
    size = microbatch_size
    if size is not None and (size < 1 or (batch % data == 0 and batch % (size * data))):
        raise UsageError(
            f"micro-batch size {size} does not divide the batch of {batch}"
            + (f" on {data} replicas" if data > 1 else "")
            + f"; its divisors are {', '.join(map(str, divisors(batch // data)))}"
        )


def check_limits(max_stages: int | None, memory_bytes: int | None, margin_bytes: int, simplicity: float) -> None:
    """Refuse limits of stages and memory, and a tie, that cannot be meant (`UsageError`)."""
    if max_stages is not None and max_stages < 1:
        raise UsageError(f"at most {max_stages} stages; at least one is needed")
    if memory_bytes is not None and memory_bytes < 1:
        raise UsageError(f"a memory limit of {memory_bytes} bytes; give the bytes a rank may hold")
    if margin_bytes < 0:
        raise UsageError(f"a memory margin of {margin_bytes} bytes; give those that are to stay free, or 0")
    if not 0 <= simplicity < 1:
        raise UsageError(f"a simpler plan may be slower by a share of {simplicity}; it lies from 0 to 1")


def check_old_plan(planner: str, old: Plan, graph: OperatorGraph) -> None:
    """Refuse an old plan that no search of this planner could start from.

    Raises
    ------
    UsageError
        Names the planner.
    DoesNotMatch
        When the old plan is of another model.
    """
    if planner not in STARTED:
        raise UsageError(
            f"--from starts a search of --planner {' or '.join(STARTED)}, and {planner} has none that could "
            "start so; drop one of the two"
        )
    check_same_model(old, graph)


def check_stages(space: Space, max_stages: int | None, num_pinned: int, graph: OperatorGraph) -> None:
    """Refuse choices that contradict each other, or the model.

    Raises
    ------
    UsageError
        Names the two.
    """
    stages = (space.stages or 1) * (space.chunks or 1)
    if max_stages is not None and max_stages < stages:
        raise UsageError(f"--max-stages {max_stages} is below the {stages} stages; drop one")
    if max_stages is not None and max_stages < num_pinned:
        raise UsageError(f"--max-stages {max_stages}, and the pins give {num_pinned} stages; drop one")
    works = [operator.work for operator in graph.operators]
    asked = [f"--expert {space.expert}"] * ((space.expert or 1) > 1)
    asked += [f"--expert-tensor {space.expert_tensor}"] * (space.expert_tensor not in (None, 1, space.tensor))
    if asked and not any(work and work.experts for work in works):
        raise UsageError(f"{' and '.join(asked)}, and {graph.name} has no experts; drop it")


def check_recompute_layers(planner: str, target: str, *, exact: bool) -> None:
    """Refuse recompute of some layers of each stage where it is not known.

    Raises
    ------
    UsageError
        Names the flag that goes with all layers alone.
    """
    flag = f"--planner {planner}" if planner not in STARTED else "--exact" if exact else ""
    flag = flag or f"--target {target}" * (target in ("torchtitan", "deepspeed"))
    if flag:
        raise UsageError(
            f"--recompute-layers and {flag} do not go together, which knows all layers of a stage or none; drop one"
        )


def check_rank_order(planner: str, target: str, order: RankOrder, *, pinned: bool, unlike: bool) -> None:
    """Refuse an order of ranks where places take these otherwise.

    Raises
    ------
    UsageError
        Names what takes them.
    """
    flag = f"--planner {planner}" if planner not in STARTED else "[[stage]] in --pin" if pinned else ""
    flag = flag or "devices of several types or speeds" * unlike
    if flag:
        raise UsageError(f"--rank-order and {flag} do not go together: these say which ranks stages take; drop one")
    if why := rank_order_refusal(target, order):
        raise UsageError(f"--target {target} does not run {why}; drop one of the two")


def check_devices(devices: Sequence[DeviceType], precision: str, profile: Profile, others: Sequence[Profile]) -> None:
    """Refuse precisions that a device lacks, and profiles that no device or another model is of.

    Raises
    ------
    UsageError
        Names the device or the profile.
    """
    for name in sorted({device.catalogue for device in devices} - {""}):
        if precision:
            check_precision(catalogue_device(name), precision)
    for each in others:
        if each.graph.fingerprint != profile.graph.fingerprint:
            raise UsageError(
                f"the profiles are of the models {profile.graph.name} and {each.graph.name}, which differ; "
                "give profiles of one model, one a device type"
            )
    for each in (profile, *others) if others else ():
        if not any(is_of(each, device) for device in devices):
            raise UsageError(
                f"a profile was made on {each.device.name!r}, and the devices are "
                f"{', '.join(sorted({device.name for device in devices}))}; give one profile a device type of the "
                "cluster"
            )


def is_of(profile: Profile, device: DeviceType) -> bool:
    """Whether a profile was made on this type of device."""
    if device.catalogue and profile.device.catalogue:
        return device.catalogue == profile.device.catalogue
    return device.name == profile.device.name
