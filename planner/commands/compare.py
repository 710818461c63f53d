"""Put plans side by side: one row a plan, a page and pictures, and what a run of them measured.

    penstock compare plan.json chain.json --html compare.html
    penstock compare plan.json --measured timeline.json --chart compare.png
    penstock compare plan.json chain.json --profile profile.json --calibration calibration.toml

The page and the picture draw every plan's timeline and memory on one time axis, and step time against memory; the page
can be touched and zoomed, and needs nothing besides itself. What differs in model, batch or assumptions from the first
plan is marked. --measured takes the timeline that torchrun -m executor PLAN --timeline F wrote, one for each of the
first plans: it is drawn below the predicted one, and the difference of the step times is divided into compute,
communication, waiting and Python, on the rank whose own work explains most of it. --calibration prices all plans by
the constants of penstock fit, with the profile that they were made from: plans from before and after a fit compare.
"""

import argparse
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from costmodel.errors import DoesNotMatch, UsageError
from planner.commands.answer import Answer, say_size

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.report.comparison.comparison import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--measured", action="append", default=[], metavar="TIMELINE",
                        help="measured timeline of the first plan; again for the second, and so on")  # fmt: skip
    parser.add_argument("--calibration", metavar="FILE", help="price all plans by these constants (with --profile)")
    parser.add_argument("--profile", action="append", default=[], metavar="FILE",
                        help="what all plans were made from; again for each type of device")  # fmt: skip
    parser.add_argument("--chart", metavar="F", help="picture of all timelines (.png, .svg or .pdf)")
    parser.add_argument("--html", metavar="F", help="one page to look at in a browser, complete in itself")
    parser.add_argument("--trace", metavar="F", help="all timelines as one Perfetto trace (.json or .json.gz)")


def run(args: argparse.Namespace) -> Answer:
    """Compare the plans."""
    from planner.plan import read_plan
    from planner.report.comparison.compared import ComparedPlan
    from planner.report.comparison.comparison import Comparison

    if len(args.measured) > len(args.plans):
        raise UsageError(
            f"{len(args.measured)} measured timelines for {len(args.plans)} plans; give at most one a plan"
        )
    if bool(args.calibration) != bool(args.profile):
        raise UsageError("--calibration FILE and --profile FILE go together: constants price a profile anew")
    plans = [read_plan(path) for path in args.plans]
    say_size(*plans)
    if args.calibration:
        plans = _calibrated(plans, args)
    found = zip_longest(args.plans, plans, args.measured)
    compared = Comparison(tuple(ComparedPlan(path, plan, timeline) for path, plan, timeline in found))
    rows = compared.rows()
    written = {name: getattr(args, name) for name in ("chart", "html", "trace") if getattr(args, name)}
    _write(written, compared)
    return Answer({"rows": rows, **_diff(plans), **written}, compared.text())


def _diff(plans: "Sequence[Plan]") -> dict[str, object]:
    """Return what the second of two plans of one model does otherwise than the first; of other plans nothing."""
    from planner.report.comparison.difference import PlanDifference

    if len(plans) != 2:
        return {}
    try:
        return {"diff": PlanDifference(*plans).to_json()}
    except DoesNotMatch:
        return {}


def _calibrated(plans: "Sequence[Plan]", args: argparse.Namespace) -> "list[Plan]":
    from costmodel.calibration import read_calibration
    from costmodel.model.profile import read_profile
    from planner.candidate.reprice import calibrated

    profiles, calibration = list(map(read_profile, args.profile)), read_calibration(args.calibration)
    return [calibrated(plan, profiles, calibration) for plan in plans]


def _write(paths: dict[str, str], compared: "Comparison") -> None:
    """Write the chart, the page and the trace that were asked for."""
    if "trace" in paths:
        from simulator.trace import write_traces

        write_traces(paths["trace"], compared.timelines())
    if "chart" in paths:
        from simulator.charts import save_figure

        save_figure(compared.figure(), paths["chart"])
    if "html" in paths:
        from planner.report.html.page import write_page

        write_page(paths["html"], compared)
