"""The plan checker: says what is wrong with a plan, by code of its own.

Derives partition, order, messages, times and memory anew from the plan file; imports neither the simulator
nor the search, and needs the standard library alone. Checks build on each other: while orders are not
legal there are no times to compare, so later checks wait until earlier ones find nothing.
"""

from collections.abc import Iterator, Mapping

from costmodel.machines.cluster import Cluster
from costmodel.model.graph import OperatorGraph
from planner.checker.claims import claim_problems, executor_problems, tied_problems
from planner.checker.closing import closing_problems, shared_stages
from planner.checker.figures import (
    batch_problems,
    cluster_problems,
    link_problems,
    memory_problems,
    prediction_problems,
    search_problems,
)
from planner.checker.gathering import gathering_problems
from planner.checker.memory import Ledger
from planner.checker.messages import data_problems, message_problems, other_ends, pairing_problems
from planner.checker.orders import compute_steps, count_problems, sequence_problems
from planner.checker.partition import border_problems, configuration_problems, flow_problems, operator_problems
from planner.checker.problem import KINDS, PlanProblem
from planner.checker.rank_order import rank_order_problems
from planner.checker.rendezvous import deadlock_problems
from planner.checker.replicas import FirstReplica, first_replica
from planner.checker.steps import Layout, Orders, lead_of_ranks, lockstep_problems, read_steps
from planner.checker.times import times_of
from planner.plan import Plan

__all__ = ["KINDS", "UNSEEN", "PlanProblem", "check_plan", "executor_problems", "tied_problems"]

UNSEEN = (
    "that the operators are the model's",
    "that every tensor and gradient travels where it is needed",
    "which stages share a parameter and have to sum its gradients",
)
"""What is not checked without the model's graph."""


def check_plan(
    plan: Plan, graph: OperatorGraph | None = None, cluster: Cluster | None = None
) -> tuple[PlanProblem, ...]:
    """Check a plan.

    Parameters
    ----------
    plan : Plan
    graph : OperatorGraph, optional
        The model's operators: with it, that every tensor and gradient travels where it is needed is checked too.
    cluster : Cluster, optional
        Machines that the plan must fit, in addition to those it was made for.

    Returns
    -------
    tuple of PlanProblem
        Empty when nothing is wrong.
    """
    if cluster and plan.cluster.order and max(plan.cluster.order) < cluster.num_devices:
        cluster = cluster.only(plan.cluster.order)
    operators = list(operator_problems(plan, graph))
    known = None if operators else graph
    basics = [*batch_problems(plan), *configuration_problems(plan)]
    found = [*operators, *(flow_problems(plan, known) if known else ()), *search_problems(plan), *basics]
    found += border_problems(plan)
    found += [*claim_problems(plan, known), *lockstep_problems(plan)]
    found += gathering_problems(plan, known) if not basics else ()
    if basics:
        return (*found, *read_steps(plan)[1])
    layout = Layout.of(plan)
    found += [*rank_order_problems(plan), *link_problems(plan, layout)]
    found += cluster_problems(plan, layout, cluster) if cluster else ()
    first = first_replica(plan, layout)
    if first and not _run_problems(plan, first, known, cluster):
        return tuple(found)
    orders, unread = read_steps(plan)
    found += unread or _run_problems(plan, FirstReplica(layout, orders, lead_of_ranks(plan)), known, cluster)
    return tuple(found)


def _run_problems(
    plan: Plan, replica: FirstReplica, graph: OperatorGraph | None, cluster: Cluster | None
) -> list[PlanProblem]:
    """Check orders, and where they are legal the figures that follow from them."""
    wrong = list(_order_problems(plan, replica.layout, replica.orders, graph))
    return wrong or list(_figure_problems(plan, replica, cluster))


def _order_problems(plan: Plan, layout: Layout, orders: Orders, graph: OperatorGraph | None) -> Iterator[PlanProblem]:
    """Check counts, then sequences and messages."""
    counts = [*count_problems(layout, orders), *message_problems(layout, orders)]
    counts += closing_problems(layout, orders, shared_stages(plan, graph))
    yield from counts
    if any(problem.kind != "order" for problem in counts):
        return
    computed, ends = compute_steps(orders), other_ends(layout)
    sequence = [*sequence_problems(layout, orders), *data_problems(layout, orders, computed)]
    sequence += pairing_problems(orders, ends)
    sequence += deadlock_problems(layout, orders, ends)
    yield from sequence


def _figure_problems(plan: Plan, replica: FirstReplica, cluster: Cluster | None) -> Iterator[PlanProblem]:
    """Check times and memory, which only legal orders have."""
    layout, orders, stand_in = replica.layout, replica.orders, replica.stand_in
    costs, computed = plan.costs(), compute_steps(orders)
    times = times_of(layout, orders, costs, _speeds(plan, stand_in))
    yield from prediction_problems(plan, orders, times, len(set(stand_in.values())))
    known = Ledger(layout, computed, costs, times).peaks(len(orders))
    peaks = [known[stand_in[rank]] for rank in range(len(orders))]
    yield from memory_problems(plan, peaks, plan.cluster)
    if cluster and cluster.num_devices >= len(orders):
        yield from (p for p in memory_problems(plan, peaks, cluster) if "its device" in p.message)


def _speeds(plan: Plan, lead_of: Mapping[int, int]) -> list[float]:
    """Return the speed of each rank's lead, which waits for the slowest that follow it."""
    known = dict(plan.cluster.speeds)
    slowest: dict[int, float] = {}
    for rank, lead in lead_of.items():
        slowest[lead] = min(known.get(rank, 1.0), slowest.get(lead, known.get(rank, 1.0)))
    return [slowest.get(rank, 1.0) for rank in range(len(plan.orders))]
