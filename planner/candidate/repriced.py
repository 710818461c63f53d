"""A plan that is there, priced anew with a profile of its model: the same stages, places and orders.

Leaves out whether another plan would be better now: that is the search's.
"""

from dataclasses import replace

from costmodel.errors import DoesNotMatch
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from planner.ask.problem import Problem
from planner.candidate.candidate import Place
from planner.candidate.flows import flows_between
from planner.candidate.order import in_split_form
from planner.candidate.price import Pricer
from planner.graph.atoms import Atoms
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
    problem = problem_of(plan, profile)
    machines = problem.machines if host_time else _without_host_time(problem.machines)
    problem = replace(problem, cluster=machines)
    atoms = Atoms(profile.graph, tuple((i,) for i in range(len(profile.graph.operators))))
    stage_of = {name: i for i, stage in enumerate(plan.stages) for name in stage.operators}
    partition = tuple(stage_of[operator.name] for operator in profile.graph.operators)
    places = [Place(stage.config, stage.ranks, stage.microbatch_multiple) for stage in plan.stages]
    in_line = {(edge.source, edge.target) for edge in plan.edges} != set(flows_between(atoms, partition))
    costs = Pricer(problem, atoms, plan.batch.microbatch_size).price(partition, places, in_line).costs
    split = {action.stage for action in map(parse_action, _texts(plan)) if action.kind is Kind.I}
    costs = in_split_form(costs, split, problem.measured(plan.batch.microbatch_size).split_ratios)
    p2p_ns = {(edge.source, edge.target): edge.p2p_ns for edge in costs.edges}
    return replace(
        plan,
        cluster=machines,
        stages=tuple(replace(stage, cost=cost) for stage, cost in zip(plan.stages, costs.stages, strict=True)),
        edges=tuple(replace(edge, p2p_ns=p2p_ns[edge.source, edge.target]) for edge in plan.edges),
    )


def problem_of(plan: Plan, profile: Profile) -> Problem:
    """Return the question that a plan answers, asked with a profile.

    Raises
    ------
    DoesNotMatch
        When the profile is of another model.
    """
    if profile.graph.fingerprint != plan.fingerprint:
        raise DoesNotMatch(
            f"the plan is of the model {plan.model_name!r} (fingerprint {plan.fingerprint[:12]}), and the profile of "
            f"{profile.graph.name!r} ({profile.graph.fingerprint[:12]}); give a profile of the plan's model"
        )
    return Problem(
        profile,
        None if plan.assumptions.links == "measured" and profile.links else plan.cluster,
        len(plan.orders),
        plan.batch.global_size,
        optimizer=plan.training.optimizer or plan.assumptions.optimizer or "none",
        precision=plan.assumptions.precision,
        trainer=plan.assumptions.trainer,
    )


def _texts(plan: Plan) -> set[str]:
    return {text for order in plan.orders for text in order}


def _without_host_time(machines: Cluster) -> Cluster:
    links = machines.links
    if links is None:
        return machines
    kept = {name: link for name, link in links.classes.items() if name != "p2p_host"}
    return replace(machines, links=replace(links, classes=kept))
