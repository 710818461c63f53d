"""The table of forms, and the one way to export: a plan in, texts by file name out, or a refusal that names a way out.

Leaves out writing them.
"""

from collections.abc import Callable, Mapping

from costmodel.errors import DoesNotMatch, ReadableButWrong
from planner.checker import check_plan
from planner.export import deepspeed, megatron, torch_csv, torchtitan
from planner.plan import Plan
from planner.plan.fitting import FITS
from planner.plan.replica import replica_orders
from planner.question.pipeline_support import FORMS as RULES
from planner.question.pipeline_support import Job, not_taken
from planner.question.problem import BY_NAME
from simulator.schedules import build_schedule
from simulator.uniform import uniform_costs

FORMS: Mapping[str, Callable[[Plan], dict[str, str]]] = {
    "torch-csv": torch_csv.files,
    "torchtitan": torchtitan.files,
    "megatron": megatron.files,
    "deepspeed": deepspeed.files,
}
"""For each of `planner.question.pipeline_support.FORMS` what its files hold, by name."""


def export(plan: Plan, form: str) -> dict[str, str]:
    """Return the files of a plan for a trainer.

    Raises
    ------
    ReadableButWrong
        When the checker finds a problem in the plan.
    DoesNotMatch
        When it does not take the plan: says what of it, and the nearest that it takes.
    """
    problems = check_plan(plan)
    if problems:
        raise ReadableButWrong(f"{problems[0].place}: {problems[0].message}; penstock validate says more")
    reason = not_taken(form, plan) or (_other_orders(plan) if form in BY_NAME else "")
    if reason:
        raise DoesNotMatch(f"{form} does not take this plan: {reason}; {_way_out(plan, form)}")
    return FORMS[form](plan)


def _other_orders(plan: Plan) -> str:
    """Return whether a place works in another order than the plan's schedule has by its name."""
    places = len(Job(plan).places)
    costs = uniform_costs(places, len(plan.stages) // places, 1, 1, 1)
    count = plan.batch.num_microbatches // plan.stages[0].config.data
    named = build_schedule(plan.schedule, costs, count).orders
    for place, (own, other) in enumerate(zip(replica_orders(plan) or (), named, strict=True)):
        if [text for text in own if "R" not in text] != list(map(str, other)):
            return f"place {place}, which works in another order than {plan.schedule} has"
    return ""


def _way_out(plan: Plan, form: str) -> str:
    """Name the forms that take the plan as it is, the best of its ladder that this one takes, and how to get that."""
    others = [other for other in RULES if other != form and not not_taken(other, plan)]
    found = f"{', '.join(others)} {'take' if len(others) > 1 else 'takes'} it; " if others else ""
    if form == "torch-csv":
        return f"{found}plan with --planner chain, stages all alike and --recompute none"
    rungs = [rung for rung in plan.rungs if form in rung.runs_on and not rung.over_memory_bytes]
    if rungs:
        best = min(rungs, key=lambda rung: (rung.fits != FITS, rung.step_time_ns))
        slower = 100 * (best.step_time_ns / max(1, plan.prediction.step_time_ns) - 1)
        word, tight = "slower" if slower >= 0 else "faster", ", and may not fit" * (best.fits != FITS)
        found += f"of the plan's ladder it takes {best.strategy}, {abs(slower):.1f} % {word}{tight}; "
    asked = f"--devices {plan.cluster.num_devices} --batch {plan.batch.global_size} --target {form}"
    return f"{found}penstock plan PROFILE {asked} makes one"
