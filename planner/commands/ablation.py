"""Say what each means of a plan gains: branches, larger micro-batches, split backward, stages that share devices.

    penstock ablation profile.json --devices 8 --batch 256
    penstock ablation profile.json --devices 8 --batch 256 --data 1 --chart gains.png

Plans five times, each with one freedom more: stages in a line; as a graph at the same micro-batch size; with any
micro-batch size; with split backwards; with several stages a device. All else is open in every row, or fixed by
the flags of `plan`. Ctrl-C keeps the rows that were planned to their end.
"""

import argparse
import time

from planner.commands.answer import INTERRUPTED, Answer, say
from planner.commands.question import add_question, problem_of
from planner.report.summary.text import Table, percent

KEEPS_ITS_BEST = True
"""Signals wait until there is a row."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_question(parser, "of each row (default 10)")
    parser.add_argument("--chart", metavar="F", help="picture of the steps and gains (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> Answer:
    """Plan row by row."""
    start = time.perf_counter()
    from planner.answer.decide import plan
    from planner.interrupts import deferred_signals
    from planner.report.whatif.ablation import ablation

    if args.chart:
        from simulator.charts.style import check_suffix

        check_suffix(args.chart)
    with deferred_signals():
        found = ablation(problem_of(args, start), plan, say)
    if args.chart:
        from simulator.charts import save_figure

        save_figure(found.figure(), args.chart)
    whole = found.rows[0].step_time_ns / found.rows[-1].step_time_ns
    text: list[str | Table] = [found.table()]
    text.append(f"together {percent(whole - 1)} faster, at equal memory limit and time for each search")
    if found.interrupted:
        text.append("interrupted: rows that were not planned to their end are left out")
    return Answer(found.to_json(), text, INTERRUPTED if found.interrupted else 0)
