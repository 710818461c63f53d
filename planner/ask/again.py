"""The question that a plan answers, asked again of the same model: as it was, or with some of it changed.

Machines, batch and optimizer stand in the plan; which planner, limits and fixed choices were asked for, in its
provenance. Pins do not stand there whole, so that a pinned plan is asked again only with its pins. Leaves out the
answer (`planner.front.make_plan`).
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from costmodel.architectures.estimate import recalibrated
from costmodel.calibration import Calibration, published
from costmodel.errors import InvalidInput, UsageError
from costmodel.files import Node
from costmodel.model.profile import Profile
from planner.ask.effort import Effort
from planner.ask.pins import Pins
from planner.ask.problem import Problem
from planner.ask.same_model import check_same_model
from planner.ask.space import Space
from planner.plan import Plan

_TEXTS = ("planner", "schedule", "target")
_WHOLE = ("microbatch_size", "memory_limit_bytes", "max_stages")


def asked_again(
    plan: Plan, profiles: Sequence[Profile], pins: Pins | None = None, calibration: Calibration | None = None
) -> Problem:
    """Return the problem of a plan; what is to change is then replaced.

    Parameters
    ----------
    plan : Plan
    profiles : sequence of Profile
        Of the plan's model, one a device type; the first is that of the first one.
    pins : Pins, optional
        Those that the plan was made with.
    calibration : Calibration, optional
        In place of the one that the plan was made with.

    Raises
    ------
    DoesNotMatch
        When the profiles are of another model.
    InvalidInput
        When the plan does not say what was asked.
    UsageError
        When it was pinned, and there are no pins.
    """
    check_same_model(plan, profiles[0].graph)
    options = Node(dict(plan.provenance), "/provenance", "the plan").entries().get("options")
    if options is None:
        raise InvalidInput(
            "the plan does not say what was asked (/provenance/options); make it again with penstock plan"
        )
    asked = options.entries()
    if "pins" in asked and pins is None:
        raise UsageError("the plan was made with pins, and a plan file does not hold them whole; give --pin FILE again")
    cluster, known = plan.cluster, calibration or _calibration(plan)
    profile, *others = (recalibrated(profile, known) for profile in profiles)
    problem = Problem(
        profile=profile,
        other_profiles=tuple(others),
        cluster=cluster,
        num_devices=min(asked["devices"].integer(1), cluster.num_devices),
        global_batch=plan.batch.global_size,
        optimizer=plan.training.optimizer,
        trainer=plan.assumptions.trainer,
        habits={name: node.value for name, node in asked["habits"].entries().items()} if "habits" in asked else {},
        calibration=known,
        pins=pins,
        space=_space(asked["fixed"]),
        effort=_effort(plan, asked),
        **{name: asked[name].text() for name in _TEXTS},  # type: ignore[arg-type]
        **{name: None if asked[name].value is None else asked[name].integer(1) for name in _WHOLE},  # type: ignore[arg-type]
    )
    own = problem.precision_name or problem.profiled_precision
    said = plan.assumptions.precision
    return problem if own == said else replace(problem, precision=said)


def _calibration(plan: Plan) -> Calibration:
    values = plan.provenance.get("calibration")
    known = Node(values, "/provenance/calibration", "the plan").entries() if values else {}
    found = {name: node.number() for name, node in known.items()}
    return published().with_values(found, plan.assumptions.calibration) if found else published()


def _space(node: Node) -> Space:
    fixed = node.entries()
    unknown = fixed.keys() - {field.name for field in fields(Space)}
    if unknown:
        node.fail(f"the choices that can be fixed are {', '.join(field.name for field in fields(Space))}")
    return Space(**{name: value.value for name, value in fixed.items()})  # type: ignore[arg-type]


def _effort(plan: Plan, asked: dict[str, Node]) -> Effort:
    limit = asked["deterministic_limit"]
    return Effort(
        asked["time_limit_s"].number(),
        None if limit.value is None else limit.number(),
        Node(dict(plan.provenance), "/provenance", "the plan").entries()["seed"].integer(),
    )
