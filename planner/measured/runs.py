"""Jobs that a person measured, one row each, for `penstock fit`.

Columns: `model` (a name or a config.json), `device` (catalogue id), flags of `penstock plan` by their names,
`sequence`, `step_time_ms`, and `peak_memory_gib` where it is known. A column left out, or an empty cell, is the
simplest choice. Leaves out models that must be captured (`zoo:`) and choices that differ from stage to stage.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.command import config_of
from costmodel.architectures.configs import Config
from costmodel.errors import InvalidInput, PenstockError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.cluster import read_cluster
from costmodel.roofline import OPTIMIZERS
from costmodel.stages.config import OFFLOAD, RECOMPUTE
from costmodel.stages.strategies.trainers import FLAGS, MEGATRON, SAID, SELECTIVE, habits_of, trainers
from planner.measured.job import MeasuredJob
from planner.question.space import Space

NEEDED = ("model", "device", "devices", "batch", "step_time_ms")
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "offload": OFFLOAD, "precision": tuple(PRECISIONS), "optimizer": tuple(OPTIMIZERS),
    "trainer": tuple(trainers()), "selective": SELECTIVE,
}  # fmt: skip
TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
OTHERS = ("microbatch_size", "sequence", "cluster", "peak_memory_gib", "precision", "optimizer", "trainer")
COLUMNS = tuple(dict.fromkeys((*NEEDED, *OTHERS, *(field.name for field in fields(Space)), *SAID)))
MOST = 1e9
"""Of milliseconds and GiB: twelve days, which is more than any step takes or rank holds."""

Cells = Mapping[str, str]


def read_runs(path: str | Path) -> list[MeasuredJob]:
    """Read a file of runs.

    Raises
    ------
    InvalidInput
        When the file cannot be read, lacks a column or has one that means nothing, or a cell cannot be meant.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as a table: {error}") from None
    if not lines:
        raise InvalidInput(f"{path}: no row; give one a measured job, with the columns {', '.join(NEEDED)}")
    return [
        _job(f"{path}: row {number}", _cells(f"{path}: row {number}", line)) for number, line in enumerate(lines, 1)
    ]


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


def _job(where: str, cells: Cells) -> MeasuredJob:
    try:
        return _read(cells)
    except PenstockError as error:
        raise InvalidInput(f"{where}: {error}") from None


def _read(cells: Cells) -> MeasuredJob:
    for name in NEEDED:
        if name not in cells:
            raise InvalidInput(f"{name} is empty; every row needs it")
    config, trainer = config_of(cells["model"]), _word(cells, "trainer", MEGATRON)
    device, precision = catalogue_device(cells["device"]).id, _word(cells, "precision", "bf16")
    habits_of(trainer)
    devices, batch = _whole(cells, "devices"), _whole(cells, "batch")
    degrees = {name: _whole(cells, name, 1) for name in ("stages", "chunks", "tensor", "context", "expert")}
    shared = degrees["stages"] * degrees["tensor"] * degrees["context"]
    space = Space(
        **degrees,
        data=_whole(cells, "data", max(1, devices // shared)),
        sequence_parallel=_flag(cells, "sequence_parallel", otherwise=False),
        zero=_whole(cells, "zero", 0, least=0),
        recompute=_word(cells, "recompute", "none"),
        offload=_word(cells, "offload", "none"),
    )
    habits = {name: _habit(cells, name) for name in SAID if name in cells}
    return MeasuredJob(
        " ".join(f"{name} {value}" for name, value in cells.items()), cells["model"], config, device, devices, batch,
        _whole(cells, "microbatch_size", 1), _whole(cells, "sequence", _longest(config)), space, precision, trainer,
        optimizer=_word(cells, "optimizer", "adam"), step_ns=round(_number(cells, "step_time_ms") * 1e6),
        peak_bytes=round(_number(cells, "peak_memory_gib") * 2**30) if "peak_memory_gib" in cells else 0,
        cluster=read_cluster(cells["cluster"]) if "cluster" in cells else None, habits=tuple(habits.items()),
    )  # fmt: skip


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
