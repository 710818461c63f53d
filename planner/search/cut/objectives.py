"""What the cut model minimises: a bound that proves, an estimate that finds.

`bound` is CONTRACT's lower bound of the fused family, head + n t + tail of the worst stage: its least
value over all cuts bounds every simulated step time. Front-heavy cuts look better there than they
simulate, so `estimate` is minimised too: (m - 1) t plus the longest path there and back through a stage.
"""

from ortools.sat.python import cp_model

from planner.search.cut.data import CutData
from planner.search.cut.variables import Variables


def bound(model: cp_model.CpModel, data: CutData, at: Variables) -> cp_model.IntVar:
    """Return the variable that is at least head + n t + tail of every stage."""
    step = model.new_int_var(data.least, at.horizon, "bound")
    for s in range(data.num_stages):
        work = at.forward[s] + at.backward[s]
        model.add(step >= at.head[s] + data.num_microbatches * work + at.tail[s])
    return step


def estimate(model: cp_model.CpModel, data: CutData, at: Variables) -> cp_model.IntVar:
    """Return the variable that is at least (m - 1) t + the longest path there and back through every stage."""
    step = model.new_int_var(0, at.horizon, "estimate")
    stages = range(data.num_stages)
    before = [model.new_int_var(0, at.horizon, f"before_{s}") for s in stages]
    after = [model.new_int_var(0, at.horizon, f"after_{s}") for s in stages]
    for i, j in at.pairs:
        there_and_back = 2 * at.transfer[i, j]
        model.add(before[j] >= before[i] + at.forward[i] + at.backward[i] + there_and_back).only_enforce_if(
            at.feeds[i, j]
        )
        model.add(after[i] >= after[j] + at.forward[j] + at.backward[j] + there_and_back).only_enforce_if(
            at.feeds[i, j]
        )
    for s in stages:
        work = at.forward[s] + at.backward[s]
        model.add(step >= before[s] + data.num_microbatches * work + after[s])
    return step
