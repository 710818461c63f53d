"""The plan as one JSON file (``penstock-plan``), strictly read and atomically written.

Version 3 adds the rank order, groups that share states and experts' own tensor degree; version 2 is read with their
defaults. Leaves out how plans are found (`planner.search`) and run (`executor`).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from costmodel.files import Node, document, read_json, write_json
from costmodel.machines.cluster import Cluster, cluster_from_node
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import stage_from_node, stage_to_json
from planner.plan.orders import orders_from_nodes, orders_to_json
from planner.plan.parts import (
    BORDERS,
    COLLECTIVES,
    LINKS,
    REDUCES,
    REPLICATE,
    STATUSES,
    STEP,
    Assumptions,
    Batch,
    Collective,
    PlanEdge,
    PlanStage,
    Prediction,
    Rung,
    SearchResult,
    Training,
)
from planner.plan.rank_order import RANK_ORDER, RankOrder
from planner.plan.whole import Plan

PLAN_FORMAT, PLAN_VERSION = "penstock-plan", 3


def read_plan(path: str | Path) -> Plan:
    """Read a plan file; see `costmodel.files` for what is refused."""
    return plan_from_node(read_json(path))


def plan_from_node(root: Node) -> Plan:
    """Read a plan's document, of a file of its own or within another."""
    top = document(root, PLAN_FORMAT, PLAN_VERSION, _TOP, _LATER)
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
            orders=_orders(top["ranks"], cluster),
            prediction=_prediction(top["prediction"]),
            search=_search(top["search"]),
            runs_on=top["runs_on"].texts(),
            training=_training(top["training"]) if "training" in top else Training(),
            assumptions=_assumptions(top["assumptions"]) if "assumptions" in top else Assumptions(),
            rungs=tuple(map(_rung, top["rungs"].items())) if "rungs" in top else (),
            schedule_options=_free(top, "schedule_options"),
            provenance=_free(top, "provenance"),
            extra=_free(top, "extra"),
            rank_order=_rank_order(top["rank_order"]) if "rank_order" in top else (),
        )
    )


_TOP = ("model", "cluster", "batch", "schedule", "stages", "edges", "ranks", "prediction", "search", "runs_on")
_LATER = ("training", "assumptions", "rungs", "schedule_options", "provenance", "extra", "rank_order")


def _free(top: Mapping[str, Node], name: str) -> dict[str, object]:
    return {key: node.value for key, node in top[name].entries().items()} if name in top else {}


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
        **({"rank_order": list(plan.rank_order)} if plan.rank_order else {}),
        "stages": stages_to_json(plan),
        "edges": [
            {
                "from": e.source,
                "to": e.target,
                "tensors": list(e.tensors),
                "bytes": e.size_bytes,
                "p2p_ns": e.p2p_ns,
                "gradient": e.gradient,
                **({"border": e.border} if e.border != REPLICATE else {}),
            }
            for e in plan.edges
        ],
        "ranks": [
            {"index": rank, "device": plan.cluster.device_of(rank).name, "actions": order}
            for rank, order in enumerate(orders_to_json(plan.orders))
        ],
        "prediction": {
            "step_time_ns": prediction.step_time_ns,
            "span_ns": prediction.span_ns,
            "bubble_ratio": prediction.bubble_ratio,
            "peak_memory_bytes": list(prediction.peak_memory_bytes),
            "peak_memory_upper_bytes": list(prediction.peak_memory_upper_bytes),
            **({_INTERVAL: list(prediction.step_time_interval_ns)} if prediction.step_time_interval_ns else {}),
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
            **{name: value for name in _MODEL if (value := getattr(search, name)) is not None},
        },
        "runs_on": list(plan.runs_on),
        "training": asdict(plan.training),
        "assumptions": plan.assumptions.to_json(),
        "rungs": [rung.to_json() for rung in plan.rungs],
        "schedule_options": dict(plan.schedule_options),
        "provenance": dict(plan.provenance),
        "extra": dict(plan.extra),
    }


def stages_to_json(plan: Plan) -> list[dict[str, object]]:
    """Return the JSON form of a plan's stages."""
    return [_stage_to_json(index, stage) for index, stage in enumerate(plan.stages)]


def _stage_to_json(index: int, stage: PlanStage) -> dict[str, object]:
    return {
        "index": index,
        "operators": list(stage.operators),
        "ranks": list(stage.ranks),
        "config": stage.config.to_json(),
        "microbatch_multiple": stage.microbatch_multiple,
        "cost": stage_to_json(stage.cost),
        **({"name": stage.name} if stage.name else {}),
        **({"modules": list(stage.modules)} if stage.modules else {}),
        **({"shared": list(stage.shared)} if stage.shared else {}),
        **({"mesh": _mesh_to_json(stage)} if len(stage.ranks) > 1 else {}),
        **({"units": list(stage.units), "reduce": stage.reduce} if stage.config.gathers else {}),
        **({"collectives": list(map(_collective_to_json, stage.collectives))} if stage.collectives else {}),
    }


def _mesh_to_json(stage: PlanStage) -> dict[str, object]:
    """Return how a stage's ranks are arranged; it follows from its configuration, and readers hold it against that."""
    axes, shape = zip(*stage.mesh, strict=True)
    return {"axes": list(axes), "shape": list(shape), "lanes": stage.config.context * stage.config.tensor}


def _collective_to_json(collective: Collective) -> dict[str, object]:
    return {"kind": collective.kind, "count": collective.count, "bytes": collective.size_bytes}


def _stage(node: Node, index: int) -> PlanStage:
    fields = node.members(
        ("index", "operators", "ranks", "config", "microbatch_multiple", "cost"),
        ("name", "modules", "shared", "mesh", "units", "reduce", "collectives"),
    )
    _in_order(fields["index"], index)
    stage = PlanStage(
        fields["operators"].texts(),
        fields["ranks"].integers(),
        stage_from_node(fields["cost"]),
        StageConfig.from_node(fields["config"]),
        fields["microbatch_multiple"].integer(1),
        fields["name"].text() if "name" in fields else "",
        fields["units"].texts() if "units" in fields else (),
        fields["reduce"].text(REDUCES) if "reduce" in fields else STEP,
        tuple(map(_collective, fields["collectives"].items())) if "collectives" in fields else (),
        fields["modules"].texts() if "modules" in fields else (),
        fields["shared"].texts() if "shared" in fields else (),
    )
    if "mesh" in fields and fields["mesh"].value != _mesh_to_json(stage):
        fields["mesh"].fail(f"the stage's config makes {_mesh_to_json(stage)}")
    return stage


def _collective(node: Node) -> Collective:
    fields = node.members(("kind", "count", "bytes"))
    return Collective(fields["kind"].text(COLLECTIVES), fields["count"].integer(), fields["bytes"].integer())


def _edge(node: Node) -> PlanEdge:
    fields = node.members(("from", "to", "tensors", "bytes"), ("p2p_ns", "gradient", "border"))
    return PlanEdge(
        fields["from"].integer(),
        fields["to"].integer(),
        fields["tensors"].texts(),
        fields["bytes"].integer(),
        fields["p2p_ns"].integer() if "p2p_ns" in fields else 0,
        fields["gradient"].flag() if "gradient" in fields else True,
        fields["border"].text(BORDERS) if "border" in fields else REPLICATE,
    )


def _orders(node: Node, cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    orders = []
    for index, each in enumerate(node.items()):
        fields = each.members(("index", "device", "actions"))
        _in_order(fields["index"], index)
        if index >= cluster.num_devices:
            each.fail(f"the cluster has {cluster.num_devices} devices")
        fields["device"].text((cluster.device_of(index).name,))
        orders.append(fields["actions"])
    return orders_from_nodes(orders)


def _rank_order(node: Node) -> RankOrder:
    names = node.texts()
    if sorted(names) != sorted(RANK_ORDER):
        node.fail(f"allowed are {', '.join(RANK_ORDER)}, each once, the innermost first")
    return names


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
    names = ("step_time_ns", "span_ns", "bubble_ratio", "peak_memory_bytes", "peak_memory_upper_bytes")
    fields = node.members(names, (_INTERVAL,))
    return Prediction(
        fields["step_time_ns"].integer(),
        fields["span_ns"].integer(),
        fields["bubble_ratio"].number(),
        fields["peak_memory_bytes"].integers(),
        fields["peak_memory_upper_bytes"].integers(),
        _interval(fields[_INTERVAL]) if _INTERVAL in fields else None,
    )


_INTERVAL = "step_time_interval_ns"
"""Where the error of such predictions is known."""


def _interval(node: Node) -> tuple[int, int]:
    values = node.integers()
    if len(values) != 2 or values[0] > values[1]:
        node.fail("two numbers, the lower one first")
    return values[0], values[1]


_MODEL = ("model_objective_ns", "model_lower_bound_ns")
"""What is known of estimates, where they were bounded."""


def _search(node: Node) -> SearchResult:
    fields = node.members(
        ("status", "objective", "lower_bound_ns", "gap", "scope", "baselines"),
        ("best_step_time_ns", "limited_by", *_MODEL),
    )
    search = node.build(
        lambda: SearchResult(
            fields["status"].text(STATUSES),
            fields["objective"].integer(),
            None if fields["lower_bound_ns"].value is None else fields["lower_bound_ns"].integer(),
            fields["scope"].text(),
            {name: value.integer() for name, value in fields["baselines"].entries().items()},
            fields["best_step_time_ns"].integer() if "best_step_time_ns" in fields else fields["objective"].integer(),
            fields["limited_by"].text() if "limited_by" in fields else "",
            *(fields[name].integer(1) if name in fields else None for name in _MODEL),
        )
    )
    if search.gap is None:
        if fields["gap"].value is not None:
            fields["gap"].fail("without a lower bound there is no gap: null")
    elif not math.isclose(fields["gap"].number(), search.gap, rel_tol=1e-9, abs_tol=1e-12):
        fields["gap"].fail(f"objective / lower bound - 1 is {search.gap!r}")
    return search


def _training(node: Node) -> Training:
    fields = node.members(("dtype", "autocast", "optimizer"))
    return Training(fields["dtype"].text(), fields["autocast"].text(), fields["optimizer"].text())


def _assumptions(node: Node) -> Assumptions:
    fields = node.members(
        ("links", "trainer", "optimizer", "precision", "bytes_per_parameter", "calibration", "estimated"), ("habits",)
    )
    return Assumptions(
        fields["links"].text(("", *LINKS)),
        fields["trainer"].text(),
        fields["optimizer"].text(),
        fields["precision"].text(),
        tuple((name, value.number()) for name, value in fields["bytes_per_parameter"].entries().items()),
        fields["calibration"].text(),
        fields["estimated"].texts(),
        fields["habits"].texts() if "habits" in fields else (),
    )


def _rung(node: Node) -> Rung:
    fields = node.members(
        ("strategy", "step_time_ns", "samples_per_s", "peak_memory_bytes", "runs_on", "why"),
        ("devices_used", "over_memory_bytes", "cost_per_million_samples", "better_if", "fits"),
    )
    cost = fields.get("cost_per_million_samples")
    return Rung(
        fields["strategy"].text(),
        fields["step_time_ns"].integer(),
        fields["samples_per_s"].number(),
        fields["peak_memory_bytes"].integer(),
        fields["runs_on"].texts(),
        fields["why"].text(),
        fields["devices_used"].integer(1) if "devices_used" in fields else 1,
        fields["over_memory_bytes"].integer() if "over_memory_bytes" in fields else 0,
        None if cost is None or cost.value is None else cost.number(),
        fields["better_if"].text() if "better_if" in fields else "",
        fields["fits"].text() if "fits" in fields else "",
    )
