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
# # From a model of your own to a decision
#
# A small model with two branches is profiled on this machine's CPU and planned for four such devices. The plan without
# any choice fixed comes with its ladder, the best plan of every strategy; fixing choices asks what else could be done,
# and a comparison puts the answers side by side.

# %%
# %matplotlib inline
import sys
from pathlib import Path

folder = Path("out/own_model") if Path("pyproject.toml").exists() else Path("../own_model")
folder.mkdir(parents=True, exist_ok=True)
(folder / "two_towers.py").write_text("""
import torch
from torch import nn


def tower(width):
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU())))


class TwoTowers(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.image, self.text, self.head = tower(width), tower(width), nn.Linear(2 * width, 10)

    def forward(self, pixels, words):
        return self.head(torch.cat([self.image(pixels), self.text(words)], -1))


def build(batch=8):
    inputs = torch.randn(batch, 64, 192), torch.randn(batch, 64, 192)
    return TwoTowers(), inputs, lambda output: output.square().mean()
""")
sys.path.insert(0, str(folder))

# %% [markdown]
# ## What each operator costs
#
# `penstock profile two_towers:build` does the same on the command line, and measures links too; here messages between
# devices are taken as free, which every plan says among its assumptions.

# %%
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile

measured = profile(Options("two_towers:build", microbatch_sizes=(2, 8), repeats=3, links=False))
print(f"{len(measured.graph.operators)} operators, {measured.whole.step_ns[-1] / 1e6:.1f} ms for 8 samples")

# %% [markdown]
# ## What to do with four devices
#
# Nothing is fixed, so everything is searched. The answer is what the command prints.

# %%
from planner import Effort, Problem, Space, compare_plans, make_plan, write_plan

question = Problem(measured, None, num_devices=4, global_batch=64, effort=Effort(time_limit_s=2))
answer = make_plan(question)
print(answer)

# %% [markdown]
# The ladder as a table: what was chosen, and why the others lost.

# %%
answer.table()

# %% [markdown]
# ## What else could be done
#
# Each rival fixes choices: four replicas of the whole model, stages in one line, and stages that form a graph.

# %%
from dataclasses import replace

stages = Space(data=1, stages=4)
rivals = {
    "data parallel": replace(question, space=Space(data=4, zero=0)),
    "chain": replace(question, space=stages, planner="chain"),
    "graph": replace(question, space=stages),
}
answers = {"chosen": answer, **{name: make_plan(rival) for name, rival in rivals.items()}}
comparison = compare_plans(answers)
comparison.table()[["step_time_ns", "samples_per_s", "bubble_ratio", "peak_memory_bytes", "stages", "gap"]]

# %%
from simulator.charts import gantt_height, new_figure

figure, axes = new_figure([1.8, *[gantt_height(4)] * len(answers)])
comparison.draw(axes[0])
for ax, each in zip(axes[1:], answers.values(), strict=True):
    each.draw(ax)
figure

# %% [markdown]
# ## The decision
#
# A plan file is what the executor runs: `torchrun --nproc-per-node N -m executor plan.json --model two_towers:build`.

# %%
write_plan(folder / "plan.json", answer.plan)
best = min(each.plan.search.best_step_time_ns for each in answers.values())
print(f"chosen: {answer.plan.prediction.step_time_ns / 1e6:.2f} ms, the best of all {best / 1e6:.2f} ms")
