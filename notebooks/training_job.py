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
# # A job that runs today, and what to change in it
#
# A training job is described by its trainer's own configuration file. This page reads one of torchtitan, prices it as
# it is, looks for something better that the same trainer runs, says what moved and what that is worth, and writes the
# files that the trainer takes. Nothing here needs a GPU; times are estimates with the interval in which four of five
# jobs were measured.

# %%
# %matplotlib inline
from pathlib import Path

import pandas as pd

pd.set_option("display.max_colwidth", None)
folder = Path("out/training_job") if Path("pyproject.toml").exists() else Path("../training_job")
folder.mkdir(parents=True, exist_ok=True)
(folder / "today.toml").write_text("""
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 32
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 4
""")

# %% [markdown]
# ## The job as it runs
#
# `penstock import job today.toml --trainer torchtitan --model llama3-8b.json -o job.json` does the same. What the file
# says and prices do not need is named with its reason; an unknown key would be an error.

# %%
from planner import model, todays_plan

llama = model("llama3-8b", "h100-sxm-80")
today, facts = todays_plan(folder / "today.toml", "torchtitan", llama, 64)
print(f"{today.prediction.step_time_ns / 1e9:.2f} s a step of {today.batch.global_size} samples")
print(*(f"ignored {key}: {why}" for key, why in facts.ignored), sep="\n")

# %% [markdown]
# ## What is better, and by how much
#
# `plan --from job.json --target torchtitan` starts the search from the job. The lines "from", "gain" and "moved" say
# what the change is worth and what it is.

# %%
from planner import Effort, Problem, make_plan

answer = make_plan(
    Problem(llama, None, 64, today.batch.global_size, target="torchtitan", old_plan=today, effort=Effort(5))
)
print(answer)

# %%
from planner import compare_plans

compared = compare_plans({"today": today, "proposed": answer})
compared.table()[["step_time_ns", "samples_per_s", "bubble_ratio", "peak_memory_bytes", "stages", "schedule"]]

# %%
from simulator.charts import new_figure

figure, axes = new_figure([1.8])
compared.draw(axes[0])
figure

# %% [markdown]
# ## The files that the trainer takes
#
# `penstock export proposed.json --to torchtitan -o job/` writes these. A loop of one's own needs no trainer: the
# executor runs the plan with `Pipeline.from_plan`, as `docs/guide.md` shows.

# %%
from planner.export.torchtitan import files

for name, text in files(answer.plan).items():
    (folder / name).write_text(text)
    print(f"--- {name}\n{text[:600]}")
assert answer.plan.search.best_step_time_ns <= today.prediction.step_time_ns
