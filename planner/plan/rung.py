"""The name of a plan's strategy, the rungs of the ladder that it belongs to (`docs/planning.md`), and what it costs.

Leaves out recompute, schedules and the number of stages, which are no rungs of their own.
"""

from collections.abc import Iterable, Sequence

from costmodel.machines.cluster import Cluster
from costmodel.stages.config import StageConfig
from planner.plan.whole import Plan

SINGLE = "single"
RUNGS = (SINGLE, "data-parallel", "zero-1", "zero-2", "zero-3", "offload", "tensor", "context", "expert", "pipeline",
         "graph-pipeline")  # fmt: skip
"""All rungs, the simplest first."""
NS_PER_HOUR, MILLION = 3600 * 10**9, 10**6


def strategy_of(configs: Sequence[StageConfig], is_line: bool) -> str:
    """Name what stages so configured use, joined by ``+``; `is_line`: each feeds the next and no other."""
    used = set()
    for config in configs:
        if config.data > 1 or (config.zero and config.context > 1):
            used.add(f"zero-{config.zero}" if config.zero else "data-parallel")
        used |= {name for name in ("tensor", "context", "expert") if getattr(config, name) > 1}
        used |= {"offload"} if config.offload != "none" else set()
    if len(configs) > 1:
        used.add("pipeline" if is_line else "graph-pipeline")
    return "+".join(name for name in RUNGS if name in used) or SINGLE


def cost_per_million_samples(plan: Plan) -> float | None:
    """Return what the devices that a plan uses cost for a number of samples; None where one of them has no price."""
    return cost_of_million(plan.cluster, range(len(plan.orders)), plan.prediction.step_time_ns / plan.batch.global_size)


def cost_of_million(cluster: Cluster, devices: Iterable[int], sample_ns: float) -> float | None:
    """Return what these devices cost for a million samples, given a sample's time; None where one has no price."""
    prices = [cluster.device_of(device).price_per_hour for device in devices]
    return sum(prices) * sample_ns / NS_PER_HOUR * MILLION if all(prices) else None


def rung(plan: Plan) -> str:
    """Name the strategy of a plan."""
    ends = [(edge.source, edge.target) for edge in plan.edges]
    is_line = len(ends) == len(plan.stages) - 1 and all(target == source + 1 for source, target in ends)
    return strategy_of([stage.config for stage in plan.stages], is_line)
