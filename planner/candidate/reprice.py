"""A plan that is there, priced anew with a profile of its model or other constants: the same stages, places and orders.

Leaves out other machines and batches (`planner.report.whatif`), and whether another plan would be better now.
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.calibration import Calibration
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from planner.candidate.from_plan_file import priced_again
from planner.candidate.make import expected_ns
from planner.candidate.order import in_split_form
from planner.plan import Plan, Prediction, SearchResult
from planner.plan.lockstep import spread
from planner.plan.replay import replay
from planner.question.assumptions import assumptions
from planner.question.problem import Problem
from planner.question.reask import as_it_is
from simulator.actions import Kind, parse_action


def repriced(plan: Plan, profile: Profile, *, host_time: bool = True) -> Plan:
    """Return the plan with the prices that a profile gives its stages and edges; its prediction stays the old one.

    Parameters
    ----------
    plan : Plan
    profile : Profile
        Its links count where the plan's were measured, else the plan's own cluster.
    host_time : bool
        Whether F, B and I hold what messages take of their ranks.

    Raises
    ------
    DoesNotMatch
        When the profile is of another model.
    """
    problem = as_it_is(plan, [profile], plan.cluster, plan.batch.global_size)
    if plan.assumptions.links == "measured" and profile.links:
        problem = replace(problem, cluster=None)
    machines = problem.machines if host_time else _without_host_time(problem.machines)
    return _priced(plan, replace(problem, cluster=machines))


def calibrated(plan: Plan, profiles: Sequence[Profile], calibration: Calibration) -> Plan:
    """Return the plan as constants price it, with what its orders then take.

    What was proved or tried in addition when it was planned is left out: it was priced by others.

    Raises
    ------
    DoesNotMatch
        When the profiles are of another model.
    """
    problem = as_it_is(plan, profiles, plan.cluster, plan.batch.global_size, calibration)
    found = _priced(plan, problem)
    timeline = replay(found)
    step_ns = timeline.step_time_ns
    assumed = replace(plan.assumptions, calibration=assumptions(problem, plan.batch.microbatch_size).calibration)
    return replace(
        found,
        prediction=Prediction(
            step_ns,
            timeline.span_ns,
            timeline.bubble_ratio,
            spread(plan.blocks, timeline.peak_memory_bytes),
            plan.prediction.peak_memory_upper_bytes,
            expected_ns(problem, step_ns),
        ),
        search=SearchResult("heuristic", step_ns, None, "", best_step_time_ns=step_ns),
        assumptions=assumed,
        rungs=(),
    )


def _priced(plan: Plan, problem: Problem) -> Plan:
    """Return a plan at a problem's prices, backwards divided where its orders divide them."""
    found = priced_again(plan, problem)
    split = {action.stage for action in map(parse_action, _texts(plan)) if action.kind is Kind.I}
    costs = in_split_form(found.costs(), split, problem.measured(plan.batch.microbatch_size).split_ratios)
    stages = zip(found.stages, costs.stages, strict=True)
    return replace(found, stages=tuple(replace(stage, cost=cost) for stage, cost in stages))


def _texts(plan: Plan) -> set[str]:
    return {text for order in plan.orders for text in order}


def _without_host_time(machines: Cluster) -> Cluster:
    links = machines.links
    if links is None:
        return machines
    kept = {name: link for name, link in links.classes.items() if name != "p2p_host"}
    return replace(machines, links=replace(links, classes=kept))
