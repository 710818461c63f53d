"""Check a plan: partition, orders, sends and receives, memory and times, derived anew.

    penstock validate plan.json

Shares no code with the search or the simulator. Exit code 0 when nothing is wrong, 7 with the list of
problems otherwise. With --model the plan is held against the model as captured here, by the very check that the
executor makes before it runs; where the model can only be planned with, the answer says why. Without --model the
answer says what was not checked.
"""

import argparse
from typing import TYPE_CHECKING

from planner.commands.answer import Answer

if TYPE_CHECKING:
    from costmodel.machines.cluster import Cluster
    from costmodel.model.graph import OperatorGraph
    from planner.checker.problem import PlanProblem
    from planner.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file, or a book, each page of which is checked")
    parser.add_argument("--model", metavar="M", help="module:function or zoo:NAME to hold the plan against")
    parser.add_argument(
        "--cluster", metavar="FILE", help="cluster file that the plan must fit (of a book: its first hosts)"
    )


def run(args: argparse.Namespace) -> Answer:
    """Check the plan and answer with its problems."""
    from dataclasses import replace

    from costmodel.errors import ReadableButWrong
    from costmodel.machines.changed_cluster import with_hosts
    from costmodel.machines.cluster import read_cluster
    from planner.checker import UNSEEN
    from planner.plan.book import Book, read_plan_or_book

    found = read_plan_or_book(args.plan)
    cluster = read_cluster(args.cluster) if args.cluster else None
    if isinstance(found, Book):
        plans = [(page.plan, with_hosts(cluster, page.hosts) if cluster else None) for page in found.pages]
        places = [f"pages/{i}/plan/" for i in range(len(plans))]
    else:
        plans, places = [(found, cluster)], [""]
    problems, plan_only, graph = [], "", None
    for (plan, own), place in zip(plans, places, strict=True):
        graph, plan_only = _captured(args.model, args.plan, plan) if args.model else (None, "")
        problems += [
            replace(each, place=place + each.place) for each in _problems(plan, graph, own, args.model, plan_only)
        ]
    body = {
        "ok": not problems,
        "problems": [{"kind": p.kind, "place": p.place, "message": p.message} for p in problems],
        "not_checked": [] if graph else list(UNSEEN),
        **({"plan_only": plan_only} if plan_only else {}),
    }
    if problems:
        lines = [f"{args.plan}: {len(problems)} problems", *(f"  {p.place}: {p.message}" for p in problems)]
        return Answer(body, lines, ReadableButWrong.exit_code)
    stages, actions = (
        sum(len(plan.stages) for plan, _ in plans),
        sum(len(each) for plan, _ in plans for each in plan.orders),
    )
    pages = f"{len(plans)} pages, " if isinstance(found, Book) else ""
    lines = [f"{args.plan}: {pages}{stages} stages, {actions} actions, nothing wrong"]
    lines += [f"not checked without --model: {'; '.join(UNSEEN)}"] if graph is None else []
    return Answer(body, [*lines, *([f"plan only, no executor runs it: {plan_only}"] if plan_only else [])])


def _problems(
    plan: "Plan", graph: "OperatorGraph | None", cluster: "Cluster | None", spec: str, plan_only: str
) -> "list[PlanProblem]":
    """Return what is wrong with a plan, also that it names the executor for a model that can only be planned with."""
    from planner.checker import check_plan
    from planner.checker.problem import PlanProblem

    problems = list(check_plan(plan, graph, cluster))
    if plan_only and "executor" in plan.runs_on:
        text = f"lists the executor, which cannot run {spec}: {plan_only}"
        problems.append(PlanProblem("model", "runs_on", text))
    return problems


def _captured(spec: str, path: str, plan: "Plan") -> tuple["OperatorGraph", str]:
    """Return the model's graph, and why it can only be planned with ("" where it can be run)."""
    from costmodel.capture.capture import capture, operator_graph
    from costmodel.capture.models import load_model
    from costmodel.errors import DoesNotMatch

    captured = capture(load_model(spec, plan.batch.microbatch_size), plan_only=True)
    graph = operator_graph(captured, (plan.batch.microbatch_size,))
    if graph.fingerprint != plan.fingerprint:
        raise DoesNotMatch(
            f"{path} was made for the model {plan.model_name!r} (fingerprint {plan.fingerprint[:12]}), and "
            f"{spec} has {graph.fingerprint[:12]}; give the model that was profiled, or plan again"
        )
    return graph, captured.program.plan_only
