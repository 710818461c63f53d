"""Say what two plans of one model do differently: what moved, times and memory, what they assume, their machines.

    penstock diff old.json plan.json

The plan files are enough. Exits 0 whether they differ or not; `same` of --json says which. For plans of several models,
tables and pictures there is `penstock compare`.
"""

import argparse

from planner.commands.answer import Answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("old", metavar="PLAN", help="first plan file")
    parser.add_argument("new", metavar="PLAN", help="second plan file")


def run(args: argparse.Namespace) -> Answer:
    """Compare the two."""
    from planner.plan import read_plan
    from planner.report.comparison.difference import PlanDifference

    found = PlanDifference(read_plan(args.old), read_plan(args.new))
    return Answer({"plans": [args.old, args.new], **found.to_json()}, list(found.text()))
