"""What the cut model minimises: a bound that proves, an estimate that finds.

`bound` is valid for every order of F and whole B with one stage a rank. A stage works between its head and
its tail: head + n t + tail (`docs/bounds.md`). Besides, its first B comes after its first F has gone
down to the stages that return gradients to it and back (`down`), and after its last F the same way is
left: head + F + down + B + (n - 1) max(F, B) + tail. A forward that is run again (R) counts in t alone, for its
stage may run it while it waits for the gradient. The least value over all cuts bounds every simulated
step time. Front-heavy cuts look better there than they simulate with few micro-batches in flight, so
`estimate` is minimised too: (m - 1) t plus the longest path there and back through a stage.
"""

from ortools.sat.python import cp_model

from planner.search.solvers.cpsat.variables import Variables
from planner.search.solvers.relaxation.data import CutData


def bound(model: cp_model.CpModel, data: CutData, at: Variables) -> cp_model.IntVar:
    """Return the variable that is at least the bound of every stage."""
    step = model.new_int_var(data.least, at.horizon, "bound")
    down = _way_down_and_back(model, data, at)
    num = data.num_microbatches
    for s in range(data.num_stages):
        forward, backward = at.forward[s], at.backward[s]
        again = cp_model.LinearExpr.sum([ns * at.inside[v][s] for v, ns in enumerate(data.again) if ns])
        model.add(step >= at.head[s] + num * (forward + backward + again) + at.tail[s])
        once = at.head[s] + forward + down[s] + backward + at.tail[s]
        model.add(step >= once + (num - 1) * backward)
        model.add(step >= once + (num - 1) * forward)
    return step


def _way_down_and_back(model: cp_model.CpModel, data: CutData, at: Variables) -> list[cp_model.IntVar]:
    """Return for each stage the longest path from the end of its F to the start of the B of the same micro-batch."""
    down = [model.new_int_var(0, at.horizon, f"down_{s}") for s in range(data.num_stages)]
    for i, j in at.pairs:
        way = down[j] + at.forward[j] + at.backward[j] + 2 * at.transfer[i, j]
        model.add(down[i] >= way).only_enforce_if(at.returns[i, j])
    return down


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
