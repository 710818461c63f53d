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
# # Schedules compared, and zero bubble on a stage graph
#
# A schedule is the order in which each rank issues its actions: forwards F and backwards B, or a backward in two
# halves, the input gradient I that the stage before waits for and the weight gradient W that nothing waits for. The
# same work in another order leaves other waits (the bubble) and keeps other activations. First one pipeline of equal
# stages under schedules of the literature, then a stage graph with two branches. Nothing is measured here: times are
# given, and the engine starts each action as early as its rank's order and its inputs allow.

# %%
# %matplotlib inline
from dataclasses import replace

import pandas as pd

from simulator.comparison import Case, standings

MS = 10**6
case = Case(ranks=4, microbatches=12, forward_ns=MS, backward_input_ns=MS, backward_weight_ns=MS)
names = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")
results = {each.name: each for each in standings(case, names)}

# %% [markdown]
# ## One pipeline of equal stages
#
# The bubble is the idle part of all ranks' time in the step, or in the span: from a rank's own first action to its
# last, as the Zero Bubble papers count it. The peak is in activation shares: one share is what a rank keeps of one
# micro-batch. The lower bound holds for every order of these actions on these ranks, fused, split, or any where ranks
# have several stages; of the last family less is known, so that a gap need not mean that there is a better order.


# %%
def row(each):
    step_ns = each.timeline.step_time_ns
    return {
        "schedule": each.name,
        "stages a rank": each.chunks,
        "step (ms)": step_ns / MS,
        "bubble": each.timeline.bubble_ratio,
        "bubble of the span": each.timeline.bubble_ratio_span,
        "peak (activation shares)": each.peak_activations,
        "messages": each.messages,
        "lower bound (ms)": each.lower_bound_ns / MS,
        "gap": step_ns / each.lower_bound_ns - 1,
    }


assert all(each.timeline.step_time_ns >= each.lower_bound_ns for each in results.values())
pd.DataFrame(map(row, results.values())).set_index("schedule").round(3)

# %% [markdown]
# For ranks that all cost the same, many schedules have a closed form, which the catalogue knows. What the engine
# simulates is exactly that. ZB-H2's is about the span, from a rank's own first action to its last.

# %%
from fractions import Fraction

from simulator.schedules import SCHEDULES, Uniform

times = (case.forward_ns, case.backward_input_ns, case.backward_weight_ns)
for name, each in results.items():
    kind, timeline = SCHEDULES[name], each.timeline
    pipeline = Uniform(case.ranks, each.chunks, case.microbatches, *map(Fraction, times))
    if kind.bubble and kind.bubble.holds(pipeline):
        took_ns = timeline.span_ns if kind.bubble_of == "span" else timeline.step_time_ns
        simulated_ns = took_ns - case.microbatches * sum(times)
        print(f"{name}: {kind.bubble.text} = {simulated_ns / MS:g} ms")
        assert simulated_ns == kind.bubble.value(pipeline, 0)

# %% [markdown]
# ## The timelines
#
# All on one time axis; numbers are micro-batches. Look at the white gaps of 1F1B: on the left ranks wait for the first
# forward, then for the first gradient (warm-up), on the right for the last gradients, with no forward left to fill in
# (cool-down). Interleaving makes both shorter: a rank's work comes in smaller parts, the darker bars being its later
# stage. ZB-H1 has 1F1B's warm-up, but gradients come back sooner, and weight gradients that were put off fill the
# cool-down. In ZB-V stages go down the ranks and up again: rank 0 has the first stage and the last, so its first
# gradient is near.

# %%
from simulator.charts import gantt, gantt_height, new_figure

shown = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v")
end_ns = max(results[name].timeline.step_time_ns for name in shown)
figure, axes = new_figure([gantt_height(case.ranks)] * len(shown))
for ax, name in zip(axes, shown, strict=True):
    gantt(ax, results[name].timeline, title=name, end_ns=end_ns)
figure

# %% [markdown]
# ## Bubble against memory
#
# A fixed order is one point. `zb-auto` and `zb-v` search for their orders within whatever memory they are given, so
# they are curves; down and to the left is better. ZB-H1 lies straight below 1F1B: as much memory, less waiting. It lies
# on the curve of `zb-auto`, as does ZB-H2, whose additional memory shortens the span alone.

# %%
from simulator.charts import CURVES_INCHES, schedule_curves

points = {name: [(each.peak_activations, each.timeline.bubble_ratio)] for name, each in results.items()}
del points["gpipe"], points["zb-v"]
limits = [half / 2 for half in range(4, 16)]
for name in ("zb-auto", "zb-v"):
    found = [standings(replace(case, memory_limit_shares=limit), [name])[0] for limit in limits]
    points[name] = sorted({(each.peak_activations, each.timeline.bubble_ratio) for each in found if each.fits})
figure, (ax,) = new_figure([CURVES_INCHES])
schedule_curves(ax, points, "peak memory (activation shares)", "bubble")
figure

# %% [markdown]
# ## A stage graph
#
# Two branches meet at a join: one stage a rank, stages that are not quite even, as those of real models, and messages
# that take some time. What 1F1B does on a chain, `graph-1f1b` does here: how many micro-batches a stage keeps in flight
# is the length of its longest path to a sink.

# %%
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.charts import stage_graph_height, stage_graph_picture
from simulator.schedule import stage_graph

MIB, MICROBATCHES = 2**20, 16
FORWARDS_MS = (1.0, 1.2, 0.9, 1.3, 1.1, 1.0)
EDGES = ((0, 1), (1, 2), (2, 5), (3, 4), (4, 5))


def stage_cost(forward_ms, weight_share, price):
    """A backward takes twice its forward, and the price of the split on top; W has a share of it."""
    backward_ns = round(2 * forward_ms * (1 + price) * MS)
    weight_ns = round(backward_ns * weight_share)
    kept = {"activation_bytes": 2 * MIB, "weight_activation_bytes": MIB}
    return StageCost(round(forward_ms * MS), backward_ns - weight_ns, weight_ns, **kept)


def branched(weight_share=0.5, price=0.0):
    stages = tuple(stage_cost(forward_ms, weight_share, price) for forward_ms in FORWARDS_MS)
    return Costs(stages, tuple(EdgeCost(source, target, MS // 10) for source, target in EDGES))


costs = branched()
graph = stage_graph(costs)
figure, (ax,) = new_figure([stage_graph_height(graph)])
captions = [f"F {forward_ms} ms" for forward_ms in FORWARDS_MS]
stage_graph_picture(ax, graph, captions=captions, title="the stage graph")
figure

# %% [markdown]
# ## Three schedules in the same memory
#
# `graph-1f1b` follows its rule. `graph-auto` keeps backwards whole and searches for the numbers in flight, then for the
# orders. `graph-zb` splits backwards and searches for the orders. Both searches get the memory that `graph-1f1b` takes
# on its fullest rank. The bound is that of the family, whole or split, within this memory: no order does better,
# whoever finds it, and a gap of zero is a proof.

# %%
from simulator.bounds import bound_of
from simulator.bubbles import bubble_causes
from simulator.engine import simulate
from simulator.schedules import build_schedule

rule = build_schedule("graph-1f1b", costs, MICROBATCHES)
limit = max(simulate(rule, costs).peak_memory_bytes)
schedules = {"graph-1f1b": rule}
for name in ("graph-auto", "graph-zb"):
    schedules[name] = build_schedule(name, costs, MICROBATCHES, memory_limit_bytes=limit)
timelines = {name: simulate(schedule, costs) for name, schedule in schedules.items()}
bounds = {name: bound_of(schedule, costs, limit) for name, schedule in schedules.items()}
steps = {name: timeline.step_time_ns for name, timeline in timelines.items()}

assert all(steps[name] >= bounds[name].ns for name in schedules)
assert all(max(timeline.peak_memory_bytes) <= limit for timeline in timelines.values())
assert steps["graph-auto"] <= steps["graph-1f1b"]  # the rule's order is one of its starts
print("\n".join(f"{name}: {bound.scope}" for name, bound in bounds.items()))
pd.DataFrame(
    {
        "step (ms)": {name: step_ns / MS for name, step_ns in steps.items()},
        "lower bound (ms)": {name: bound.ns / MS for name, bound in bounds.items()},
        "gap": {name: steps[name] / bound.ns - 1 for name, bound in bounds.items()},
        "bubble": {name: timeline.bubble_ratio for name, timeline in timelines.items()},
        "peak (MiB)": {name: max(timeline.peak_memory_bytes) / MIB for name, timeline in timelines.items()},
    }
).round(3)

# %% [markdown]
# The stages before the join, on the ranks 2 and 4, start with more forwards under `graph-auto` than under the rule:
# they run ahead, so that the join waits less for the branch that is late. In `graph-zb` hatched weight gradients stand
# where the other two are white. The bars add up why ranks wait, over all ranks: the search takes from the wait at the
# join, the split from warm-up and cool-down.

# %%
from simulator.charts import bubbles, bubbles_height

figure, axes = new_figure([*[gantt_height(graph.num_ranks)] * len(schedules), bubbles_height(len(schedules))])
for ax, (name, timeline) in zip(axes, timelines.items(), strict=False):
    gantt(ax, timeline, title=name, end_ns=max(steps.values()))
bubbles(axes[-1], {name: bubble_causes(schedules[name], costs, timelines[name]).totals for name in schedules})
figure

# %% [markdown]
# ## What the split buys, and at what price
#
# Two halves cost more than one backward: kernels are launched twice, inputs are read twice. On the left of the first
# picture the split is free; to the right both halves get dearer, in the same orders. Where the curve crosses that of
# `graph-auto`, the split stops paying. (`penstock profile` measures this price, and `penstock plan` splits only where
# it pays.) In the second picture a backward always takes as long, and W's part of it grows, the orders sought anew: the
# more of a backward nothing waits for, the more there is to fill waits with.

# %%
prices = [percent / 100 for percent in range(31)]
split_ns = [simulate(schedules["graph-zb"], branched(price=price)).step_time_ns for price in prices]
assert split_ns == sorted(split_ns)  # in one order, longer actions never make a shorter step
pays = [price for price, step_ns in zip(prices, split_ns, strict=True) if step_ns < steps["graph-auto"]]
print(f"the split pays up to a price of {max(pays):.0%} of the backward" if pays else "the split does not pay here")

# %%
shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
by_share_ns = []
for share in shares:
    parted = branched(weight_share=share)
    orders = build_schedule("graph-zb", parted, MICROBATCHES, memory_limit_bytes=limit)
    by_share_ns.append(simulate(orders, parted).step_time_ns)


def curves(parts, split_steps_ns):
    whole = {name: [(100 * part, steps[name] / MS) for part in parts] for name in ("graph-1f1b", "graph-auto")}
    return {**whole, "graph-zb": [(100 * part, ns / MS) for part, ns in zip(parts, split_steps_ns, strict=True)]}


figure, axes = new_figure([CURVES_INCHES] * 2)
schedule_curves(axes[0], curves(prices[::5], split_ns[::5]), "price of the split (% of the backward)", "step (ms)")
schedule_curves(axes[1], curves(shares, by_share_ns), "W's part of the backward (%)", "step (ms)")
figure
