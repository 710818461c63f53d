"""The question that a plan answers, asked again: as it was, on other machines, for another batch, or of its stages.

What the plan file says of its making (`provenance`) is used as far as it goes. It has pins by their patterns
alone, so that they have to be given again. Leaves out an exact search.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from costmodel.calibration import Calibration, published
from costmodel.errors import DoesNotMatch, UsageError
from costmodel.files import Node
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from planner.plan import Plan
from planner.plan.provenance import margin_of, memory_limit_of, number_of, options_of
from planner.question.assumptions import assumptions
from planner.question.effort import Effort
from planner.question.pins import Pins
from planner.question.problem import AUTO, Problem
from planner.question.same_model import check_same_model, check_same_samples
from planner.question.space import Space
from planner.question.validation import is_of


def as_it_is(
    plan: Plan,
    profiles: Sequence[Profile],
    cluster: Cluster,
    global_batch: int,
    calibration: Calibration | None = None,
) -> Problem:
    """Return the problem in which a plan's own stages are priced on a cluster, by its own calibration or another.

    Raises
    ------
    DoesNotMatch, InvalidInput
        As `check_same_model` and `check_same_samples`, and for profiles of other devices where links are typical.
    """
    return _asked(plan, profiles, cluster, len(plan.orders), global_batch, calibration)


def _asked(
    plan: Plan,
    profiles: Sequence[Profile],
    cluster: Cluster | None,
    num_devices: int,
    global_batch: int,
    calibration: Calibration | None = None,
) -> Problem:
    """Return the problem on `num_devices` devices; profiles of types of device that are not among them are left out.

    Typical links are those of the calibration, which has constants of theirs.
    """
    check_same_model(plan, profiles[0].graph, "plan", "--profile")
    check_same_samples(plan, profiles[0].graph)
    known, habits = calibration or _calibration(plan), options_of(plan).get("habits")
    if calibration and plan.assumptions.links == "typical":
        cluster = None
    if cluster is None:
        _check_device(plan, profiles)
    types = [cluster.device_of(rank) for rank in range(num_devices)] if cluster else []
    first, *others = [each for each in profiles if any(is_of(each, device) for device in types)] or profiles
    problem = Problem(
        profile=first,
        other_profiles=tuple(others),
        cluster=cluster,
        num_devices=num_devices,
        habits=habits if isinstance(habits, dict) else {},
        calibration=known,
        global_batch=global_batch,
        microbatch_size=plan.batch.microbatch_size,
        optimizer=plan.assumptions.optimizer or plan.training.optimizer or "none",
        memory_limit_bytes=memory_limit_of(plan),
        memory_margin_bytes=margin_of(plan),
        trainer=plan.assumptions.trainer,
    )
    return _in_its_precision(problem, plan)


def _check_device(plan: Plan, profiles: Sequence[Profile]) -> None:
    """Refuse profiles of other devices where typical links are asked for: they would be those of these devices."""
    if not any(is_of(each, device) for each in profiles for device in plan.cluster.devices):
        raise DoesNotMatch(
            f"the plan is of {plan.cluster.devices[0].name!r}, and the profile was made on "
            f"{profiles[0].device.name!r}: nothing says which of the two is meant; give --profile a file of the plan's "
            "device"
        )


def _in_its_precision(problem: Problem, plan: Plan) -> Problem:
    """Return the problem in a plan's precision, which may be the profile's own, or asked for and priced otherwise."""
    named = replace(problem, precision=plan.assumptions.precision)
    sizes = plan.assumptions.bytes_per_parameter
    own = assumptions(problem, plan.batch.microbatch_size)
    alike = (own.precision, own.bytes_per_parameter) == (plan.assumptions.precision, sizes)
    return problem if alike or not plan.assumptions.precision else named


def asked_again(
    plan: Plan, profiles: Sequence[Profile], pins: Pins | None = None, calibration: Calibration | None = None
) -> Problem:
    """Return the problem that a plan answered, by its own calibration unless there is another.

    Raises
    ------
    DoesNotMatch, InvalidInput
        As `check_same_model` and `check_same_samples`, and for profiles of other devices where links are typical.
    UsageError
        When it was pinned, and there are no pins.
    """
    options = options_of(plan)
    if "pins" in options and pins is None:
        raise UsageError("the plan was made with pins, and a plan file does not hold them whole; give --pin FILE again")
    limits = {name: options.get(name) for name in ("time_limit_s", "deterministic_limit")}
    seconds = {name: float(value) for name, value in limits.items() if isinstance(value, int | float)}
    effort = Effort(**seconds, seed=number_of(plan.provenance.get("seed")) or 0)
    problem = planned_anew(plan, profiles, plan.cluster, num_devices_asked(plan), effort, calibration)
    if plan.assumptions.links == "typical":
        _check_device(plan, profiles)  # more devices than the cluster has get typical links again
    return replace(problem, pins=pins)


def num_devices_asked(plan: Plan) -> int:
    """Return how many devices a plan was asked for, which may use fewer."""
    asked = number_of(options_of(plan).get("devices")) or len(plan.orders)
    return min(max(asked, len(plan.orders)), plan.cluster.num_devices)


def planned_anew(
    plan: Plan,
    profiles: Sequence[Profile],
    cluster: Cluster | None,
    num_devices: int,
    effort: Effort,
    calibration: Calibration | None = None,
) -> Problem:
    """Return the problem that a plan answered, on another cluster (None: the profile's) and number of devices."""
    before = _asked(plan, profiles, cluster, num_devices, plan.batch.global_size, calibration)
    options = options_of(plan)
    fixed, names = options.get("fixed"), {field.name for field in fields(Space)}
    space = {name: value for name, value in fixed.items() if name in names} if isinstance(fixed, dict) else {}
    return replace(
        before,
        microbatch_size=number_of(options.get("microbatch_size")),
        schedule=str(options.get("schedule", AUTO)),
        max_stages=number_of(options.get("max_stages")),
        planner=str(options.get("planner", "ours")),
        target=str(options.get("target", "")),
        space=Space(**space),
        effort=effort,
    )


def _calibration(plan: Plan) -> Calibration:
    values = plan.provenance.get("calibration")
    known = Node(values, "/provenance/calibration", "the plan").entries() if values else {}
    found = {name: node.number() for name, node in known.items()}
    digest = plan.assumptions.calibration.rpartition("+")[2]
    return published().with_values(found, digest) if found else published()
