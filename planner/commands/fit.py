"""Let your own measured steps move the constants that they identify, for plans of such jobs on such machines.

    penstock fit runs.csv -o calibration.toml
    penstock plan profile.json --devices 8 --batch 64 --calibration calibration.toml -o plan.json
    penstock fit runs.csv --judge --by source,device

One row a job: model, device, flags of penstock plan by their names, step_time_ms. Constants are shrunk towards what
they were and bounded; those that the rows do not identify stay, and are named. The error with one family of rows (one
model and one set of degrees) left out at a time says what to expect of other jobs. With --judge nothing is fitted or
written: the rows judge the prices of today, by groups of rows that agree in some columns.
"""

import argparse
import math

from costmodel.errors import UsageError
from planner.commands.answer import Answer, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("runs", metavar="RUNS.csv", help="measured jobs, one a row (docs/calibration.md)")
    parser.add_argument("-o", "--output", metavar="calibration.toml", help="what moved (needed but for --judge)")
    parser.add_argument("--judge", action="store_true", help="hold the prices of today against the rows; fit nothing")
    parser.add_argument("--by", metavar="COLUMN,...", help="columns that make the groups of --judge (default source)")
    parser.add_argument("--calibration", metavar="FILE", help="start from these constants, not the published ones")


def run(args: argparse.Namespace) -> Answer:
    """Fit, write what moved and say how good it is; or judge."""
    if args.judge:
        return _judge(args)
    if not args.output or args.by:
        said = "--by makes the groups of --judge" if args.by else "a fit writes what moved"
        raise UsageError(f"{said}; give -o calibration.toml to fit, or --judge to hold prices against the rows")
    return _fit(args)


def _judge(args: argparse.Namespace) -> Answer:
    from costmodel.calibration import published, read_calibration
    from planner.measured.judge import judge
    from planner.measured.runs import rows_of_runs

    known = read_calibration(args.calibration) if args.calibration else published()
    body = judge(rows_of_runs(args.runs), known, tuple((args.by or "source").split(",")))
    groups: dict[str, dict[str, float | None]] = body["by"]  # type: ignore[assignment]
    lines = [f"{body['rows_priced']} of {body['rows']} rows priced"]
    for name, row in groups.items():
        words = (f"{key.removesuffix('_percent').replace('_', ' ')} {value:.1f}" for key, value in row.items() if value)
        lines.append(f"{name}: {', '.join(words)}")
    skipped: list[dict[str, object]] = body["skipped"]  # type: ignore[assignment]
    lines += [f"skipped: row {one['row']}: {one['reason']}" for one in skipped]
    return Answer(body, lines)


def _fit(args: argparse.Namespace) -> Answer:
    from costmodel.calibration import ANY, published, read_calibration, to_toml
    from costmodel.files import write_text
    from planner.measured.fit_constants import fit
    from planner.measured.predicted import Predictor
    from planner.measured.runs import read_runs

    known = read_calibration(args.calibration) if args.calibration else published()
    jobs = read_runs(args.runs)
    first = Predictor(known).all(jobs)
    for job, one in zip(jobs, first, strict=True):
        if one.why_not:
            say(f"penstock fit: left out, {job.name}: {one.why_not}")
    found = fit(jobs, known, lambda job: f"{job.model} {job.space}")
    own = dict(known.values) if args.calibration else {}
    constants = sorted({**own, **found.moved}.items())
    errors = {**known.errors, **dict.fromkeys(found.moved, found.left_out)}
    trainers = {job.trainer.partition("-")[0] for job in jobs}
    rows = [_row(name, value, errors.get(name, math.nan)) for name, value in constants]
    write_text(args.output, to_toml(rows, trainer=trainers.pop() if len(trainers) == 1 else ANY))
    body: dict[str, object] = {
        "output": args.output,
        "rows": found.rows,
        "rows_skipped": sum(bool(one.why_not) for one in first),
        "moved": {name: {"before": known.values.get(name), "after": value} for name, value in found.moved.items()},
        "stayed": list(found.stayed),
        "error_before_percent": _percent(found.before),
        "error_after_percent": _percent(found.after),
        "leave_one_family_out_percent": _percent(found.left_out),
    }
    before = {name: f"{known.values[name]:.3g}" if name in known.values else "unknown" for name in found.moved}
    moved = [f"{name} {before[name]} -> {value:.3g}" for name, value in found.moved.items()]
    return Answer(
        body,
        [
            f"{args.output}: {found.rows} rows, mean absolute error {_said(found.before)} before and "
            f"{_said(found.after)} after; one family left out at a time {_said(found.left_out)}",
            f"moved: {'; '.join(moved) or 'nothing: these rows identify no constant'}",
            f"not identified, stay as they were: {', '.join(found.stayed) or 'none'}",
        ],
    )


def _row(name: str, value: float, error: float) -> dict[str, object]:
    known = {} if math.isnan(error) else {"left_out_percent": 100 * error}
    return {"name": name, "value": value, **known}


def _percent(error: float) -> float | None:
    return None if math.isnan(error) else 100 * error


def _said(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{100 * error:.1f} %"
