"""How long the plan says that each compute action of a rank takes, which is how long an emulated run holds it.

Leaves out messages: these take the time that they take.
"""

from collections.abc import Callable, Mapping, Sequence

from costmodel.stages.costs import at
from planner.plan import Plan
from simulator.actions import Action, Kind

_PARTS: Mapping[Kind, tuple[str, ...]] = {
    Kind.F: ("forward_ns",),
    Kind.R: ("recompute_ns",),
    Kind.I: ("recompute_ns", "backward_input_ns"),
    Kind.W: ("backward_weight_ns",),
    Kind.B: ("recompute_ns", "backward_input_ns", "backward_weight_ns"),
}
"""Fields of a stage's cost that each kind takes; sends and receives take none."""


def planned_times(plan: Plan, order: Sequence[Action]) -> Callable[[Action], int]:
    """Return what gives the planned ns of an action of this order; an R of its own is no part of its backward."""
    recomputed = frozenset((action.stage, action.microbatch) for action in order if action.kind is Kind.R)

    def planned_ns(action: Action) -> int:
        stage = plan.stages[action.stage]
        if action.kind is Kind.OPT:
            return stage.cost.optimizer_ns
        if action.kind is Kind.REDUCE:
            return stage.cost.reduce_ns
        parts = _PARTS.get(action.kind, ())
        if action.kind is not Kind.R and (action.stage, action.microbatch) in recomputed:
            parts = tuple(name for name in parts if name != "recompute_ns")
        index = action.microbatch // stage.microbatch_multiple
        return sum(at(getattr(stage.cost, name), index) for name in parts)

    return planned_ns
