"""Measured times that others published, each beside its estimate: operators, stages, whole steps.

Leaves out where the files lie and what the errors come to (`benchmarks.roofline`).
"""

import csv
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.roofline.megatron_layer import Measured, Shape, layer, operators, total
from costmodel.machines.catalogue import CatalogueDevice, device
from costmodel.roofline import Interval, optimizer_step_ns

DEVICES = {"a10g": "a10g-24", "l4": "l4-24"}
SHAPES = {
    "1_3B": (2048, 32), "2_6B": (2560, 32), "6_7B": (4096, 32), "13B": (5120, 40), "20B": (6144, 64), "22B": (6144, 64),
    "40B": (8192, 64),
}  # fmt: skip
"""Hidden width and heads of the profiled models; sequences of 2,048 tokens."""
NAME = re.compile(r"profiled-time-mist-all-(\w+)/gpt_(\w+)_mbs(\d+)_tp(\d+)_algo0\.csv")
COMMUNICATE = {
    "forward": ("enc-attention-dense", "enc-MLP-GEMM-2", "encoder-embedding", "gpt-post-process"),
    "backward": ("enc-attention-qkv", "enc-MLP-GEMM-1", "encoder-embedding", "gpt-post-process"),
}
"""Operators whose measured time holds an all-reduce in a tensor group."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured time and its estimate; `key` is the same for the same operator of another device."""

    device: str
    kind: str
    part: str
    key: tuple[object, ...]
    measured_ns: float
    found: Interval


def operator_pairs(archive: Path) -> list[Pair]:
    """Return every profiled operator whose shape is known and whose time holds no communication."""
    found: list[Pair] = []
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            match, file = NAME.fullmatch(member.name), tar.extractfile(member)
            if match and file:
                found += _profile_pairs(match, csv.DictReader(io.StringIO(file.read().decode())))
    return found


def _profile_pairs(match: re.Match[str], lines: Iterable[Mapping[str, str]]) -> Iterator[Pair]:
    name, model, samples, tensor = match.groups()
    shape = Shape(*SHAPES[model], 2048, int(samples), int(tensor))
    known = operators(shape)
    for line in lines:
        operator = line["op_name"]
        if operator not in known:  # the last normalisation holds a copy, whose shape is not given
            continue
        estimates = known[operator].estimates(device(DEVICES[name]))
        for part, interval in zip(("forward", "backward"), estimates, strict=True):
            if shape.tensor == 1 or operator not in COMMUNICATE[part]:
                measured_ns = float(line[f"{part}-compute"]) * 1000
                key = (model, samples, tensor, operator, part)
                yield Pair(name, known[operator].kind, part, key, measured_ns, interval)


def scaled(pairs: list[Pair]) -> list[Pair]:
    """Return the L4's measured times against the A10G's, scaled by the ratio of the estimates."""
    source = {pair.key: pair for pair in pairs if pair.device == "a10g"}
    found = []
    for pair in pairs:
        if pair.device == "l4" and pair.key in source:
            other = source[pair.key]
            ratio = other.measured_ns / other.found.central_ns
            values = (pair.found.low_ns, pair.found.central_ns, pair.found.high_ns)
            interval = Interval(*(round(value * ratio) for value in values))
            found.append(Pair("a10g to l4", pair.kind, pair.part, pair.key, pair.measured_ns, interval))
    return found


def stage_pairs(folder: Path) -> list[Pair]:
    """Return forwards of inner stages on one device, as measured in whole runs of the same machines.

    A stage's operators are counted, not named, so each run is priced by its mean layer.
    """
    with (folder / "validation_aceso_measured.csv").open() as file:
        runs = {(line["hardware"], line["config"]): line for line in csv.DictReader(file)}
    with (folder / "validation_aceso_per_stage.csv").open() as file:
        lines = [(line, runs.get((line["hardware"], line["config"]))) for line in csv.DictReader(file)]
    return [pair for line, run in lines if run and (pair := _stage(line, run))]


def _stage(line: Mapping[str, str], run: Mapping[str, str]) -> Pair | None:
    stage, samples = int(line["stage"]), int(run["micro_batch"])
    if run["tp_per_stage"].split("/")[stage] != "[1]" or not 0 < stage < int(run["num_stages"]) - 1:
        return None
    if run["dp_per_stage"].split("/")[stage] != "[1]":
        return None
    known = layer(Shape(*SHAPES[line["model_size"]], 2048, samples))
    forward, _ = _sum(list(known.values()), device(DEVICES[line["hardware"]]))
    count = int(run["global_batch"]) // samples * int(run["ops_per_stage"].split("/")[stage]) / len(known)
    found = Interval(*(round(value * count) for value in (forward.low_ns, forward.central_ns, forward.high_ns)))
    key = (line["config"], stage)
    return Pair(
        line["hardware"], f"stage of {line['model_size']}", "forward", key, float(line["fwd_compute_ms"]) * 1e6, found
    )


def step_pairs(folder: Path) -> list[Pair]:
    """Return published times of whole steps that hold next to no communication."""
    with (folder / "validation_vtrain_single.csv").open() as file:
        lines = [{name.strip(): value for name, value in line.items()} for line in csv.DictReader(file)]
    alone = [line for line in lines if line["tensor parallelism"] == line["data parallelism"] == "1"]
    return [*(_vtrain(line) for line in alone), _layer_of_22b()]


def _vtrain(line: Mapping[str, str]) -> Pair:
    """Price 1F1B with full recompute: every stage once, the largest for every further micro-batch, then Adam."""
    a100 = device("a100-sxm-80")
    stages, layers = int(line["pipeline parallelism"]), int(line["# layers"])
    samples = int(line["micro batch"])
    hidden = int(line["hidden size"])
    shape = Shape(hidden, int(line["attention heads"]), int(line["sequence length"]), samples)
    forward, backward = _sum(list(layer(shape).values()), a100)
    known = operators(shape)
    head, embedding = (total(list(known[n].estimates(a100))) for n in ("gpt-post-process", "encoder-embedding"))
    stage = _times(total([forward, forward, backward]), layers // stages)
    largest = total([stage, head])
    update = optimizer_step_ns(2 * (12 * hidden * hidden * layers // stages + 51200 * hidden), a100)
    waiting = int(line["global batch"]) // samples - 1
    found = total([_times(stage, stages), head, embedding, _times(largest, waiting), update])
    key = (line["hidden size"], line["# layers"], line["micro batch"], line["global batch"])
    return Pair("a100", f"1F1B, {hidden} x {samples}", "step", key, float(line["iteration time (ms)"]) * 1e6, found)


def _layer_of_22b() -> Pair:
    """Price one layer of Korthikanti et al.'s 22B model: no recompute, eight ranks, 19.6 ms measured."""
    a100 = device("a100-sxm-80")
    compute = total(list(_sum(list(layer(Shape(6144, 64, 2048, 4, 8)).values()), a100)))
    reduced_ns = round(4 * 2 * 7 / 8 * (2 * 4 * 2048 * 6144) / a100.scaleup_gbs)
    found = total([compute, Interval(reduced_ns, reduced_ns, reduced_ns)])
    return Pair("a100", "layer of 22B", "step", (), 19.6e6, found)


def _sum(measured: list[Measured], on: CatalogueDevice) -> tuple[Interval, Interval]:
    both = [operator.estimates(on) for operator in measured]
    return total([forward for forward, _ in both]), total([backward for _, backward in both])


def _times(interval: Interval, count: int) -> Interval:
    return Interval(interval.low_ns * count, interval.central_ns * count, interval.high_ns * count)
