"""A person's own table of layers (CSV) as a profile.

One row a layer: ``name,after,forward_ms,backward_ms,parameter_bytes,output_bytes,saved_bytes`` and, if
known, ``backward_weight_ms``. Times and bytes are those of one micro-batch. Leaves out
tied weights, links and everything that the table does not say.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import check_regular
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.origin import Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements

COLUMNS = ("name", "after", "forward_ms", "backward_ms", "parameter_bytes", "output_bytes", "saved_bytes")
WEIGHT = "backward_weight_ms"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer: those that it reads, times and bytes of one micro-batch; `weight_ns` is the weight gradient's part."""

    name: str
    after: tuple[str, ...]
    forward_ns: int
    backward_ns: int
    weight_ns: int
    parameter_bytes: int
    output_bytes: int
    saved_bytes: int


def read_layers(path: str | Path, microbatch_size: int = 1, memory_bytes: int = 80 * 2**30) -> Profile:
    """Read the table.

    Parameters
    ----------
    microbatch_size : int
        Samples that its times and bytes are for.
    memory_bytes : int
        Memory of the device that it was measured on.

    Raises
    ------
    InvalidInput
        With the line, what was found there and what is allowed.
    """
    device = Device("cuda", "a table of layers", memory_bytes)
    return profile_of(_read(Path(path)), Path(path).stem, "layers", device, microbatch_size)


def profile_of(
    layers: Sequence[LayerRow], name: str, imported: str, device: Device, microbatch_size: int = 1
) -> Profile:
    """Return layers, each after those that it reads, as a profile; a loss reads what no layer does.

    Parameters
    ----------
    imported : str
        The format that they were read from.
    """
    read_by: dict[str, list[str]] = {layer.name: [] for layer in layers}
    for layer in layers:
        for other in layer.after:
            read_by[other].append(layer.name)
    rows = list(layers)
    if rows[-1].name != LOSS:
        ends = tuple(name for name, readers in read_by.items() if not readers)
        rows.append(LayerRow(LOSS, ends, 0, 0, 0, 0, 0, 0))
        for end in ends:
            read_by[end].append(LOSS)
        read_by[LOSS] = []
    graph = OperatorGraph(
        name,
        tuple(_operator(i, layer, microbatch_size) for i, layer in enumerate(rows)),
        tuple(
            Tensor(layer.name, layer.name, tuple(read_by[layer.name]), (layer.output_bytes,), storage=2 * i)
            for i, layer in enumerate(rows)
            if read_by[layer.name]
        ),
        tuple(
            Parameter(f"{layer.name}.weight", (layer.parameter_bytes,), layer.parameter_bytes)
            for layer in rows
            if layer.parameter_bytes
        ),
    )
    times = tuple(OperatorTimes((x.forward_ns,), (x.backward_ns - x.weight_ns,), (x.weight_ns,), (0.0,)) for x in rows)
    whole = WholeModelMeasurements((sum(layer.forward_ns + layer.backward_ns for layer in rows),))
    origin = Origin(plan_only="the profile is a table of layers: there is no model to run")
    made = {"imported": imported}
    return Profile(graph, device, "float32", (microbatch_size,), times, whole, None, made, origin=origin)


def _operator(index: int, layer: LayerRow, microbatch_size: int) -> Operator:
    saved = (SavedStorage(2 * index + 1, -(-layer.saved_bytes // microbatch_size)),) if layer.saved_bytes else ()
    return Operator(
        layer.name,
        LOSS if layer.name == LOSS else "layer",
        parameters=(f"{layer.name}.weight",) if layer.parameter_bytes else (),
        parameter_bytes=layer.parameter_bytes,
        output_bytes=(layer.output_bytes,),
        saved=saved,
    )


def _read(path: Path) -> list[LayerRow]:
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}; a CSV file in UTF-8 is needed") from None
    rows = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(rows, [])]
    unknown = [name for name in header if name not in (*COLUMNS, WEIGHT)]
    missing = [name for name in COLUMNS if name not in header]
    if unknown or missing or len(set(header)) != len(header):
        raise InvalidInput(
            f"{path}: line 1: found the columns {', '.join(header)}; needed are {', '.join(COLUMNS)}, each once, and "
            f"{WEIGHT} if known"
        )
    layers: list[LayerRow] = []
    for cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        place = f"{path}: line {rows.line_num}"
        if len(cells) != len(header):
            raise InvalidInput(f"{place}: {len(cells)} cells, the header has {len(header)}")
        layers.append(_layer(dict(zip(header, map(str.strip, cells), strict=True)), layers, place))
    if not layers:
        raise InvalidInput(f"{path}: no layers; at least one row is needed")
    return layers


def _layer(row: Mapping[str, str], earlier: list[LayerRow], place: str) -> LayerRow:
    known = {layer.name for layer in earlier}
    name = row["name"]
    if not name or name in known:
        raise InvalidInput(f"{place}: the name {name!r} is {'used twice' if name else 'empty'}; names must be unique")
    after = tuple(dict.fromkeys(part.strip() for part in row["after"].split(";") if part.strip()))
    for other in after:
        if other not in known:
            raise InvalidInput(f"{place}: after names {other!r}, which no earlier row has; list layers in order")
    backward_ns, parameter_bytes = _ns(row, "backward_ms", place), _bytes(row, "parameter_bytes", place)
    weight_ns = backward_ns // 2 if parameter_bytes else 0  # half of it, where nobody measured
    if row.get(WEIGHT):
        weight_ns = _ns(row, WEIGHT, place)
    if weight_ns > backward_ns:
        raise InvalidInput(f"{place}: {WEIGHT} is more than backward_ms, of which it is a part")
    return LayerRow(
        name, after, _ns(row, "forward_ms", place), backward_ns, weight_ns, parameter_bytes,
        _bytes(row, "output_bytes", place), _bytes(row, "saved_bytes", place),
    )  # fmt: skip


def _ns(row: Mapping[str, str], column: str, place: str) -> int:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise InvalidInput(f"{place}: {column} is {row[column]!r}; milliseconds, 0 or more, are needed")
    return round(value * 1e6)


def _bytes(row: Mapping[str, str], column: str, place: str) -> int:
    text = row[column]
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidInput(f"{place}: {column} is {text!r}; whole bytes, 0 or more, are needed")
    return int(text)
