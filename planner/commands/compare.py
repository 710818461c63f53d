"""Put plans side by side: one row a plan, a page and pictures, and what a run of them measured.

    penstock compare plan.json chain.json --html compare.html
    penstock compare plan.json --measured timeline.json --chart compare.png

The page and the picture draw every plan's timeline and memory on one time axis, and step time against memory; the page
can be touched and zoomed, and needs nothing besides itself. What differs in model, batch or assumptions from the first
plan is marked. --measured takes the
timeline that torchrun -m executor PLAN --timeline F wrote, one for each of the first plans: it is drawn below the
predicted one, and the difference of the step times is divided into compute, communication, waiting and Python, on the
rank whose own work explains most of it.
"""

import argparse
from itertools import zip_longest
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.commands.answer import Answer

if TYPE_CHECKING:
    from planner.report.comparison import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="plan files")
    parser.add_argument("--measured", action="append", default=[], metavar="TIMELINE",
                        help="measured timeline of the first plan; again for the second, and so on")  # fmt: skip
    parser.add_argument("--chart", metavar="F", help="picture of all timelines (.png, .svg or .pdf)")
    parser.add_argument("--html", metavar="F", help="one page to look at in a browser, complete in itself")
    parser.add_argument("--trace", metavar="F", help="all timelines as one Perfetto trace (.json or .json.gz)")


def run(args: argparse.Namespace) -> Answer:
    """Compare the plans."""
    from planner.plan import read_plan
    from planner.report.compared import ComparedPlan
    from planner.report.comparison import Comparison

    if len(args.measured) > len(args.plans):
        raise UsageError(
            f"{len(args.measured)} measured timelines for {len(args.plans)} plans; give at most one a plan"
        )
    pairs = zip_longest(args.plans, args.measured)
    compared = Comparison(tuple(ComparedPlan(path, read_plan(path), timeline) for path, timeline in pairs))
    rows = compared.rows()
    written = {name: getattr(args, name) for name in ("chart", "html", "trace") if getattr(args, name)}
    _write(written, compared)
    return Answer({"rows": rows, **written}, compared.text())


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
