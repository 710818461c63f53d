"""Jobs that somebody measured, one row each, for `penstock fit` and the benchmarks.

Columns: `model` (a name, or a config.json in the folder of the table or the working folder), `device` (catalogue id),
flags of `penstock plan` by their names, `sequence`, `step_time_ms`, `peak_memory_gib` where it is known, and how the
job was run (docs/calibration.md). A column left out, or an empty cell, is the simplest choice. Leaves out models that
must be captured (`zoo:`) and choices that differ from stage to stage.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.command import config_of
from costmodel.architectures.configs import Config
from costmodel.errors import InvalidInput, PenstockError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import read_cluster
from costmodel.roofline import OPTIMIZERS
from costmodel.roofline.narrow import RECIPES
from costmodel.stages.config import OFFLOAD, RECOMPUTE
from costmodel.stages.strategies.memory import KINDS
from costmodel.stages.strategies.trainers import DISPATCHERS, FLAGS, KERNELS, MEGATRON, SAID, SELECTIVE, habits_of
from planner.graph.layers import EQUAL, layers_of
from planner.measured.job import MeasuredJob
from planner.question.space import Space
from simulator.schedules import SCHEDULES

NEEDED = ("model", "device", "devices", "batch", "step_time_ms")
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "offload": OFFLOAD, "precision": tuple(PRECISIONS), "optimizer": tuple(OPTIMIZERS),
    "selective": SELECTIVE, "attention": KERNELS, "schedule": tuple(SCHEDULES),
    "memory_kind": KINDS, "fp8_recipe": RECIPES, "dispatcher": DISPATCHERS,
}  # fmt: skip
TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
OTHERS = ("microbatch_size", "sequence", "cluster", "peak_memory_gib", "precision", "optimizer", "trainer")
RUN = ("memory_kind", "network_gbs", "schedule", "layers", "trainer_version", "compile", "lora_rank")
"""How a job was run and what its figures are, in addition to what `plan` asks."""
UNPRICED = {"gradient_copies": "1"}
"""Columns that are read and not priced, each with the one value that means what is priced."""
FREE = ("source", "case", "group")
"""Columns whose words are the user's own; so is any other name told by `--by`."""
COLUMNS = tuple(dict.fromkeys(
    (*NEEDED, *OTHERS, *(field.name for field in fields(Space)), *SAID, *RUN, *UNPRICED, *FREE)
))  # fmt: skip
MOST = 1e9
"""Of milliseconds and GiB: twelve days, which is more than any step takes or rank holds."""

Cells = Mapping[str, str]


@dataclass(frozen=True)
class MeasuredRun:
    """A row: its cells, the job that they mean, or why they mean none that is priced."""

    number: int
    cells: Cells
    job: MeasuredJob | None = None
    why_not: str = ""


def read_runs(path: str | Path) -> list[MeasuredJob]:
    """Read the jobs of a file of runs, each of which must be one.

    Raises
    ------
    InvalidInput
        When the file cannot be read, lacks a column or has one that means nothing, or a cell cannot be meant.
    """
    found = []
    for run in rows_of_runs(path):
        if run.job is None:
            raise InvalidInput(f"{path}: row {run.number}: {run.why_not}")
        found.append(run.job)
    return found


def rows_of_runs(path: str | Path) -> list[MeasuredRun]:
    """Read a file of runs; a row that is no job says why.

    Raises
    ------
    InvalidInput
        When the file cannot be read, lacks a column or has one that means nothing.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as a table: {error}") from None
    if not lines:
        raise InvalidInput(f"{path}: no row; give one a measured job, with the columns {', '.join(NEEDED)}")
    folder = Path(path).parent
    return [_run(number, _cells(f"{path}: row {number}", line), folder) for number, line in enumerate(lines, 1)]


def _run(number: int, cells: Cells, folder: Path) -> MeasuredRun:
    try:
        return MeasuredRun(number, cells, job_of(cells, folder))
    except PenstockError as error:
        return MeasuredRun(number, cells, why_not=str(error))


def _cells(path: str, line: Mapping[str, str | None]) -> Cells:
    if None in line:
        raise InvalidInput(f"{path}: more cells than the header has columns")
    cells = {(name or "").strip().replace("-", "_"): (value or "").strip() for name, value in line.items()}
    unknown = [name for name in cells if name not in COLUMNS]
    if unknown:
        raise InvalidInput(f"{path}: column {unknown[0]!r} means nothing here; columns are {', '.join(COLUMNS)}")
    missing = [name for name in NEEDED if name not in cells]
    if missing:
        raise InvalidInput(f"{path}: the column {missing[0]!r} is missing; needed are {', '.join(NEEDED)}")
    return {name: value for name, value in cells.items() if value}


def job_of(cells: Cells, folder: Path) -> MeasuredJob:
    """Return the job that cells mean; a model's file may lie in the folder.

    Raises
    ------
    PenstockError
        When a cell cannot be meant, or is not priced.
    """
    for name in NEEDED:
        if name not in cells:
            raise InvalidInput(f"{name} is empty; every row needs it")
    _check_priced(cells)
    model = str(folder / cells["model"]) if (folder / cells["model"]).is_file() else cells["model"]
    config, trainer = config_of(model), _trainer(cells)
    device, precision = catalogue_device(cells["device"]).id, _word(cells, "precision", "bf16")
    devices, batch = _whole(cells, "devices"), _whole(cells, "batch")
    degrees = {name: _whole(cells, name, 1) for name in ("stages", "chunks", "tensor", "context", "expert")}
    shared = degrees["stages"] * degrees["tensor"] * degrees["context"]
    data = _whole(cells, "data", max(1, devices // shared))
    group = _whole(cells, "shard_group", data)
    inner = _whole(cells, "expert_tensor", degrees["tensor"])
    space = Space(
        **degrees,
        expert_tensor=inner if inner != degrees["tensor"] else None,
        data=data,
        shard_group=group if group != data else None,
        sequence_parallel=_flag(cells, "sequence_parallel", otherwise=False),
        zero=_whole(cells, "zero", 0, least=0),
        recompute=_word(cells, "recompute", "none"),
        offload=_word(cells, "offload", "none"),
        rank_order=None,
    )
    return MeasuredJob(
        " ".join(f"{name} {value}" for name, value in cells.items()), cells["model"], config, device, devices, batch,
        _whole(cells, "microbatch_size", 1), _whole(cells, "sequence", _longest(config)), space, precision, trainer,
        optimizer=_word(cells, "optimizer", "adam"), step_ns=round(_number(cells, "step_time_ms") * 1e6),
        peak_bytes=round(_number(cells, "peak_memory_gib") * 2**30) if "peak_memory_gib" in cells else 0,
        memory_kind=_word(cells, "memory_kind", KINDS[0]),
        network_gbs=_number(cells, "network_gbs") if "network_gbs" in cells else 0.0,
        cluster=read_cluster(cells["cluster"]) if "cluster" in cells else None, habits=tuple(_habits(cells)),
        group=_group(cells), source=cells.get("source", ""), order=_schedule(cells),
        layers=_layers(cells, degrees["stages"] * degrees["chunks"]), lora_rank=_whole(cells, "lora_rank", 0, least=0),
    )  # fmt: skip


def _check_priced(cells: Cells) -> None:
    for name, priced in UNPRICED.items():
        if cells.get(name, priced) != priced:
            raise InvalidInput(f"{name} is {cells[name]!r}, which is not priced yet; only {priced} is")


def _trainer(cells: Cells) -> str:
    trainer = cells.get("trainer", MEGATRON)
    habits_of(trainer)
    version = cells.get("trainer_version", "").replace(".", "_")  # a dot parts the names of constants
    return f"{trainer}-{version}" if version else trainer


def _group(cells: Cells) -> str:
    """Return among which jobs a choice is made: one model, sequence, batch and machines, where nothing is said."""
    alike = (cells.get(name, "") for name in ("model", "sequence", "batch", "device", "devices"))
    return cells.get("group") or " ".join(alike)


def _schedule(cells: Cells) -> str:
    return _word(cells, "schedule", "") if "schedule" in cells else ""


def _layers(cells: Cells, num_stages: int) -> tuple[int, ...]:
    if cells.get("layers", EQUAL) == EQUAL:
        return ()
    layers = layers_of(cells["layers"])
    if len(layers) != num_stages:
        raise InvalidInput(f"layers names {len(layers)} stages, and stages x chunks are {num_stages}")
    return layers


def _habits(cells: Cells) -> Iterator[tuple[str, object]]:
    """Yield what the trainer was told otherwise; compiled kernels are fused."""
    if "compile" in cells:
        yield "fused", _flag(cells, "compile", otherwise=False)
    for name in SAID:
        if name in cells:
            yield name, _habit(cells, name)


def _longest(config: Config) -> int:
    from costmodel.architectures.describe import tokens_of

    return tokens_of(config, 0)


def _habit(cells: Cells, name: str) -> object:
    if name in FLAGS:
        return _flag(cells, name, otherwise=False)
    return _word(cells, name, "") if name in WORDS else _whole(cells, name)


def _whole(cells: Cells, name: str, otherwise: int = 0, least: int = 1) -> int:
    text = cells.get(name, str(otherwise))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise InvalidInput(f"{name} is {text!r}; a whole number from {least} to 999999999 is needed")
    return int(text)


def _number(cells: Cells, name: str) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        value = -1.0
    if not 0 < value <= MOST:
        raise InvalidInput(f"{name} is {cells[name]!r}; a number above 0, at most {MOST:g}, is needed")
    return value


def _word(cells: Cells, name: str, otherwise: str) -> str:
    text = cells.get(name, otherwise)
    if text not in WORDS[name]:
        raise InvalidInput(f"{name} is {text!r}; allowed are {', '.join(WORDS[name])}")
    return text


def _flag(cells: Cells, name: str, *, otherwise: bool) -> bool:
    text = cells.get(name, str(otherwise)).lower()
    if text not in TRUTH:
        raise InvalidInput(f"{name} is {text!r}; allowed are {', '.join(TRUTH)}")
    return TRUTH[text]
