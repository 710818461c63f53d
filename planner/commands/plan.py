"""Say what to do with N devices: which strategies, which stages, which order, and how far from the best that may be.

    penstock plan profile.json --devices 4 --batch 64 -o plan.json

Whatever no flag fixes is searched. The plan is simulated, checked by an independent checker and written as one JSON
file, with a ladder of the best plan of every strategy. Ctrl-C or SIGTERM keeps the best plan found so far.
"""

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodel.errors import UsageError
from planner.commands.answer import INTERRUPTED, Answer, say
from planner.commands.flags import amount, many
from planner.commands.question import add_question, problem_of

if TYPE_CHECKING:
    from planner.question.lengths import Lengths
    from planner.report.summary.run_cost import RunTarget

FIRST_PLAN_NS, LATE_S = 1_000_000, 2.0
"""An operator's share of reading a profile and making a first plan, 10,000 on 8 to 1,024 devices; promised lateness."""
WRITES = "penstock-plan"
KEEPS_ITS_BEST = True
"""Signals wait from the command's start: a plan is written all the same."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_question(parser, "of the whole command (default 10)")
    add_run_target(parser)
    parser.add_argument("-o", "--output", required=True, metavar="plan.json")
    parser.add_argument(
        "--from",
        dest="old_plan",
        metavar="PLAN|JOB",
        help="start from this plan of the same model and say what moved (profile, cluster or flags have changed); of a "
        "job that import job wrote: what ours gains over it (its precision, optimizer and habits hold without a flag)",
    )
    parser.add_argument(
        "--lengths",
        metavar="FILE",
        help="histogram of samples' tokens (CSV of tokens,count): say what the step takes with such samples, and what "
        "packing and sorting gain",
    )
    parser.add_argument("--all", action="store_true", help="show every strategy of the ladder, and who runs it")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="prove that no plan is better, for small problems (up to 100 pieces and 6 stages; give --time-limit 120)",
    )


def add_run_target(parser: argparse.ArgumentParser) -> None:
    """Declare what the run is to come to, and what devices cost."""
    run = parser.add_argument_group("money and time", "of the whole run; restarts and evaluation are left out")
    run.add_argument("--tokens", type=many, default=0, metavar="T", help="that the run is to see, as in 15T or 300B")
    run.add_argument("--deadline", type=amount, default=0.0, metavar="DAYS", help="to say whether the run keeps it")
    run.add_argument("--budget", type=amount, default=0.0, metavar="MONEY", help="to say whether the run keeps it")
    run.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="FILE|DEVICE=X",
        help="of a device and hour, by catalogue id or name of the cluster's device, or a file of prices (may be "
        "given several times; docs/planning.md)",
    )


def run_target(args: argparse.Namespace) -> "RunTarget":
    """Return what the run is to come to.

    Raises
    ------
    UsageError
        For a deadline or budget of no tokens.
    """
    from planner.report.summary.run_cost import RunTarget

    asked = [f"--{name}" for name in ("deadline", "budget") if getattr(args, name)]
    if asked and not args.tokens:
        raise UsageError(f"{' and '.join(asked)}: of a run of how many tokens? give --tokens, as in --tokens 300B")
    if args.budget and not (args.price or args.cluster):
        raise UsageError(
            "--budget: at what price? give --price, as in --price h100-sxm-80=2.5, or a --cluster with one"
        )
    return RunTarget(args.tokens, args.deadline, args.budget)


def run(args: argparse.Namespace) -> Answer:
    """Plan, check, write; Ctrl-C and SIGTERM wait from here on until there is a plan to keep."""
    start = time.perf_counter()  # before the libraries are loaded: the limit is of the whole command
    from planner.interrupts import deferred_signals

    with deferred_signals():
        return _run(args, start)


def _run(args: argparse.Namespace, start: float) -> Answer:
    from planner.front import make_plan
    from planner.plan import write_plan
    from planner.plan.limited_by import LimitedBy
    from planner.report.summary.alarms import is_impossible
    from planner.report.summary.plan_lines import COLUMNS

    target = run_target(args)
    lengths = _lengths(args.lengths)
    problem = problem_of(args, start)
    if problem.effort.deterministic_limit is None:
        _say_least(len(problem.profile.graph.operators), problem.effort.time_limit_s)
    answer = make_plan(problem, progress=say)
    write_plan(args.output, answer.plan)
    answer = replace(answer, path=args.output, seconds=time.perf_counter() - start, target=target)
    for alarm in answer.alarms:
        say(f"{alarm.kind}: {alarm.text}")
    found = answer.plan
    ended = found.search.limited_by
    wrong = ended == LimitedBy.BROKEN_BOUND or is_impossible(found) or bool(found.extra.get("bugs"))
    code = INTERRUPTED if ended == LimitedBy.INTERRUPTED else int(wrong)
    body, text = answer.to_json(), answer.text(whole=args.all)
    if lengths:
        from planner.report.summary.batch_lengths import BatchLengths

        drawn = BatchLengths(problem, found, lengths, args.seed)
        body, text = {**body, "lengths": drawn.to_json()}, [*text, *drawn.text()]
    return Answer(body, text, code, COLUMNS)


def _lengths(path: str | None) -> "Lengths | None":
    """Read a histogram of lengths, before anything takes time."""
    if path is None:
        return None
    from planner.question.lengths import read_lengths

    return read_lengths(path)


def _say_least(num_operators: int, limit_s: float) -> None:
    """Say beforehand what a first plan takes, where that is far above the time limit: it is made all the same."""
    least_s = num_operators * FIRST_PLAN_NS / 1e9
    if least_s > limit_s + LATE_S:
        text = f"a first plan of {num_operators} operators takes about {least_s:.0f} s"
        say(f"{text}, whatever the limit of {limit_s:g} s")
