# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One model, cut two ways
#
# The demo's model, GraphPipe's multi-modal transformer in its small size, has four branches that meet at the end. A
# pipeline whose stages form a chain sends every micro-batch through the branches one after the other; a pipeline
# whose stages form a graph works on the branches side by side. Both plans here were written by `make demo` and are
# read from their JSON.

# %%
# %matplotlib inline
import json
from pathlib import Path

from planner.plan import read_plan
from planner.plan.replay import depth, plan_schedule, replay
from simulator.bubbles import bubble_causes
from simulator.charts import bubbles, gantt, gantt_height, memory, new_figure, stage_graph_height, stage_graph_picture

folder = next(path for path in (Path("notebooks/plans"), Path("../../notebooks/plans")) if path.exists())
plans = {name: read_plan(folder / f"{name}.json") for name in ("graph", "chain")}

# %% [markdown]
# ## The stage graphs
#
# An arrow is what one stage sends another. In the chain, stages in the middle relay what only the end needs.

# %%
figure, axes = new_figure([stage_graph_height(plan_schedule(plan).graph) for plan in plans.values()])
for ax, (name, plan) in zip(axes, plans.items(), strict=True):
    labels = {(e.source, e.target): f"{e.size_bytes / 2**10:.0f} KiB" for e in plan.edges}
    stage_graph_picture(ax, plan_schedule(plan).graph, edge_labels=labels, title=f"{name}, depth {depth(plan)}")
figure

# %% [markdown]
# ## The timelines
#
# Every rank's forwards and backwards, on one time axis. The shorter the longest path, the shorter the warm-up and the
# fewer micro-batches are in flight.

# %%
timelines = {name: replay(plan) for name, plan in plans.items()}
end = max(timeline.step_time_ns for timeline in timelines.values())
figure, axes = new_figure([gantt_height(4)] * 2)
for ax, (name, timeline) in zip(axes, timelines.items(), strict=True):
    gantt(ax, timeline, title=name, end_ns=end)
figure

# %% [markdown]
# ## Why ranks wait, and what they hold

# %%
figure, axes = new_figure([2.0, 2.4, 2.4])
causes = {
    name: bubble_causes(plan_schedule(plan), plan.costs(), timelines[name]).totals for name, plan in plans.items()
}
bubbles(axes[0], causes)
for ax, (name, timeline) in zip(axes[1:], timelines.items(), strict=True):
    memory(ax, timeline, title=f"memory, {name}")
figure

# %% [markdown]
# ## In numbers
#
# The gap is against a lower bound that holds for every plan within the stated scope.

# %%
for name, plan in plans.items():
    search = plan.search
    print(
        f"{name}: {search.objective / 1e6:.2f} ms, at least {search.lower_bound_ns / 1e6:.2f} ms, "
        f"gap {100 * search.gap:.1f} %\n  {search.scope}"
    )
print(json.dumps({name: max(plan.prediction.peak_memory_bytes) for name, plan in plans.items()}))
gain = plans["chain"].search.objective / plans["graph"].search.objective
print(f"the graph is {100 * (gain - 1):.1f} % faster than the chain")
assert plans["graph"].search.objective <= plans["chain"].search.objective
