"""The name of a plan's strategy: the rung of the ladder on which it stands (CONTRACT, "The simplest rung wins").

Judged by the first stage's configuration where there is but one stage, else by the stage graph. Leaves out tensor,
context and expert parallelism, which have no rungs of their own.
"""

from planner.plan import Plan


def rung(plan: Plan) -> str:
    """Name the rung: what one stage's replicas share, stages in one line, or stages that form a graph."""
    config = plan.stages[0].config
    if len(plan.stages) == 1:
        if config.offload != "none":
            return "offload"
        return f"zero-{config.zero}" if config.zero else "data-parallel" if config.data > 1 else "single"
    line = all(edge.target == edge.source + 1 for edge in plan.edges)
    return "pipeline" if line and len(plan.edges) == len(plan.stages) - 1 else "graph-pipeline"
