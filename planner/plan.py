"""The plan: what runs where, in which order, what it is predicted to take, and how good that is.

One JSON file (``penstock-plan``). Actions stay text here, so that the independent checker reads plans
without the simulator. Leaves out how plans are found (`planner.search`) and run (`executor`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, document, read_json, write_json
from costmodel.machines.cluster import Cluster, cluster_from_node
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, EdgeCost, stage_from_node, stage_to_json
from planner.blocks import Block, blocks_of
from planner.plan_parts import STATUSES, Batch, PlanEdge, PlanStage, Prediction, SearchResult

PLAN_FORMAT, PLAN_VERSION = "penstock-plan", 1
__all__ = [
    "Batch", "Plan", "PlanEdge", "PlanStage", "Prediction", "SearchResult", "plan_to_json", "read_plan", "write_plan"
]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A plan file's content; `orders` holds each rank's actions as text, lowered.

    The ranks of a block (`planner.blocks`) have one order: what is simulated is one rank a block, its lead.
    """

    model_name: str
    fingerprint: str
    num_operators: int
    cluster: Cluster
    batch: Batch
    schedule: str
    stages: tuple[PlanStage, ...]
    edges: tuple[PlanEdge, ...]
    orders: tuple[tuple[str, ...], ...]
    prediction: Prediction
    search: SearchResult
    runs_on: tuple[str, ...]
    provenance: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        costs = self._costs([stage.ranks for stage in self.stages])  # checks stages, edges and ranks
        if costs.num_ranks > self.cluster.num_devices or len(self.orders) != costs.num_ranks:
            raise InvalidInput(
                f"the stages use {costs.num_ranks} ranks, the plan orders {len(self.orders)} and the cluster has "
                f"{self.cluster.num_devices} devices"
            )
        self.costs()  # checks the blocks

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Ranks that work in lockstep; without tensor and context parallelism each rank is one by itself."""
        return blocks_of([stage.blocks for stage in self.stages])

    @property
    def lead_orders(self) -> tuple[tuple[str, ...], ...]:
        """The order of each block: that of its lead."""
        return tuple(self.orders[block[0]] for block in self.blocks)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each block: that of its slowest rank."""
        known = dict(self.cluster.speeds)
        return tuple(min(known.get(rank, 1.0) for rank in block) for block in self.blocks)

    def costs(self) -> Costs:
        """Return what the stages and edges cost, as the simulator takes it: its ranks are the plan's blocks."""
        number = {block: i for i, block in enumerate(self.blocks)}
        return self._costs([tuple(number[block] for block in stage.blocks) for stage in self.stages])

    def _costs(self, ranks: Iterable[tuple[int, ...]]) -> Costs:
        return Costs(
            tuple(stage.cost for stage in self.stages),
            tuple(EdgeCost(e.source, e.target, e.p2p_ns, e.size_bytes, e.gradient) for e in self.edges),
            tuple(ranks),
            tuple(stage.microbatch_multiple for stage in self.stages),
        )


def read_plan(path: str | Path) -> Plan:
    """Read a plan file; see `costmodel.files` for what is refused."""
    root = read_json(path)
    top = document(root, PLAN_FORMAT, PLAN_VERSION, _TOP, ("provenance", "extra"))
    model = top["model"].members(("name", "fingerprint", "operators"))
    cluster = cluster_from_node(top["cluster"])
    return root.build(
        lambda: Plan(
            model_name=model["name"].text(),
            fingerprint=model["fingerprint"].text(),
            num_operators=model["operators"].integer(1),
            cluster=cluster,
            batch=_batch(top["batch"]),
            schedule=top["schedule"].text(),
            stages=tuple(_stage(node, i) for i, node in enumerate(top["stages"].items())),
            edges=tuple(map(_edge, top["edges"].items())),
            orders=tuple(_order(node, i, cluster) for i, node in enumerate(top["ranks"].items())),
            prediction=_prediction(top["prediction"]),
            search=_search(top["search"]),
            runs_on=top["runs_on"].texts(),
            provenance={k: v.value for k, v in top["provenance"].entries().items()} if "provenance" in top else {},
            extra={k: v.value for k, v in top["extra"].entries().items()} if "extra" in top else {},
        )
    )


_TOP = ("model", "cluster", "batch", "schedule", "stages", "edges", "ranks", "prediction", "search", "runs_on")


def write_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan file atomically; the same plan gives the same bytes."""
    write_json(path, PLAN_FORMAT, PLAN_VERSION, plan_to_json(plan))


def plan_to_json(plan: Plan) -> dict[str, object]:
    """Return the JSON body of a plan file (without ``format`` and ``version``)."""
    prediction, search = plan.prediction, plan.search
    return {
        "model": {"name": plan.model_name, "fingerprint": plan.fingerprint, "operators": plan.num_operators},
        "cluster": plan.cluster.to_json(),
        "batch": {
            "global": plan.batch.global_size,
            "microbatch_size": plan.batch.microbatch_size,
            "microbatches": plan.batch.num_microbatches,
        },
        "schedule": plan.schedule,
        "stages": [_stage_to_json(i, stage) for i, stage in enumerate(plan.stages)],
        "edges": [
            {
                "from": e.source,
                "to": e.target,
                "tensors": list(e.tensors),
                "bytes": e.size_bytes,
                "p2p_ns": e.p2p_ns,
                "gradient": e.gradient,
            }
            for e in plan.edges
        ],
        "ranks": [
            {"index": rank, "device": plan.cluster.device_of(rank).name, "actions": list(order)}
            for rank, order in enumerate(plan.orders)
        ],
        "prediction": {
            "step_time_ns": prediction.step_time_ns,
            "span_ns": prediction.span_ns,
            "bubble_ratio": prediction.bubble_ratio,
            "peak_memory_bytes": list(prediction.peak_memory_bytes),
            "peak_memory_upper_bytes": list(prediction.peak_memory_upper_bytes),
        },
        "search": {
            "status": search.status,
            "objective": search.objective,
            "lower_bound_ns": search.lower_bound_ns,
            "gap": search.gap,
            "scope": search.scope,
            "baselines": dict(search.baselines),
            "best_step_time_ns": search.best_step_time_ns,
            "limited_by": search.limited_by,
        },
        "runs_on": list(plan.runs_on),
        "provenance": dict(plan.provenance),
        "extra": dict(plan.extra),
    }


def _stage_to_json(index: int, stage: PlanStage) -> dict[str, object]:
    return {
        "index": index,
        "operators": list(stage.operators),
        "ranks": list(stage.ranks),
        "config": stage.config.to_json(),
        "microbatch_multiple": stage.microbatch_multiple,
        "cost": stage_to_json(stage.cost),
    }


def _stage(node: Node, index: int) -> PlanStage:
    fields = node.members(("index", "operators", "ranks", "config", "microbatch_multiple", "cost"))
    _in_order(fields["index"], index)
    return PlanStage(
        fields["operators"].texts(),
        fields["ranks"].integers(),
        stage_from_node(fields["cost"]),
        StageConfig.from_node(fields["config"]),
        fields["microbatch_multiple"].integer(1),
    )


def _edge(node: Node) -> PlanEdge:
    fields = node.members(("from", "to", "tensors", "bytes"), ("p2p_ns", "gradient"))
    return PlanEdge(
        fields["from"].integer(),
        fields["to"].integer(),
        fields["tensors"].texts(),
        fields["bytes"].integer(),
        fields["p2p_ns"].integer() if "p2p_ns" in fields else 0,
        fields["gradient"].flag() if "gradient" in fields else True,
    )


def _order(node: Node, index: int, cluster: Cluster) -> tuple[str, ...]:
    fields = node.members(("index", "device", "actions"))
    _in_order(fields["index"], index)
    if index >= cluster.num_devices:
        node.fail(f"the cluster has {cluster.num_devices} devices")
    fields["device"].text((cluster.device_of(index).name,))
    return fields["actions"].texts()


def _in_order(node: Node, index: int) -> None:
    if node.integer() != index:
        node.fail(f"the entries are listed in order of their index, {index} is next")


def _batch(node: Node) -> Batch:
    fields = node.members(("global", "microbatch_size", "microbatches"))
    return node.build(
        lambda: Batch(
            fields["global"].integer(1), fields["microbatch_size"].integer(1), fields["microbatches"].integer(1)
        )
    )


def _prediction(node: Node) -> Prediction:
    fields = node.members(("step_time_ns", "span_ns", "bubble_ratio", "peak_memory_bytes", "peak_memory_upper_bytes"))
    return Prediction(
        fields["step_time_ns"].integer(),
        fields["span_ns"].integer(),
        fields["bubble_ratio"].number(),
        fields["peak_memory_bytes"].integers(),
        fields["peak_memory_upper_bytes"].integers(),
    )


def _search(node: Node) -> SearchResult:
    fields = node.members(
        ("status", "objective", "lower_bound_ns", "gap", "scope", "baselines"), ("best_step_time_ns", "limited_by")
    )
    search = node.build(
        lambda: SearchResult(
            fields["status"].text(STATUSES),
            fields["objective"].integer(),
            fields["lower_bound_ns"].integer(),
            fields["scope"].text(),
            {name: value.integer() for name, value in fields["baselines"].entries().items()},
            fields["best_step_time_ns"].integer() if "best_step_time_ns" in fields else fields["objective"].integer(),
            fields["limited_by"].text() if "limited_by" in fields else "",
        )
    )
    if not math.isclose(fields["gap"].number(), search.gap, rel_tol=1e-9, abs_tol=1e-12):
        fields["gap"].fail(f"objective / lower bound - 1 is {search.gap!r}")
    return search
