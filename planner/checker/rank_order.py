"""The rank order that a plan says: whether the ranks of its stages follow it, digit by digit.

Written apart from `planner.plan.rank_order` on purpose. A plan that says none is not held to any.
"""

from collections.abc import Iterator

from planner.checker.problem import PlanProblem
from planner.plan import Plan


def rank_order_problems(plan: Plan) -> Iterator[PlanProblem]:
    """Yield the first rank of a stage that is not the one which the plan's order has at its place."""
    configs = [stage.config for stage in plan.stages]
    degrees = {(each.data, each.tensor, each.context, each.expert * each.expert_tensor) for each in configs}
    if plan.rank_order and len(degrees) > 1:
        yield PlanProblem("rank", "rank_order", "stages have unlike degrees, and ranks that follow no one order")
        return
    places = list(dict.fromkeys(stage.ranks for stage in plan.stages))
    data, tensor, context, experts_on = min(degrees)
    spread = max(1, experts_on // (tensor * context)) if experts_on % (tensor * context) == 0 else 1
    sizes = {"tensor": tensor, "context": context, "expert": spread, "data": data // spread, "pipeline": len(places)}
    for stage in plan.stages if plan.rank_order else ():
        for position, rank in enumerate(stage.ranks):
            digits, left = {}, rank
            for name in plan.rank_order:
                left, digits[name] = divmod(left, sizes[name])
            copy = (digits["data"] * spread + digits["expert"]) * context + digits["context"]
            found = left, digits["pipeline"], copy * tensor + digits["tensor"]
            if found != (0, places.index(stage.ranks), position):
                yield PlanProblem(
                    "rank",
                    f"stage {plan.stages.index(stage)}",
                    f"rank {rank} is number {position} of its ranks, and in the order {', '.join(plan.rank_order)} "
                    "another one is",
                )
                return
