"""Compare all schedules of the catalogue on one pipeline whose ranks are alike.

    penstock schedules --ranks 8 --microbatches 32
    penstock schedules --ranks 4 --microbatches 8 --p2p-ns 50 --memory-limit 3 --chart schedules.svg

Times are those of all of one rank's work for one micro-batch; memory is in activation shares (what all of one rank's
stages keep for one micro-batch is 1) and leaves out parameters. A schedule that the case does not admit says why. The
chart draws the bubble against micro-batches and against memory, the step against the delay of an edge, and the
timelines of all that fit.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel import limits
from costmodel.errors import UsageError
from planner.commands.answer import Answer
from planner.commands.flags import exact_amount, fraction, nanoseconds, positive, seed
from planner.report.summary.text import Table, duration, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.comparison import Case, ScheduleResult

MULTIPLES = (1, 2, 4, 8)
"""Micro-batches at which the chart asks for the bubble, in p."""
DELAYS = (0, 5, 10, 20, 40)
"""Delays at which the chart asks for the step, in per cent of a forward."""
LARGEST_GANTT = 16
"""Ranks up to which timelines are drawn."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("--ranks", type=positive, metavar="P", required=True)
    parser.add_argument("--microbatches", type=positive, metavar="M", required=True)
    parser.add_argument("--forward-ns", type=nanoseconds, metavar="T", default=1000, help="F of a rank's whole work")
    parser.add_argument("--backward-input-ns", type=nanoseconds, metavar="T", default=1000, help="I (default 1000)")
    parser.add_argument("--backward-weight-ns", type=nanoseconds, metavar="T", default=1000, help="W (default 1000)")
    parser.add_argument("--p2p-ns", type=nanoseconds, metavar="T", default=0, help="delay between ranks (default 0)")
    parser.add_argument("--pair-ns", type=nanoseconds, metavar="T",
                        help="an overlapped F and B, of schedules that have such pairs")  # fmt: skip
    parser.add_argument("--chunks", type=positive, metavar="V", help="stages a rank where a schedule leaves it open")
    parser.add_argument(
        "--slices", type=positive, metavar="S", default=2, help="sequence slices of seq1f1b (default 2)"
    )
    parser.add_argument("--memory-limit", type=exact_amount, metavar="X", help="activation shares that a rank may hold")
    parser.add_argument("--w-memory-fraction", type=fraction, metavar="f", default=0.5,
                        help="part kept from I until W (default 0.5)")  # fmt: skip
    parser.add_argument("--chart", metavar="F", help="draw the comparison (.png, .svg or .pdf)")
    parser.add_argument("--seed", type=seed, default=0)


def run(args: argparse.Namespace) -> Answer:
    """Compare the schedules."""
    from simulator.comparison import Case, standings
    from simulator.schedules import SCHEDULES

    case = Case(
        args.ranks, args.microbatches, args.forward_ns, args.backward_input_ns, args.backward_weight_ns, args.p2p_ns,
        None if args.memory_limit is None else float(args.memory_limit), args.w_memory_fraction, args.chunks,
        args.slices, args.pair_ns,
    )  # fmt: skip
    if not case.forward_ns + case.backward_input_ns + case.backward_weight_ns:
        raise UsageError("all times are 0; give --forward-ns, --backward-input-ns or --backward-weight-ns above 0")
    slices = sum(case.slices if kind.sliced else 1 for kind in SCHEDULES.values())
    actions = case.ranks * (case.chunks or 1) * case.microbatches * slices * 3
    limits.check("actions", actions, f"{len(SCHEDULES)} schedules of {case.ranks} ranks, each {case.microbatches} "
                 f"micro-batches, of seq1f1b in {case.slices} slices")  # fmt: skip
    found = standings(case)
    body: dict[str, object] = {"ranks": case.ranks, "microbatches": case.microbatches, "rows": list(map(_row, found))}
    if args.chart:
        from simulator.charts import save_figure

        save_figure(_figure(case, found), args.chart)
        body["chart"] = args.chart
    return Answer(body, [_table(found)])


def _row(one: "ScheduleResult") -> dict[str, object]:
    timeline = one.timeline
    row: dict[str, object] = {
        "schedule": one.name,
        "chunks": one.chunks,
        "parameter_copies": one.copies,
        "fits": one.fits,
        "why": one.why or None,
    }
    if timeline is None:
        return row
    return {
        **row,
        "step_time_ns": timeline.step_time_ns,
        "span_ns": timeline.span_ns,
        "bubble_ratio": timeline.bubble_ratio,
        "bubble_ratio_span": timeline.bubble_ratio_span,
        "peak_activations": one.peak_activations,
        "messages": one.messages,
        "communication_volume": one.volume,
        "lower_bound_ns": one.lower_bound_ns,
        "gap": timeline.step_time_ns / one.lower_bound_ns - 1 if one.lower_bound_ns else None,
    }


def _table(found: "Sequence[ScheduleResult]") -> Table:
    columns = ("schedule", "stages a rank", "step", "bubble", "bubble of span", "peak", "messages", "gap", "")
    rows = []
    for one in found:
        cells = [""] * 6
        if one.timeline:
            gap = one.timeline.step_time_ns / max(1, one.lower_bound_ns) - 1
            cells = [
                duration(one.timeline.step_time_ns), percent(one.timeline.bubble_ratio),
                percent(one.timeline.bubble_ratio_span), f"{one.peak_activations:g}", str(one.messages), percent(gap),
            ]  # fmt: skip
        note = one.why or ("two copies of the parameters" if one.copies > 1 else "")
        rows.append((one.name, str(one.chunks), *cells, note))
    return Table(columns, rows)


def _figure(case: "Case", found: "Sequence[ScheduleResult]") -> "Figure":
    from simulator.charts import CURVES_INCHES, gantt, gantt_height, new_figure, schedule_curves
    from simulator.comparison import standings

    names = [one.name for one in found if one.fits]
    drawn = [one for one in found if one.fits and case.ranks <= LARGEST_GANTT]
    figure, axes = new_figure([CURVES_INCHES] * 3 + [gantt_height(case.ranks)] * len(drawn))
    longer = [replace(case, microbatches=case.ranks * multiple) for multiple in MULTIPLES]
    slower = [replace(case, p2p_ns=case.forward_ns * part // 100) for part in DELAYS]
    bubbles = {name: [(other.microbatches, one.timeline.bubble_ratio) for other in longer
                      for one in standings(other, [name]) if one.fits and one.timeline] for name in names}  # fmt: skip
    steps = {name: [(other.p2p_ns / 1e6, one.timeline.step_time_ns / 1e6) for other in slower
                    for one in standings(other, [name]) if one.fits and one.timeline] for name in names}  # fmt: skip
    points = {
        one.name: [(one.peak_activations, one.timeline.bubble_ratio)] for one in found if one.fits and one.timeline
    }
    schedule_curves(axes[0], bubbles, "micro-batches", "bubble")
    schedule_curves(axes[1], points, "peak memory (activation shares)", "bubble")
    schedule_curves(axes[2], steps, "delay of an edge (ms)", "step (ms)")
    end_ns = max((one.timeline.step_time_ns for one in drawn if one.timeline), default=1)
    for ax, one in zip(axes[3:], drawn, strict=True):
        if one.timeline:
            gantt(ax, one.timeline, title=one.name, end_ns=end_ns)
    return figure
