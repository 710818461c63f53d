"""Prices on another cluster from a plan file alone: messages by their bytes, sums of gradients by those in the file.

A price is made anew only where the same rule gives the plan's own on the plan's own cluster; what is none is kept, and
said. Leaves out what ranks of one stage send each other within F and B.
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodel.errors import UsageError
from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import all_reduce_ns
from costmodel.stages.costs import PER_ACTION
from planner.candidate.candidate import StagePlacement
from planner.candidate.messages import pairs, slowest_ns, unlike_lanes
from planner.plan import Plan, PlanEdge, PlanStage

MOST_STAGES = 8
"""Stages that people are told the numbers of."""


def file_prices(plan: Plan, cluster: Cluster, num_microbatches: int) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan priced on a cluster, and what could not be.

    Raises
    ------
    UsageError
        For another number of micro-batches where the file lists what each of them takes.
    """
    if num_microbatches != plan.batch.num_microbatches and any(
        isinstance(getattr(stage.cost, name), tuple) for stage in plan.stages for name in PER_ACTION
    ):
        raise UsageError("the plan file lists times by micro-batch, and has none for others; give --profile")
    edges = tuple(_edge(plan, edge, cluster) for edge in plan.edges)
    stages = tuple(_stage(plan, stage, cluster) for stage in plan.stages)
    left_out = tuple(_left_out(plan)) if cluster.groups != plan.cluster.groups else ()
    if num_microbatches != plan.batch.num_microbatches and any(stage.config.gathers for stage in plan.stages):
        left_out += ("what replicas gather once a step is counted by micro-batch, as many as the plan has",)
    return replace(plan, cluster=cluster, edges=edges, stages=stages), left_out


def _place(stage: PlanStage) -> StagePlacement:
    return StagePlacement(stage.config, stage.ranks, stage.microbatch_multiple)


def _message_ns(plan: Plan, edge: PlanEdge, cluster: Cluster) -> int:
    source, target = (_place(plan.stages[end]) for end in (edge.source, edge.target))
    joined = pairs(source, target, plan.batch.num_microbatches)
    return slowest_ns(cluster, unlike_lanes(cluster, joined), edge.size_bytes)


def _edge(plan: Plan, edge: PlanEdge, cluster: Cluster) -> PlanEdge:
    if _message_ns(plan, edge, plan.cluster) != edge.p2p_ns:
        return edge
    return replace(edge, p2p_ns=_message_ns(plan, edge, cluster))


def _sum_ns(stage: PlanStage, cluster: Cluster) -> int:
    """Return the time of one sum of all gradients over a stage's replicas."""
    ranks = tuple(block[0] for block in stage.blocks)
    return all_reduce_ns(cluster, ranks, dict(stage.cost.memory_terms).get("gradients", 0))


def _stage(plan: Plan, stage: PlanStage, cluster: Cluster) -> PlanStage:
    if _sum_ns(stage, plan.cluster) != stage.cost.reduce_ns:
        return stage
    return replace(stage, cost=replace(stage.cost, reduce_ns=_sum_ns(stage, cluster)))


def _left_out(plan: Plan) -> Iterator[str]:
    """Yield what another link would change, and the file does not say by how much."""
    edges = [f"{e.source}>{e.target}" for e in plan.edges if _message_ns(plan, e, plan.cluster) != e.p2p_ns]
    if edges:
        yield f"messages {', '.join(edges)} take as long as before: they were not priced on this cluster"
    sums = [i for i, stage in enumerate(plan.stages) if _sum_ns(stage, plan.cluster) != stage.cost.reduce_ns]
    if sums:
        yield f"sums of gradients of the stages {_some(sums)} take as long as before: the file lacks their bytes"
    inside = [i for i, stage in enumerate(plan.stages) if not stage.config.whole_operators or stage.config.gathers]
    if inside:
        yield f"what ranks of the stages {_some(inside)} send each other within F and B takes as long as before"


def _some(stages: list[int]) -> str:
    more = len(stages) - MOST_STAGES
    return ", ".join(map(str, stages[:MOST_STAGES])) + (f" and {more} more" if more > 0 else "")
