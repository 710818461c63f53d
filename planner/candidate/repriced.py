"""A plan that is there, priced anew with a profile of its model: the same stages, places and orders.

Leaves out other machines and batches (`planner.report.changes`), and whether another plan would be better now.
"""

from dataclasses import replace

from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from planner.ask.again import as_it_is
from planner.candidate.again import priced_again
from planner.candidate.order import in_split_form
from planner.plan import Plan
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
    found = priced_again(plan, replace(problem, cluster=machines))
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
