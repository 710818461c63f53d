"""The archive of measured operators and configurations that goes with Aceso (a tar of CSV and JSON files), as data.

Aceso: Liu et al., EuroSys 2024; the archive holds what Mist's authors measured with it on A10G and L4 (Zhu et al.,
EuroSys 2025). Files are read in memory and nothing is unpacked: whatever else the tar holds is passed over, and sizes
are bounded. Leaves out other models than GPT, and what the tables mean (`benchmarks.peer_problems.aceso.profile`).
"""

import csv
import io
import json
import math
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from benchmarks.peer_problems.aceso.layer import EMBEDDING, FINAL, HEAD, LAYER, base_name
from costmodel import limits
from costmodel.errors import InvalidInput
from costmodel.files import read_bytes

MIB = 2**20
MOST_BYTES, MOST_FILES = 64 * MIB, 10_000
"""Of all files that are read, and files that a tar may hold: the archive has 12 MB in 556 files."""
SLOWEST_GBS = 1e-6
"""Of a rate that was measured: a kilobyte a second."""
LARGE_MIB = 16
"""A message of this size and more moves at the rate of its link."""
LARGEST = 10**6
"""Of the shape of a model, a batch and a degree."""
TABLES = r"profiled-time-\w+-all-(?P<device>\w+)/"
OPERATORS = re.compile(TABLES + r"gpt_(?P<model>\w+?)_mbs(\d{1,6})_tp(\d{1,6})_algo(\d{1,6})\.csv")
COLLECTIVE = re.compile(TABLES + r"prim_gpt_(?P<model>\w+?)_([a-z_]+)_(\d{1,6})gpus\.csv")
MESSAGES = re.compile(TABLES + r"p2p_(inter|intra)_node\.csv")
CONFIG = re.compile(r"logs-\w+-all-(?P<device>\w+)/(?:\w+/)+gpt/(?P<model>\w+)/top_configs/([\w.-]+)\.json")
COLUMNS = ("forward-compute", "backward-compute", "weights")
LISTS = ("num_gpus", "num_ops_in_each_stage")
PER_OPERATOR = ("model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops")
NUMBERS = ("num_layers", "seq_length", "num_attention_heads", "hidden_size", "global_batch_size", "micro_batch_size")


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of one table: forward and backward (us), weights of a rank (MiB)."""

    forward_us: float
    backward_us: float
    weights_mib: float


@dataclass(frozen=True)
class AcesoConfiguration:
    """One measured configuration: shape of the model, batch, and of each stage its devices and operators.

    Attributes
    ----------
    name : str
    layers, sequence, heads, hidden, batch, microbatch_size : int
    devices : tuple of int
        Of each stage.
    operators : tuple of int
        How many each stage has.
    tensor, data : tuple of tuple of int
        Degrees of each operator of each stage.
    again : tuple of tuple of int
        1 for each operator whose forward runs again.
    """

    name: str
    layers: int
    sequence: int
    heads: int
    hidden: int
    batch: int
    microbatch_size: int
    devices: tuple[int, ...]
    operators: tuple[int, ...]
    tensor: tuple[tuple[int, ...], ...]
    data: tuple[tuple[int, ...], ...]
    again: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class AcesoArchive:
    """What an archive holds of one device and one model.

    Attributes
    ----------
    tables : mapping
        (micro-batch size, tensor degree) -> operators by name, of the first way to divide them (``algo0``).
    collectives : mapping
        (kind, number of GPUs) -> rows of (MiB, ms), within one host.
    messages : mapping
        ``intra`` and ``inter`` (of a host) -> rows of (MiB, GB/s).
    configurations : mapping
        By name.
    """

    device: str
    model: str
    tables: Mapping[tuple[int, int], Mapping[str, OperatorRow]]
    collectives: Mapping[tuple[str, int], Sequence[tuple[float, float]]]
    messages: Mapping[str, Sequence[tuple[float, float]]]
    configurations: Mapping[str, AcesoConfiguration]

    def row(self, name: str, size: int, degree: int) -> OperatorRow:
        """Return what was measured of an operator of any layer at a micro-batch size and tensor degree.

        Raises
        ------
        InvalidInput
            When it was not.
        """
        found = self.tables[size, degree].get(base_name(name))
        if found is None:
            raise InvalidInput(
                f"the table of {self.model} at micro-batch size {size}, tensor degree {degree} has no operator "
                f"{base_name(name)!r}; it needs {EMBEDDING}, the {len(LAYER)} of a layer, {FINAL} and {HEAD}"
            )
        return found

    @cached_property
    def shape(self) -> AcesoConfiguration:
        """Any configuration: the shape of the model is the same in all."""
        return next(iter(self.configurations.values()))


def read_archive(path: str | Path, device: str, model: str) -> AcesoArchive:
    """Read what an archive says of one device and one model.

    Raises
    ------
    InvalidInput
        For a file that is no such tar, is larger than any of these, holds no such device or model, or a table that is
        not one.
    """
    model, path = model.removeprefix("gpt_"), Path(path)
    tables: dict[tuple[int, int], Mapping[str, OperatorRow]] = {}
    collectives: dict[tuple[str, int], Sequence[tuple[float, float]]] = {}
    messages: dict[str, Sequence[tuple[float, float]]] = {}
    configurations: dict[str, AcesoConfiguration] = {}
    known: set[tuple[str, str]] = set()
    for name, data in _files(path):
        found = [pattern.fullmatch(name) for pattern in (OPERATORS, COLLECTIVE, CONFIG, MESSAGES)]
        match = next(filter(None, found), None)
        if match is None:
            continue
        groups = match.groupdict()
        if "model" in groups:
            known.add((groups["device"], groups["model"]))
        if groups["device"] != device or groups.get("model", model) != model:
            continue
        place, rest = f"{path}: {name}", match.groups()[len(groups) :]
        if found[0] and rest[2] == "0":
            tables[int(rest[0]), int(rest[1])] = _operators(place, data)
        elif found[1]:
            collectives[rest[0], int(rest[1])] = _pairs(place, data)
        elif found[2]:
            configurations[rest[0]] = _configuration(place, rest[0], data)
        elif found[3]:
            messages[rest[0]] = _rates(place, data)
    if (1, 1) not in tables or not configurations or set(messages) != {"intra", "inter"}:
        listed = ", ".join(f"{d} {m}" for d, m in sorted(known)) or "none"
        raise InvalidInput(
            f"{path}: no operators, messages and configurations of {model!r} on {device!r}; devices and models there: "
            f"{listed}: choose by --device and --model"
        )
    return AcesoArchive(device, model, tables, collectives, messages, configurations)


def _files(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each small plain file; nothing is written, links and devices are passed over."""
    left = MOST_BYTES
    try:
        # Decompressed beforehand, as far as a limit: a tar's own headers may say any length.
        with tarfile.open(fileobj=io.BytesIO(read_bytes(path)), mode="r:") as tar:
            for number, member in enumerate(tar):
                if number >= MOST_FILES or member.size > left:
                    raise InvalidInput(
                        f"{path}: more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB; no such archive is so large"
                    )
                left -= member.size
                if member.isreg() and (file := tar.extractfile(member)):
                    yield member.name.removeprefix("./"), file.read().decode()
    except tarfile.TarError:
        raise InvalidInput(f"{path}: is no tar, or is cut short; Aceso's archive (gzipped or not) is needed") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}; Aceso's archive is needed") from None


def _operators(place: str, text: str) -> dict[str, OperatorRow]:
    rows = csv.DictReader(text.splitlines())
    missing = [name for name in ("op_name", *COLUMNS) if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidInput(f"{place}: no column {', '.join(missing)}; a table of operators has op_name and {COLUMNS}")
    return {row["op_name"]: OperatorRow(*(_number(place, row[name]) for name in COLUMNS)) for row in rows}


def _pairs(place: str, text: str) -> list[tuple[float, float]]:
    """Read rows of size and time; those of 1e6 MB or ms and more say that nothing was measured."""
    rows = [line.split(",") for line in text.split()[1:]]
    if any(len(row) != 2 for row in rows):
        raise InvalidInput(f"{place}: each line needs a size in MB and a time in ms")
    pairs = sorted((_number(place, size), _number(place, time)) for size, time in rows)
    return _apart(place, [(size, time) for size, time in pairs if 0 < size < 1e6 and 0 < time < 1e6])


def _rates(place: str, text: str) -> list[tuple[float, float]]:
    """Read the first measurement: a line of sizes, a line of rates."""
    lines = text.split()[:2]
    sizes, rates = (
        ([_number(place, cell) for cell in line.split(",")] for line in lines) if len(lines) == 2 else ([], [])
    )
    if not sizes or len(sizes) != len(rates) or min(sizes) <= 0 or min(rates) < SLOWEST_GBS:
        raise InvalidInput(
            f"{place}: a line of sizes in MB and one of as many rates in GB/s, {SLOWEST_GBS:g} or more, are needed"
        )
    if max(sizes) < LARGE_MIB:
        raise InvalidInput(f"{place}: no message of {LARGE_MIB} MB or more, whose rates are those of the link")
    return _apart(place, sorted(zip(sizes, rates, strict=True)))


def _apart(place: str, rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return rows whose sizes differ by a byte and more."""
    if any(before == after for before, after in pairwise((0, *(round(size * MIB) for size, _ in rows)))):
        raise InvalidInput(f"{place}: a size below a byte, or twice the same size")
    return rows


def _number(place: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise InvalidInput(f"{place}: {text!r} stands where a number, 0 or more, is needed")
    return value


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{str(value)[:80]} is no whole number from 0 to {LARGEST}")
    return value


def _configuration(place: str, name: str, text: str) -> AcesoConfiguration:
    try:
        body = json.loads(text)
        layers, sequence, heads, hidden, batch, size = numbers = [_integer(body[key]) for key in NUMBERS]
        devices, counts = (tuple(map(_integer, body[key])) for key in LISTS)
        tensor, data, again = (tuple(tuple(map(_integer, row)) for row in body[key]) for key in PER_OPERATOR)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{place}: no configuration of Aceso's: {error!r}") from None
    if (
        min(numbers) < 1
        or any(tuple(map(len, row)) != counts for row in (tensor, data, again))
        or len(devices) != len(counts)
    ):
        raise InvalidInput(f"{place}: its lists are not of one length a stage, or a number is below 1")
    limits.check("operators", layers * len(LAYER), place)
    limits.check("devices", sum(devices), place)
    return AcesoConfiguration(name, layers, sequence, heads, hidden, batch, size, devices, counts, tensor, data, again)
