"""Aceso's measured configurations on A10G and L4, predicted from the operators of its archive.

    python -m benchmarks.aceso [--only REGEX] [--json]

Each row of ``validation_aceso_measured.csv`` names a configuration of ``aceso_a10g_l4.tar.gz`` (read where it lies;
PENSTOCK_DATA names the folder): operators, degrees and recompute of each stage. It is priced and simulated as plans
are, and held against the measured step, and, where ``validation_aceso_per_stage.csv`` has them, against each stage's
forward and backward (on its first rank) and each rank's peak memory. Printed are mean and median of absolute errors,
the bias, and how many predictions are below what was measured.
"""

import argparse
import csv
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from costmodel.errors import PenstockError
from costmodel.importers.aceso_archive import read_archive
from planner.measured.aceso import AcesoModel, AcesoPrediction
from planner.report.text import Table

MIB = 2**20
PARTS = ("step", "forward", "backward", "peak", "upper bound")


@dataclass(frozen=True, slots=True)
class Pair:
    """One predicted value beside the measured one (ms, or MiB of peaks); `stage` is -1 for the step."""

    device: str
    config: str
    part: str
    stage: int
    tensor: str
    predicted: float
    measured: float

    @property
    def error_percent(self) -> float:
        """Signed."""
        return 100 * (self.predicted / self.measured - 1)


def data(name: str) -> Path:
    """Return a path in the folder with the published data."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("PENSTOCK_DATA", default), "published", name)


def pairs(only: str = "") -> tuple[list[Pair], dict[str, str]]:
    """Return all pairs of the rows whose configuration matches, and why rows were left out."""
    stages = defaultdict(list)
    for line in _lines("validation_aceso_per_stage.csv"):
        stages[line["hardware"], line["config"]].append(line)
    models: dict[tuple[str, str], AcesoModel] = {}
    found: list[Pair] = []
    skipped: dict[str, str] = {}
    for row in _lines("validation_aceso_measured.csv"):
        key = row["hardware"], row["model_size"]
        if not re.search(only, f"{row['hardware']} {row['config']}"):
            continue
        try:
            if key not in models:
                models[key] = AcesoModel(read_archive(data("aceso_a10g_l4.tar.gz"), *key))
            predicted = models[key].predicted(row["config"])
        except PenstockError as error:
            skipped[f"{row['hardware']} {row['config']}"] = str(error)
            continue
        found += _of_row(row, stages[row["hardware"], row["config"]], predicted)
    return found, skipped


def _lines(name: str) -> list[dict[str, str]]:
    with data(name).open() as file:
        return list(csv.DictReader(file))


def _of_row(row: Mapping[str, str], lines: Sequence[Mapping[str, str]], found: AcesoPrediction) -> Iterator[Pair]:
    of, degrees = (row["hardware"], row["config"]), row["tp_per_stage"].split("/")
    yield Pair(*of, "step", -1, "", found.step_ns / 1e6, float(row["measured_iter_ms"]))
    for line in lines:
        number = int(line["stage"])
        stage = found.stages[number]
        values = stage.forward_ns / 1e6, stage.backward_ns / 1e6, stage.peak_bytes / MIB, stage.upper_bytes / MIB
        columns = "fwd_compute_ms", "bwd_compute_ms", "max_allocated_mb", "max_allocated_mb"
        first = line is next(other for other in lines if other["stage"] == line["stage"])
        for part, value, column in zip(PARTS[1:], values, columns, strict=True):
            if line[column] and (first or part in PARTS[3:]):
                yield Pair(*of, part, number, degrees[number].strip("[]"), value, float(line[column]))


def summary(found: Sequence[Pair]) -> list[dict[str, object]]:
    """Return errors by device and part, of stages on one GPU apart."""
    rows = []
    for device in dict.fromkeys(pair.device for pair in found):
        for part in PARTS:
            mine = [pair for pair in found if (pair.device, pair.part) == (device, part)]
            for name, some in ((part, mine), (f"{part}, one GPU", [pair for pair in mine if pair.tensor == "1"])):
                errors = [pair.error_percent for pair in some]
                if errors:
                    sizes = [abs(error) for error in errors]
                    rows.append(
                        {
                            "device": device,
                            "part": name,
                            "rows": len(errors),
                            "mape_percent": fmean(sizes),
                            "median_percent": median(sizes),
                            "bias_percent": fmean(errors),
                            "worst_percent": max(errors, key=abs),
                            "below_percent": 100 * fmean(error < 0 for error in errors),
                        }
                    )
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="some rows: found in 'DEVICE CONFIGURATION'")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    archive = data("aceso_a10g_l4.tar.gz")
    if not archive.exists():
        raise SystemExit(f"{archive} is not there: set PENSTOCK_DATA to the folder with the published data")
    found, skipped = pairs(args.only)
    steps = [{**asdict(pair), "error_percent": pair.error_percent} for pair in found if pair.part == "step"]
    if args.json:
        print(json.dumps({"errors": summary(found), "steps": steps, "skipped": skipped}))
        return
    rows = [
        (*(str(row[key]) for key in ("device", "part", "rows")), *(f"{row[key]:.1f}" for key in list(row)[3:]))
        for row in summary(found)
    ]
    print(Table(("device", "of", "rows", "mean %", "median %", "bias %", "worst %", "below %"), rows))
    for pair in sorted((pair for pair in found if pair.part == "step"), key=lambda pair: -abs(pair.error_percent)):
        print(
            f"{pair.device} {pair.config}: {pair.predicted:.0f} of {pair.measured:.0f} ms, {pair.error_percent:+.1f} %"
        )
    print(f"{len(skipped)} rows left out", *(f"{name}: {why}" for name, why in skipped.items()), sep="\n  ")


if __name__ == "__main__":
    main()
