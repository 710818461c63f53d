"""Fit every constant of `costmodel/calibration/constants.toml` again on published jobs, and write the file.

    python -m benchmarks.refit -o costmodel/calibration/constants.toml

Each fit moves a few constants on some rows of one table, the others as they were fitted before it; the error with one
family of rows left out at a time stands beside the fitted one. Other rows, sources and devices judge what comes out.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.tables import read
from benchmarks.support.published_data import published_data
from costmodel.calibration import Calibration, bounds, to_toml
from costmodel.files import write_text
from planner.measured.fit_constants import Fitted, fit
from planner.measured.job import MeasuredJob


@dataclass(frozen=True)
class Fit:
    """Constants that move on every n-th row of a table's source, and what makes a family of rows."""

    table: str
    source: str
    every: int
    names: tuple[str, ...]
    family: Callable[[MeasuredJob], str]


def _shape(job: MeasuredJob) -> str:
    return job.model


def _hidden(job: MeasuredJob) -> str:
    return str(job.config.values["n_embd"])


def _degrees(job: MeasuredJob) -> str:
    return f"{job.space.stages} {job.space.tensor} {job.space.context}"


A100, B200, H100 = "a100-sxm-80", "b200-sxm-180", "h100-96-500w"
FITS = (
    Fit(
        "validation_vtrain_single.csv", "vTrain single-node", 8, ("host.megatron-2022", "coupled.megatron-2022"),
        _hidden,
    ),
    Fit("validation_vtrain_multi.csv", "vTrain multi-node", 3, (f"network.{A100}",), _hidden),
    Fit(
        "validation_tables.csv", "SimuMax", 3,
        (f"matmul.{B200}.bf16", f"attention.{B200}.bf16", f"memory.{B200}.bf16", f"scaleup.{B200}"), _shape,
    ),
    Fit(
        "validation_tables.csv", "torchtitan", 1,
        (f"matmul.{H100}.bf16", f"attention.{H100}.bf16", "fp8.torchtitan", "unfused.torchtitan"), _degrees,
    ),
    Fit("megatron_bridge_anchors.csv", "Megatron-Bridge", 4, ("fp8.megatron",), _shape),
)  # fmt: skip


def refit(fits: tuple[Fit, ...] = FITS) -> Iterator[tuple[Fit, Fitted]]:
    """Yield what each fit finds; it starts with what those before it found."""
    known = Calibration({})
    for one in fits:
        rows = [row.job for row in read(published_data(one.table)) if one.source in row.sources]
        jobs = [job for job in rows if isinstance(job, MeasuredJob)]
        found = fit(jobs[:: one.every], known, one.family, one.names)
        known = known.with_values(found.moved)
        yield one, found


def rows_of(found: list[tuple[Fit, Fitted]]) -> list[dict[str, object]]:
    """Return a row a constant, with what it was fitted on and how good the fit is."""
    return [
        {
            "name": name,
            "value": float(f"{value:.4g}"),
            "low": bounds(name)[0],
            "high": bounds(name)[1],
            "fitted_on": f"{one.table}, {one.source}, every {one.every}. row",
            "rows": fitted.rows,
            "error_percent": float(f"{100 * fitted.after:.3g}"),
            **({} if math.isnan(fitted.left_out) else {"left_out_percent": float(f"{100 * fitted.left_out:.3g}")}),
        }
        for one, fitted in found
        for name, value in sorted(fitted.moved.items())
    ]


def main() -> None:
    """Fit all, print each and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="constants.toml")
    args = parser.parse_args()
    found = []
    for one, fitted in refit():
        found.append((one, fitted))
        moved = ", ".join(f"{name} {value:.4g}" for name, value in fitted.moved.items())
        print(
            f"{one.source}: {fitted.rows} rows, {100 * fitted.before:.1f} -> {100 * fitted.after:.1f} %, one family "
            f"left out {100 * fitted.left_out:.1f} %: {moved}; stay: {', '.join(fitted.stayed) or 'none'}"
        )
    write_text(args.output, to_toml(rows_of(found)))


if __name__ == "__main__":
    main()
