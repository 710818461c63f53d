"""Move a profile to what a run of a plan took, so that the next plans of the model are predicted better.

    torchrun --nproc-per-node 2 -m executor plan.json --model zoo:mmt:small --timeline timeline.json
    penstock calibrate plan.json --measured timeline.json --profile profile.json -o calibrated.json
    penstock calibrate plan.json --measured timeline.json

Per stage, what F took moves the forward of its operators, what B (or I and W) took their backward; the optimizer's step
and the profile's links move where the run tells. What it does not tell stays, and is named. Plans made with the profile
that is written say so (assumptions.calibration). Without --profile the answer is the errors alone, and no file.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.commands.answer import Answer
from planner.report.summary.text import Table, duration

if TYPE_CHECKING:
    from planner.measured.differences import ActionError
    from planner.plan import Plan
    from simulator.timeline import Timeline

NO_PROFILE = "the profile that would have predicted the run, and its errors: give --profile FILE -o OUT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file that was run")
    parser.add_argument("--measured", required=True, metavar="TIMELINE", help="timeline that the executor wrote of it")
    parser.add_argument("--profile", metavar="FILE", help="profile of the plan's model, to be moved")
    parser.add_argument("-o", "--output", metavar="FILE", help="profile to write (.json or .json.gz)")


def run(args: argparse.Namespace) -> Answer:
    """Compare, and move the profile if one is given."""
    from planner.plan import read_plan
    from planner.report.comparison.measured import read_measured

    if bool(args.profile) != bool(args.output):
        given, lacking = ("--profile", "-o") if args.profile else ("-o", "--profile")
        raise UsageError(f"{given} without {lacking}: a profile is read and another one written; give both or neither")
    plan = read_plan(args.plan)
    measured = read_measured(args.measured, plan)
    return _moved(args, plan, measured) if args.profile else _errors_alone(plan, measured)


def _errors_alone(plan: "Plan", measured: "Timeline") -> Answer:
    from planner.measured.differences import bare_timeline, differences, error_percent

    before = differences(bare_timeline(plan), measured)
    percent = error_percent(plan, measured)
    body = {
        "output": None,
        "step_time_ns": measured.step_time_ns,
        "before": _side(percent, before),
        "after": None,
        "left_out": [NO_PROFILE],
    }
    head = f"measured {duration(measured.step_time_ns)}, predicted {percent:+.1f} %"
    return Answer(body, [head, _table(before, ()), f"left out: {NO_PROFILE}"])


def _moved(args: argparse.Namespace, plan: "Plan", measured: "Timeline") -> Answer:
    from costmodel.model.profile import read_profile, write_profile
    from planner.measured.calibration import MovedProfile
    from planner.measured.differences import differences, error_percent

    found = MovedProfile(plan, measured, read_profile(args.profile))
    sides = [
        (error_percent(plan, measured), differences(bare, measured))
        for plan, bare in ((found.before, found.bare), (found.after, found.bare_after))
    ]
    write_profile(args.output, found.moved)
    body = {
        "output": args.output,
        "step_time_ns": measured.step_time_ns,
        "before": _side(*sides[0]),
        "after": _side(*sides[1]),
        "moved": found.moves(),
        "stays": found.stays(),
        "calibration": found.moved.origin.calibration,
        "left_out": [],
    }
    lines: list[str | Table] = [
        f"measured {duration(measured.step_time_ns)}, "
        f"predicted {sides[0][0]:+.1f} % before and {sides[1][0]:+.1f} % after",
        _table(sides[0][1], sides[1][1]),
    ]
    lines += [f"stays: {text}" for text in found.stays()]
    lines.append(f"written: {args.output}")
    return Answer(body, lines)


def _side(percent: float, rows: Sequence["ActionError"]) -> dict[str, object]:
    return {"error_percent": percent, "stages": [row.to_json() for row in rows]}


def _table(before: Sequence["ActionError"], after: Sequence["ActionError"]) -> Table:
    """Return a row for each stage and kind: what was measured and planned, and the error now."""
    columns = ("actions", "number", "measured", "planned", "error", *(("planned now", "error now") if after else ()))
    rows = []
    for i, row in enumerate(before):
        cells = [f"{row.kind} of stage {row.stage}", str(row.actions), duration(row.measured_ns), *_cells(row)]
        rows.append((*cells, *(_cells(after[i]) if after else ())))
    return Table(columns, rows, "one action, medians, host time of messages apart")


def _cells(row: "ActionError") -> tuple[str, str]:
    error = f"{100 * (row.planned_ns / row.measured_ns - 1):+.1f} %" if row.measured_ns else "-"
    return duration(row.planned_ns), error
