"""Estimated against measured times of GPT operators on an A10G and an L4, and of whole steps on A100s.

    python -m benchmarks.roofline [--json]

Operators: the profiles in ``published/aceso_a10g_l4.tar.gz`` (read where it lies; PENSTOCK_DATA names the folder), one
device each, fp16; from tensor groups only what holds no communication. Stages: forwards of inner stages in whole runs
of the same machines. Steps: rows of vTrain's single-node table with neither tensor nor data parallelism (hidden width x
micro-batch size), transfers left out, and one layer of Korthikanti et al. (2022), Table 4, whose all-reduces are added
at the effective rate of the catalogue. Errors are medians, because some profiles hold a first call. The A10G's
operators set the tables; of the L4 only the ends of its achievable share of peak were, its central share is that of any
device. ``a10g to l4`` is the A10G's measured time, times the ratio of both estimates, against the L4's.
"""

import argparse
import csv
import io
import json
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.megatron_layer import Measured, Shape, layer, operators, total
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


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of many pairs: medians, in per cent, and the share of times inside [low, high]."""

    device: str
    kind: str
    part: str
    count: int
    bias_percent: float
    error_percent: float
    inside_percent: float


def data(*parts: str) -> Path:
    """Return a path in the folder with the published data."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("PENSTOCK_DATA", default), "published", *parts)


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


def rows(pairs: list[Pair]) -> list[Row]:
    """Return one row a device, kind and part, and one over all kinds where there are several."""
    groups = defaultdict(list)
    for pair in pairs:
        groups[pair.device, pair.kind, pair.part].append(pair)
        groups[pair.device, "all", pair.part].append(pair)
    several = len({pair.kind for pair in pairs}) > 1
    return [_row(key, group) for key, group in sorted(groups.items()) if several or key[1] != "all"]


def _row(key: tuple[str, str, str], group: list[Pair]) -> Row:
    errors = [100 * (pair.found.central_ns / pair.measured_ns - 1) for pair in group]
    inside = sum(pair.found.low_ns <= pair.measured_ns <= pair.found.high_ns for pair in group)
    return Row(*key, len(group), median(errors), median(map(abs, errors)), 100 * inside / len(group))


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    pairs = operator_pairs(data("aceso_a10g_l4.tar.gz"))
    table = rows(pairs) + rows(scaled(pairs)) + rows(stage_pairs(data())) + rows(step_pairs(data()))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in table]}))
        return
    print(f"{'device':<11} {'kind':<24} {'part':<9} {'count':>5} {'bias %':>8} {'error %':>8} {'inside %':>8}")
    for row in table:
        print(
            f"{row.device:<11} {row.kind:<24} {row.part:<9} {row.count:>5} {row.bias_percent:>+8.1f} "
            f"{row.error_percent:>8.1f} {row.inside_percent:>8.0f}"
        )


if __name__ == "__main__":
    main()
