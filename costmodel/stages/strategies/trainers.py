"""How trainers run stages: the table of `trainers.toml`, each row with its source.

Leaves out which plans a trainer takes (`planner.question.targets`) and what its calls cost (`costmodel.calibration`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.files import Node, document, read_toml
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
    attention: str
    graphs: bool
    overlap: bool
    overlap_gathers: bool
    overlap_tensor: bool
    overlap_experts: bool
    fused: bool
    selective: str
    summed_in_place: bool
    bucket_mib: int
    loss_bytes: int
    divided_loss_bytes: int
    gradient_bytes: int
    main_weight_bytes: int
    experts_together: int
    dispatcher: str
    fp8_recipe: str
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
    """Return the table."""
    members = document(read_toml(FILE), "penstock-trainers", 1, ("trainer",))
    rows = members["trainer"].entries()
    return {name: _habits(node, rows) for name, node in rows.items()}


def _habits(node: Node, rows: Mapping[str, Node]) -> TrainerHabits:
    """Return the habits of a row; what one that is `like` another leaves out is as there."""
    names = tuple(field.name for field in fields(TrainerHabits))
    members = node.members(("source",), ("like", *names))
    if "like" in members:
        members = {**rows[members["like"].text(tuple(rows))].members(("source", *names)), **members}
    else:
        node.members(("source", *names))
    values: dict[str, object] = {name: members[name].flag() for name in FLAGS}
    values |= {name: members[name].integer() for name in SIZES}
    calls = tuple((kind, count.number()) for kind, count in members["calls"].entries().items())
    return TrainerHabits(
        **values,  # type: ignore[arg-type]
        attention=members["attention"].text(KERNELS),
        selective=members["selective"].text(SELECTIVE),
        dispatcher=members["dispatcher"].text(DISPATCHERS),
        fp8_recipe=members["fp8_recipe"].text(RECIPES),
        bucket_rank_bytes=members["bucket_rank_bytes"].integer(),
        divided_loss_bytes=members["divided_loss_bytes"].integer(),
        stand_ins=members["stand_ins"].flag(),
        gradient_copy_bytes=members["gradient_copy_bytes"].integer(),
        by_block=members["by_block"].flag(),
        outputs_kept=members["outputs_kept"].flag(),
        by_owner=members["by_owner"].flag(),
        fp8_inputs=members["fp8_inputs"].flag(),
        fp8_copy_bytes=members["fp8_copy_bytes"].integer(),
        reserved_percent=members["reserved_percent"].integer(),
        calls_backward=members["calls_backward"].number(),
        calls=calls,
    )
