"""The plan as one JSON file (``penstock-plan``), strictly read and atomically written.

Version 3 adds the rank order, groups that share states and experts' own tensor degree; version 2 is read with their
defaults. Leaves out how plans are found (`planner.search`) and run (`executor`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from costmodel.codec import INDEX, Json, Positive, record
from costmodel.documents import Document
from costmodel.files import Node
from costmodel.forms import JsonForm, numbered
from planner.plan.orders import ACTIONS, orders_from_nodes, orders_to_json
from planner.plan.part_forms import STAGES
from planner.plan.rank_order import RANK_ORDER, RankOrder
from planner.plan.whole import Plan


@dataclass(frozen=True, slots=True)
class _Model:
    """The model that is planned for."""

    model_name: Annotated[str, Json("name")]
    fingerprint: str
    num_operators: Annotated[Positive, Json("operators")]


@dataclass(frozen=True, slots=True)
class _Rank:
    """Actions lowered: compute, SEND, RECV, REDUCE, OPT in the order in which the rank issues them."""

    device: str
    actions: Annotated[object, Json(form=ACTIONS)]


def _ranks(plan: Plan) -> tuple[_Rank, ...]:
    rows = enumerate(orders_to_json(plan.orders))
    return tuple(_Rank(plan.cluster.device_of(rank).name, order) for rank, order in rows)


def _rank_order(node: Node) -> RankOrder:
    names = node.texts()
    if sorted(names) != sorted(RANK_ORDER):
        node.fail(f"allowed are {', '.join(RANK_ORDER)}, each once, the innermost first")
    return names


_RANK_ORDER = JsonForm[RankOrder](
    _rank_order,
    list,
    lambda _: {"type": "array", "items": {"enum": list(RANK_ORDER)}, "minItems": 5, "maxItems": 5, "uniqueItems": True},
)


def _settled(values: dict[str, Any], node: Node) -> None:
    """Take orders from the ranks, each on its device of the cluster, and what is said of the model."""
    model, cluster = values.pop("model"), values["cluster"]
    values.update({name: getattr(model, name) for name in _MODEL})
    orders = []
    for index, rank in enumerate(node.child("ranks").items()):
        if index >= cluster.num_devices:
            rank.fail(f"the cluster has {cluster.num_devices} devices")
        rank.child("device").text((cluster.device_of(index).name,))
        orders.append(rank.child("actions"))
    values["orders"] = orders_from_nodes(orders)


_MODEL = ("model_name", "fingerprint", "num_operators")
PLAN: Document[Plan] = Document(
    "penstock-plan",
    3,
    record(
        Plan,
        absent=(*_MODEL, "orders", "rank_order"),
        extras={
            "model": (Json(form=record(_Model)), lambda plan: _Model(*(getattr(plan, name) for name in _MODEL)), ""),
            "rank_order": (
                Json(
                    form=_RANK_ORDER,
                    needed=False,
                    unsaid=lambda plan: not plan.rank_order,
                    says="What stands next to each other on the cluster, innermost first; left out where nothing does.",
                ),
                lambda plan: plan.rank_order,
                "schedule",
            ),
            "ranks": (Json(form=numbered(record(_Rank, extras={"index": INDEX}))), _ranks, "edges"),
        },
        settle=_settled,
    ),
)


def read_plan(path: str | Path) -> Plan:
    """Read a plan file; see `costmodel.files` for what is refused."""
    return PLAN.read(path)


def write_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan file atomically; the same plan gives the same bytes."""
    PLAN.write(path, plan)


def plan_to_json(plan: Plan) -> dict[str, object]:
    """Return the JSON body of a plan file (without ``format`` and ``version``)."""
    return PLAN.form.write(plan)  # type: ignore[no-any-return]


def stages_to_json(plan: Plan) -> list[dict[str, object]]:
    """Return the JSON form of a plan's stages."""
    return STAGES.write(plan.stages)  # type: ignore[no-any-return]
