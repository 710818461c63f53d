"""Whether the parts of a problem go together: choices and model, profiles and devices, the old plan and the planner.

Leaves out what one value may be by itself (`planner.ask.problem`).
"""

from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from costmodel.machines.catalogue import check_precision
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.parts import DeviceType
from costmodel.model.profile import Profile
from planner.ask.same_model import check_same_model
from planner.plan import Plan

if TYPE_CHECKING:
    from planner.ask.problem import Problem

STARTED = ("ours", "chain")
"""Planners whose search may start from an old plan."""


def check_together(problem: "Problem") -> None:
    """Refuse what cannot be meant together.

    Raises
    ------
    UsageError
        Names the two.
    DoesNotMatch
        When the old plan is of another model.
    """
    _check_stages(problem)
    _check_devices(problem)
    if problem.old_plan:
        _check_old_plan(problem, problem.old_plan)


def _check_old_plan(problem: "Problem", old: Plan) -> None:
    if problem.planner not in STARTED:
        raise UsageError(
            f"--from starts a search of --planner {' or '.join(STARTED)}, and {problem.planner} has none that could "
            "start so; drop one of the two"
        )
    check_same_model(old, problem.profile.graph)


def _check_stages(problem: "Problem") -> None:
    stages = (problem.space.stages or 1) * (problem.space.chunks or 1)
    if problem.max_stages is not None and problem.max_stages < stages:
        raise UsageError(f"--max-stages {problem.max_stages} is below the {stages} stages; drop one")
    num_pinned = len(problem.pins.stages) if problem.pins else 0
    if problem.max_stages is not None and problem.max_stages < num_pinned:
        raise UsageError(f"--max-stages {problem.max_stages}, and the pins give {num_pinned} stages; drop one")
    works = [operator.work for operator in problem.profile.graph.operators]
    if (problem.space.expert or 1) > 1 and not any(work and work.experts for work in works):
        raise UsageError(f"--expert {problem.space.expert}, and {problem.profile.graph.name} has no experts; drop it")


def _check_devices(problem: "Problem") -> None:
    """Refuse precisions that a device lacks, and profiles that no device or another model is of."""
    devices = [problem.machines.device_of(rank) for rank in range(problem.num_devices)]
    for name in sorted({device.catalogue for device in devices} - {""}):
        if problem.precision_name:
            check_precision(catalogue_device(name), problem.precision_name)
    for profile in problem.other_profiles:
        if profile.graph.fingerprint != problem.profile.graph.fingerprint:
            raise UsageError(
                f"the profiles are of the models {problem.profile.graph.name} and {profile.graph.name}, which differ; "
                "give profiles of one model, one a device type"
            )
    for profile in (problem.profile, *problem.other_profiles) if problem.other_profiles else ():
        if not any(is_of(profile, device) for device in devices):
            raise UsageError(
                f"a profile was made on {profile.device.name!r}, and the devices are "
                f"{', '.join(sorted({device.name for device in devices}))}; give one profile a device type of the "
                "cluster"
            )


def is_of(profile: Profile, device: DeviceType) -> bool:
    """Whether a profile was made on this type of device."""
    if device.catalogue and profile.device.catalogue:
        return device.catalogue == profile.device.catalogue
    return device.name == profile.device.name
