"""torch's own pipelining: the orders as a ``compute_only`` CSV, and what each stage holds.

Row r of ``schedule.csv`` is place r of one replica; `_PipelineScheduleRuntime._load_csv` takes it, adds messages and
sums, and runs it. ``parts.json`` lists for each stage the modules that it holds whole, else its operators, as
``penstock import torch-csv --parts`` reads them. Leaves out how a model is cut into modules.
"""

import json

from planner.plan import Plan
from planner.plan.replica import replica_orders
from planner.question.pipeline_support import Job
from simulator.actions import Kind, parse_action
from simulator.schedule import Schedule, StageEdge, StageGraph
from simulator.torch_csv import torch_csv


def files(plan: Plan) -> dict[str, str]:
    """Return the files of a plan, by name."""
    return {"schedule.csv": schedule_csv(plan), "parts.json": json.dumps(named_parts(plan), indent=1) + "\n"}


def schedule_csv(plan: Plan) -> str:
    """Return the orders of one replica; a forward that runs again is no action of torch's and is left out."""
    job, orders = Job(plan), replica_orders(plan) or ()
    actions = [[parse_action(text) for text in row] for row in orders]
    edges = tuple(StageEdge(stage, stage + 1) for stage in range(job.num_stages - 1))
    rows = tuple(tuple(action for action in row if action.kind is not Kind.R) for row in actions)
    count = plan.batch.num_microbatches // plan.stages[0].config.data
    graph = StageGraph(tuple((place,) for place in job.place_of), edges)
    return torch_csv(Schedule(plan.schedule, graph, count, rows))


def named_parts(plan: Plan) -> list[list[str]]:
    """Return what each stage holds: modules where it shares none with another stage, else operators."""
    homes = [name for stage in plan.stages for name in stage.modules]
    shared = {name for name in homes if homes.count(name) > 1}
    return [
        list(stage.modules if stage.modules and not shared & set(stage.modules) else stage.operators)
        for stage in plan.stages
    ]
