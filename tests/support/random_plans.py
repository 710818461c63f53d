"""Random legal plans for tests: random costs and orders, closed, lowered and predicted by the simulator."""

from dataclasses import replace
from random import Random

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import GIB, DeviceType, Host, LinkGroup
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult
from simulator.actions import Action, Kind
from simulator.engine import Structure
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule
from tests.support.random_stage_graphs import random_costs, random_schedule


def cluster_of(num_devices: int, speeds: tuple[tuple[int, float], ...] = ()) -> Cluster:
    return Cluster(
        (DeviceType("cpu", 64 * GIB, "cpu"),),
        (Host("cpu", num_devices),),
        (LinkGroup("local", 0, 1e9, 0),),
        speeds,
    )


def plan_of(schedule: Schedule, costs: Costs, speeds: tuple[float, ...] = ()) -> Plan:
    """Lower compute orders, predict them and wrap them as a plan; stage s has the one operator ``op{s}``."""
    num_ranks = schedule.graph.num_ranks
    factors = speeds or (1.0,) * num_ranks
    lowered = lower(schedule, Structure(schedule).times(costs, factors).timeline())
    timeline = Structure(lowered).times(costs, factors).timeline()  # lowering may move a REDUCE
    return Plan(
        model_name="random",
        fingerprint="0",
        num_operators=len(costs.stages),
        cluster=cluster_of(num_ranks, tuple(enumerate(speeds))),
        batch=Batch(schedule.num_microbatches, 1, schedule.num_microbatches),
        schedule=schedule.name,
        stages=tuple(
            PlanStage((f"op{s}",), costs.ranks[s], cost, StageConfig(data=len(costs.ranks[s])), costs.multiples[s])
            for s, cost in enumerate(costs.stages)
        ),
        edges=tuple(
            PlanEdge(e.source, e.target, (f"op{e.source}",), e.size_bytes, e.p2p_ns, e.gradient) for e in costs.edges
        ),
        orders=tuple(tuple(map(str, order)) for order in lowered.orders),
        prediction=Prediction(
            timeline.step_time_ns,
            timeline.span_ns,
            timeline.bubble_ratio,
            timeline.peak_memory_bytes,
            timeline.peak_memory_bytes,
        ),
        search=SearchResult("heuristic", timeline.step_time_ns, 0, "none", {}, timeline.step_time_ns),
        runs_on=("executor",),
    )


def random_plan(rng: Random) -> Plan:
    """Return a legal plan: multiples, replicas, shared ranks, splits, R, REDUCE, OPT, speeds, sizes of messages."""
    num_microbatches = rng.choice((2, 4, 6))
    costs = random_costs(rng, num_microbatches)
    while any(num_microbatches // k < len(r) for k, r in zip(costs.multiples, costs.ranks, strict=True)):
        costs = random_costs(rng, num_microbatches)  # a replica without work has nothing to reduce
    costs = replace(
        costs,
        edges=tuple(replace(e, size_bytes=rng.choice((0, 3, 7))) for e in costs.edges),
        stages=tuple(
            replace(s, static_bytes=rng.randint(0, 9), activation_bytes=rng.randint(2, 9)) for s in costs.stages
        ),
    )
    num_stages = len(costs.stages)
    split = frozenset(s for s in range(num_stages) if rng.random() < 0.4)
    schedule = _with_recompute(rng, random_schedule(rng, costs, num_microbatches, split))
    reduces = [len(ranks) > 1 or rng.random() < 0.2 for ranks in costs.ranks]
    closed = close_step(
        schedule, [r and s.backward for r, s in zip(reduces, costs.stages, strict=True)], rng.random() < 0.5
    )
    speeds = tuple(rng.choice((1.0, 0.7, 1.3)) for _ in range(costs.num_ranks)) if rng.random() < 0.3 else ()
    return plan_of(closed, costs, speeds)


def _with_recompute(rng: Random, schedule: Schedule) -> Schedule:
    """Put an R before some backwards."""
    stages = {s for s in range(schedule.graph.num_stages) if rng.random() < 0.25}
    orders = []
    for order in schedule.orders:
        row: list[Action] = []
        for action in order:
            if action.kind in (Kind.B, Kind.I) and action.stage in stages:
                row.append(replace(action, kind=Kind.R))
            row.append(action)
        orders.append(tuple(row))
    return replace(schedule, orders=tuple(orders))
