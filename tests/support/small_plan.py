"""A plan made by hand: a diamond of four stages on four ranks, two micro-batches, exact times in the comments.

F takes 10 ns, I and W 10 each, a transfer 1. Stage 0: 0F0 0-10, 0F1 10-20, 0B0 74-94, 0B1 104-124.
Stages 1 and 2: F0 11-21, F1 21-31, B0 53-73, B1 83-103. Stage 3: 3F0 22-32, 3B0 32-52, 3F1 52-62, 3B1 62-82.
"""

from collections.abc import Callable
from dataclasses import replace

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.graph import Operator, OperatorGraph, Parameter, Tensor
from costmodel.stages.costs import StageCost
from planner.plan import Assumptions, Batch, Plan, PlanEdge, PlanStage, Prediction, Rung, SearchResult, Training

GRAPH = OperatorGraph(
    "diamond",
    (
        Operator("stem", "linear", parameters=("w",), parameter_bytes=4),
        Operator("left", "linear", parameters=("l",), parameter_bytes=4),
        Operator("right", "linear", parameters=("r",), parameter_bytes=4),
        Operator("join", "cat"),
        Operator("loss", "loss"),
    ),
    (
        Tensor("stem", "stem", ("left", "right"), (2,)),
        Tensor("left", "left", ("join",), (2,)),
        Tensor("right", "right", ("join",), (2,)),
        Tensor("join", "join", ("loss",), (2,)),
    ),
    (Parameter("w", (1,), 4), Parameter("l", (1,), 4), Parameter("r", (1,), 4)),
)

COST = StageCost(10, 10, 10, activation_bytes=8, weight_activation_bytes=4, static_bytes=5)

CLUSTER = Cluster(
    (DeviceType("cpu", 1000, "cpu"),), (Host("cpu", 4),), (LinkGroup("local", 0, 1e9, 1),)
)  # 1 ns for any message

ORDERS = (
    "0F0 0SEND_F0>1 0SEND_F0>2 0F1 0SEND_F1>1 0SEND_F1>2 0RECV_B0<1 0RECV_B0<2 0B0 0RECV_B1<1 0RECV_B1<2 0B1",
    "1RECV_F0<0 1F0 1SEND_F0>3 1RECV_F1<0 1F1 1SEND_F1>3 1RECV_B0<3 1B0 1SEND_B0>0 1RECV_B1<3 1B1 1SEND_B1>0",
    "2RECV_F0<0 2F0 2SEND_F0>3 2RECV_F1<0 2F1 2SEND_F1>3 2RECV_B0<3 2B0 2SEND_B0>0 2RECV_B1<3 2B1 2SEND_B1>0",
    "3RECV_F0<1 3RECV_F0<2 3F0 3RECV_F1<1 3RECV_F1<2 3B0 3SEND_B0>1 3SEND_B0>2 3F1 3B1 3SEND_B1>1 3SEND_B1>2",
)

PLAN = Plan(
    model_name="diamond",
    fingerprint=GRAPH.fingerprint,
    num_operators=5,
    cluster=CLUSTER,
    batch=Batch(4, 2, 2),
    schedule="graph-1f1b",
    stages=(
        PlanStage(("stem",), (0,), COST),
        PlanStage(("left",), (1,), COST),
        PlanStage(("right",), (2,), COST),
        PlanStage(("join", "loss"), (3,), COST),
    ),
    edges=(
        PlanEdge(0, 1, ("stem",), 2, 1),
        PlanEdge(0, 2, ("stem",), 2, 1),
        PlanEdge(1, 3, ("left",), 2, 1),
        PlanEdge(2, 3, ("right",), 2, 1),
    ),
    orders=tuple(tuple(order.split()) for order in ORDERS),
    prediction=Prediction(124, 124, 1 - 240 / 496, (25, 25, 25, 21), (25, 25, 25, 21)),
    search=SearchResult("bounded", 124, 100, "by hand", {"chain": 150}, 124),
    runs_on=("executor",),
    training=Training("float32", "", "none"),
    assumptions=Assumptions("given", "executor", "none", "fp32", (("parameters", 4.0), ("gradients", 4.0)), "", ()),
    rungs=(Rung("graph-pipeline", 124, 4e9 / 124, 25, ("executor",), "chosen", 4, fits="fits"),),
    provenance={"penstock": "0.1.0", "profile": "none", "seed": 0, "options": {}},
)


def with_order(plan: Plan, rank: int, change: Callable[[list[str]], object]) -> Plan:
    """Return the plan with one rank's list of actions changed in place by `change`."""
    orders = [list(order) for order in plan.orders]
    change(orders[rank])
    return replace(plan, orders=tuple(map(tuple, orders)))


def with_stage(plan: Plan, index: int, **changes: object) -> Plan:
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)  # type: ignore[arg-type]
    return replace(plan, stages=tuple(stages))


def with_edge(plan: Plan, index: int, **changes: object) -> Plan:
    edges = list(plan.edges)
    edges[index] = replace(edges[index], **changes)  # type: ignore[arg-type]
    return replace(plan, edges=tuple(edges))
