"""How trainers run stages: the table of `trainers.toml`, each row with its source.

Leaves out which plans a trainer takes (`planner.question.targets`) and what its calls cost (`costmodel.calibration`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

from costmodel.codec import Json, record
from costmodel.documents import document
from costmodel.errors import UsageError
from costmodel.files import Node, read_toml
from costmodel.roofline.narrow import RECIPES

MEGATRON = "megatron"
"""Trainer whose habits are taken for described models by default."""
SELECTIVE = ("attention", "operators")
"""What ``selective`` recompute runs again."""
KERNELS = ("math", "fa2", "cudnn", "fa3")
"""Kernels of attention: one that writes its scores, and three that do not."""
DISPATCHERS = ("alltoall", "flex", "allgather")
"""Ways of tokens to experts: every copy by itself, one a host and a rank, or all tokens to every rank."""
FILE = Path(__file__).with_name("trainers.toml")


@dataclass(frozen=True, slots=True)
class TrainerHabits:
    """What a trainer does where nobody says otherwise; `trainers.toml` explains each."""

    flash: bool
    attention: Annotated[str, Json(allowed=KERNELS)]
    graphs: bool
    overlap: bool
    overlap_gathers: bool
    overlap_tensor: bool
    overlap_experts: bool
    fused: bool
    selective: Annotated[str, Json(allowed=SELECTIVE)]
    summed_in_place: bool
    bucket_mib: int
    loss_bytes: int
    divided_loss_bytes: int
    gradient_bytes: int
    main_weight_bytes: int
    experts_together: int
    dispatcher: Annotated[str, Json(allowed=DISPATCHERS)]
    fp8_recipe: Annotated[str, Json(allowed=tuple(RECIPES))]
    bucket_rank_bytes: int
    stand_ins: bool
    gradient_copy_bytes: int
    by_block: bool
    outputs_kept: bool
    by_owner: bool
    fp8_inputs: bool
    fp8_copy_bytes: int
    reserved_percent: int
    calls_backward: float
    calls: tuple[tuple[str, float], ...]

    def but(self, said: Mapping[str, object]) -> "TrainerHabits":
        """Return the habits with some of them told otherwise; a kernel of attention says whether it keeps scores."""
        kernel = {"flash": said["attention"] != KERNELS[0]} if "attention" in said else {}
        return replace(self, **{**kernel, **said})  # type: ignore[arg-type]

    def words(self, precision: str = "") -> tuple[str, ...]:
        """Return what is done in a precision, one phrase a habit."""
        flags = (name if getattr(self, name) else f"no {name}" for name in FLAGS)
        scales = ["fp8_recipe"] if precision == "fp8" else []
        told = (f"{name} {getattr(self, name)}" for name in (*SIZES, "attention", "selective", "dispatcher", *scales))
        return tuple(text.replace("_", " ") for text in (*flags, *told))


FLAGS = (
    "flash", "graphs", "overlap", "overlap_gathers", "overlap_tensor", "overlap_experts", "fused", "summed_in_place",
)  # fmt: skip
SIZES = ("bucket_mib", "loss_bytes", "gradient_bytes", "main_weight_bytes", "experts_together")
SAID = (*FLAGS, *SIZES, "attention", "selective", "fp8_recipe", "dispatcher")
"""TrainerHabits that a flag may tell otherwise."""


def habits_of(trainer: str) -> TrainerHabits:
    """Return a trainer's habits; a version of it (``megatron-0_14``) that the table lacks has those of today.

    Raises
    ------
    UsageError
        When there is no such trainer; names those there are.
    """
    known = trainers()
    trainer = trainer if trainer in known else trainer.partition("-")[0]
    if trainer not in known:
        raise UsageError(f"no trainer is called {trainer!r}; there are {', '.join(known)}")
    return known[trainer]


@cache
def trainers() -> Mapping[str, TrainerHabits]:
    """Return the table; what a row that is `like` another leaves out is as there."""
    rows = document(read_toml(FILE), "penstock-trainers", 1, ("trainer",))["trainer"].entries()
    given = {name: {key: each.value for key, each in row.entries().items()} for name, row in rows.items()}
    found = {}
    for name, row in rows.items():
        like = row.child("like").text(tuple(rows)) if "like" in given[name] else name
        value = {key: each for key, each in {**given[like], **given[name]}.items() if key not in ("like", "source")}
        found[name] = record(TrainerHabits).read(Node(value, row.pointer, row.file))
    return found
