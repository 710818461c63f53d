"""Plans and the strategies of their ladders as points of time and memory, by step or, of unlike batches, by sample.

Strategies that take more than `SLOWEST` times as long as the quickest plan are left out, and counted. Leaves out the
pictures.
"""

from collections.abc import Sequence

from planner.report.comparison.compared import ComparedPlan
from simulator.charts.measures import FAR
from simulator.charts.pareto import ParetoPoint

SLOWEST = 2


def pareto_points(compared: Sequence[ComparedPlan]) -> tuple[list[ParetoPoint], int]:
    """Return the points, strategies first, and how many strategies are left out."""
    plans, rungs, far = [], [], 0
    quickest = min(each.shared_ns(each.plan.prediction.step_time_ns) for each in compared)
    for number, each in enumerate(compared, 1):
        peak, step_ns = max(each.plan.prediction.peak_memory_bytes), each.plan.prediction.step_time_ns
        plans.append(ParetoPoint(each.shared_ns(step_ns), peak, each.short, number))
        for rung in each.plan.rungs:
            if (rung.step_time_ns, rung.peak_memory_bytes) == (step_ns, peak):
                continue
            time_ns = each.shared_ns(rung.step_time_ns)
            if time_ns > SLOWEST * quickest:
                far += 1
                continue
            text = f"{rung.strategy}, from the ladder of {each.short}\n{rung.why}"
            rungs.append(ParetoPoint(time_ns, rung.peak_memory_bytes, text, 0, not rung.over_memory_bytes))
    return [*rungs, *plans], far


def lowest_limit(compared: Sequence[ComparedPlan]) -> int:
    """Return the lowest limit of memory where it is near enough to be drawn, else 0."""
    limit = min((each.limit_bytes for each in compared if each.limit_bytes), default=0)
    peak = max(max(each.plan.prediction.peak_memory_bytes) for each in compared)
    return limit if limit <= FAR * peak else 0
