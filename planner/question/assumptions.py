"""What the prices of a plan rest on: links, convention, widths of states, what was estimated, how far that may be off.

Leaves out the prices (`costmodel.stages`), and what is told of them (`planner.report`).
"""

from math import prod

from costmodel.calibration import DENSE, ROUTED, around
from costmodel.model.origin import ROOFLINE
from costmodel.model.profile import Profile
from costmodel.stages.strategies import EXECUTOR
from costmodel.stages.strategies.trainers import habits_of
from planner.plan import Assumptions
from planner.question.problem import Problem


def estimated(problem: Problem, microbatch_size: int) -> tuple[str, ...]:
    """Return why times at this micro-batch size are estimates; nothing where all were measured."""
    reasons: list[str] = []
    for name in dict.fromkeys(problem.device_names):
        device = next(d for d in problem.machines.devices if d.name == name)
        reasons += problem.profile_on(device).origin.estimated
    sizes = problem.profile.microbatch_sizes
    if not sizes[0] <= microbatch_size <= sizes[-1]:
        reasons.append(
            f"times at micro-batch size {microbatch_size} are continued from the measured sizes {sizes[0]} to "
            f"{sizes[-1]}"
        )
    if problem.links_from == "typical":
        reasons.append("the links are those of a typical host with this device")
    if problem.links_from == "free":
        reasons.append("messages are free: no links were measured or given")
    return tuple(dict.fromkeys(reasons))


def assumptions(problem: Problem, microbatch_size: int) -> Assumptions:
    """Return what the prices of a plan rest on."""
    profiles = (problem.profile, *problem.other_profiles)
    training, profiled = problem.training, _profiled_width(problem.profile)
    width = training.width(profiled)
    sizes = {
        "parameters": width,
        "gradients": training.gradient_width(profiled),
        "optimizer": training.state_width(profiled),
        "master_weights": training.master_width,
    }
    return Assumptions(
        problem.links_from,
        problem.trainer_name,
        problem.optimizer,
        problem.precision_name or problem.profiled_precision,
        tuple((name, float(size)) for name, size in sizes.items()),
        "+".join(filter(None, (*(p.origin.calibration for p in profiles), problem.calibration.digest))),
        estimated(problem, microbatch_size),
        ()
        if problem.trainer_name == EXECUTOR
        else habits_of(problem.trainer_name).but(problem.habits).words(problem.precision_name),
    )


def step_interval(problem: Problem) -> tuple[float, float] | None:
    """Return between which multiples of a promised step four of five measured ones lie; None of measured operators.

    A user's own constants tell it by the error that their fit had on jobs that it was without.
    """
    devices = [device for device in problem.machines.devices if device.name in problem.device_names]
    if not all(ROOFLINE in problem.profile_on(device).origin.estimated for device in devices):
        return None
    named = [device.catalogue for device in devices]
    error = problem.calibration.step_error(named, problem.precision_name, problem.trainer_name)
    if error is not None:
        return around(error)
    routes = any(operator.work and operator.work.experts for operator in problem.profile.graph.operators)
    return problem.calibration.step_interval(named, problem.trainer_name, ROUTED if routes else DENSE)


def _profiled_width(profile: Profile) -> int:
    """Bytes of a value of the profile's parameters."""
    return max((p.size_bytes // max(1, prod(p.shape)) for p in profile.graph.parameters), default=4)
