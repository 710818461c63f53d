"""Check a plan: partition, orders, sends and receives, memory and times, derived anew.

Shares no code with the search or the simulator. Exit code 0 when nothing is wrong, 7 with the list of
problems otherwise. With --model the plan is held against the model as captured here.
"""

import argparse

from planner.commands.answer import Answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")
    parser.add_argument("--model", metavar="M", help="module:function or zoo:NAME to hold the plan against")
    parser.add_argument("--cluster", metavar="FILE", help="cluster file that the plan must fit")


def run(args: argparse.Namespace) -> Answer:
    """Check the plan and answer with its problems."""
    from costmodel.cluster import read_cluster
    from costmodel.errors import DoesNotMatch, ReadableButWrong
    from planner.checker import check_plan
    from planner.plan import read_plan

    plan = read_plan(args.plan)
    cluster = read_cluster(args.cluster) if args.cluster else None
    graph = None
    if args.model:
        from costmodel.profiling.capture import capture, operator_graph
        from costmodel.profiling.models import load_model

        model = load_model(args.model, plan.batch.microbatch_size)
        graph = operator_graph(capture(model), (plan.batch.microbatch_size,))
        if graph.fingerprint != plan.fingerprint:
            raise DoesNotMatch(
                f"{args.plan} was made for the model {plan.model_name!r} (fingerprint {plan.fingerprint[:12]}), and "
                f"{args.model} has {graph.fingerprint[:12]}; give the model that was profiled, or plan again"
            )
    problems = check_plan(plan, graph, cluster)
    body = {
        "ok": not problems,
        "problems": [{"kind": p.kind, "place": p.place, "message": p.message} for p in problems],
    }
    if problems:
        lines = [f"{args.plan}: {len(problems)} problems", *(f"  {p.place}: {p.message}" for p in problems)]
        return Answer(body, lines, ReadableButWrong.exit_code)
    num_actions = sum(map(len, plan.orders))
    return Answer(body, [f"{args.plan}: {len(plan.stages)} stages, {num_actions} actions, nothing wrong"])
