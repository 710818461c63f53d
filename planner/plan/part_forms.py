"""How a plan's stages and what its search found stand in its file, where a part of them follows from the rest.

Leaves out parts whose fields say it all (`planner.plan.parts`).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from costmodel.codec import INDEX, Json, Positive, record
from costmodel.files import Node
from costmodel.forms import nullable, number, numbered
from costmodel.stages.config import StageConfig
from planner.plan.parts import PlanStage, SearchResult


@dataclass(frozen=True, slots=True)
class _Mesh:
    """How `ranks` stand, the last axis innermost; as `config` has it."""

    axes: tuple[str, ...]
    shape: tuple[Positive, ...]
    lanes: Annotated[Positive, Json(says="Ranks of one replica: context x tensor.")]


def _mesh(config: StageConfig) -> _Mesh:
    lanes = config.context * config.tensor
    return _Mesh(("data", "context", "tensor"), (config.data, config.context, config.tensor), lanes)


def _meshed(values: dict[str, Any], node: Node) -> None:
    """Refuse a mesh that does not follow from the configuration."""
    expected = _mesh(values["config"])
    if values.get("mesh", expected) != expected:
        node.child("mesh").fail(f"the stage's config makes {record(_Mesh).write(expected)}")


STAGES = numbered(
    record(
        PlanStage,
        late=("cost", "name", "modules", "shared", "units", "reduce", "collectives"),
        extras={
            "index": INDEX,
            "mesh": (
                Json(form=record(_Mesh), needed=False, unsaid=lambda stage: len(stage.ranks) < 2),
                lambda stage: _mesh(stage.config),
                "shared",
            ),
        },
        settle=_meshed,
    )
)
"""The list of a plan's stages."""


def _gapped(values: dict[str, Any], node: Node) -> None:
    """Take the objective for the best step time where none is given; refuse a gap that does not follow."""
    values.setdefault("best_step_time_ns", values["objective"])
    gap = values.pop("gap")
    expected = node.build(lambda: SearchResult(**values)).gap
    if expected is None and gap is not None:
        node.child("gap").fail("without a lower bound there is no gap: null")
    if expected is not None and (gap is None or not math.isclose(gap, expected, rel_tol=1e-9, abs_tol=1e-12)):
        node.child("gap").fail(f"objective / lower bound - 1 is {expected!r}")


SEARCH = record(
    SearchResult,
    extras={"gap": (Json(form=nullable(number())), lambda search: search.gap, "lower_bound_ns")},
    settle=_gapped,
)
