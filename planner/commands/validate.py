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
    from costmodel.model.graph import OperatorGraph
    from planner.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")
    parser.add_argument("--model", metavar="M", help="module:function or zoo:NAME to hold the plan against")
    parser.add_argument("--cluster", metavar="FILE", help="cluster file that the plan must fit")


def run(args: argparse.Namespace) -> Answer:
    """Check the plan and answer with its problems."""
    from costmodel.errors import ReadableButWrong
    from costmodel.machines.cluster import read_cluster
    from planner.checker import UNSEEN, check_plan
    from planner.checker.problem import PlanProblem
    from planner.plan import read_plan

    plan = read_plan(args.plan)
    cluster = read_cluster(args.cluster) if args.cluster else None
    graph, plan_only = _captured(args.model, args.plan, plan) if args.model else (None, "")
    problems = list(check_plan(plan, graph, cluster))
    if plan_only and "executor" in plan.runs_on:
        problems.append(
            PlanProblem("model", "runs_on", f"lists the executor, which cannot run {args.model}: {plan_only}")
        )
    body = {
        "ok": not problems,
        "problems": [{"kind": p.kind, "place": p.place, "message": p.message} for p in problems],
        "not_checked": [] if graph else list(UNSEEN),
        **({"plan_only": plan_only} if plan_only else {}),
    }
    if problems:
        lines = [f"{args.plan}: {len(problems)} problems", *(f"  {p.place}: {p.message}" for p in problems)]
        return Answer(body, lines, ReadableButWrong.exit_code)
    num_actions = sum(map(len, plan.orders))
    lines = [f"{args.plan}: {len(plan.stages)} stages, {num_actions} actions, nothing wrong"]
    lines += [f"not checked without --model: {'; '.join(UNSEEN)}"] if graph is None else []
    return Answer(body, [*lines, *([f"plan only, no executor runs it: {plan_only}"] if plan_only else [])])


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
