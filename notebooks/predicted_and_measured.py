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
# # Predicted and measured, and calibration
#
# A small model is profiled on this machine's CPU, planned as two stages, and run in two real processes. What the run
# took is held against what was predicted, action by action; then the profile is moved to the run, for the next plans.
# How close the two are depends on what else this machine does meanwhile: everything here is computed from the run at
# hand, and nothing about the distance is taken for granted.

# %%
# %matplotlib inline
import json
import os
import subprocess
import sys
from pathlib import Path

folder = Path("out/predicted_and_measured") if Path("pyproject.toml").exists() else Path("../predicted_and_measured")
folder.mkdir(parents=True, exist_ok=True)
MODEL, RANKS, BATCH, MICROBATCH, STEPS, MS = "zoo:case-study:small", 2, 16, 2, 6, 10**6


def command(*words):
    """Run a command of Python's `-m` as a person would type it, one thread a process; return its JSON answer."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", *map(str, words), "--json"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)  # noqa: S603 - the lines below
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


# %% [markdown]
# ## Profile
#
# `penstock profile` runs the model and measures every operator, and the links between two local processes: how long a
# message is under way, and how long it keeps its two ends busy.

# %%
profiled = command(
    "planner", "profile", MODEL, "-o", folder / "profile.json", "--microbatch-sizes", MICROBATCH, "--repeats", 3
)
print(f"{profiled['operators']} operators, which account for {profiled['coverage']:.0%} of a step")

# %% [markdown]
# ## Plan
#
# Two stages, one on each of two ranks; where the cut goes and the schedule are searched. The plan file is all that the
# run gets.

# %%
from planner import Effort, Problem, Space, make_plan, read_profile, write_plan

profile = read_profile(folder / "profile.json")
question = Problem(
    profile,
    None,
    num_devices=RANKS,
    global_batch=BATCH,
    microbatch_size=MICROBATCH,
    space=Space(data=1, stages=RANKS, chunks=1),
    target="executor",
    effort=Effort(time_limit_s=1),
)
answer = make_plan(question)
write_plan(folder / "plan.json", answer.plan)
predicted_ns, bound_ns = answer.plan.prediction.step_time_ns, answer.plan.search.lower_bound_ns
assert predicted_ns >= (bound_ns or 0)
schedule, count = answer.plan.schedule, answer.plan.batch.num_microbatches
print(f"{schedule}, {count} micro-batches: {predicted_ns / MS:.1f} ms predicted, gap {answer.plan.search.gap or 0:.1%}")

# %% [markdown]
# ## Run
#
# `torchrun` starts the executor in two processes, which follow the plan's orders over gloo. `--timeline` keeps what
# each rank did in the last step, on one clock.

# %%
launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, "-m", "executor")
ran = command(
    *launcher, folder / "plan.json", "--model", MODEL, "--steps", STEPS, "--timeline", folder / "measured.json"
)
print("steps (ms):", ", ".join(f"{step_ns / MS:.1f}" for step_ns in ran["step_times_ns"]))
print(f"median without the first: {ran['step_time_ns'] / MS:.1f} ms")

# %% [markdown]
# ## Predicted above measured
#
# Of each rank the predicted bars stand above the measured ones, on one axis. Look for three things: bars that are
# longer or shorter than predicted (the price of an operator is off), gaps that are not predicted (Python between two
# actions, a message that came late), and thin bars (calls that send, and waits for messages). The second line of the
# title divides the difference of the two step times, on the rank whose own work explains most of it.

# %%
from planner import compare_plans

comparison = compare_plans({"plan": answer}, {"plan": folder / "measured.json"})
measurement = comparison.rows()[0]["measured"]
(_, predicted), (_, measured) = comparison.timelines()
assert list(map(len, predicted.compute_spans)) == list(map(len, measured.compute_spans))

# %%
from planner.report.comparison.side_by_side import difference
from simulator.charts import new_figure, pair_height, predicted_and_measured

figure, (ax,) = new_figure([pair_height(RANKS)])
note = difference(comparison.plans[0].measurement)
predicted_and_measured(ax, predicted, measured, title="before calibration", note=note)
figure

# %% [markdown]
# The same in numbers. On every rank the four parts add up to the difference of the step times, without a rest.

# %%
import pandas as pd

parts = pd.DataFrame(measurement["ranks"]).rename_axis("rank")
difference_ns = measurement["step_time_ns"] - measurement["predicted_step_time_ns"]
assert (parts.sum(axis="columns") == difference_ns).all()
error = f"prediction's error {measurement['error_percent']:+.1f} %"
print(f"measured less predicted: {difference_ns / MS:+.2f} ms ({error})")
(parts / MS).round(2)

# %% [markdown]
# ## Calibrate
#
# `penstock fit PLAN --measured TIMELINE` moves the profile to the run: of each stage the forward of its operators by
# what F took, their backward by what B (or I and W) took, the optimizer's step, and links as far as the run's messages
# tell. Few or scattered actions move their price only a part of the way. What a run does not tell stays, and is named.
# The table has
# actions without the time that messages take from them, which the links' `p2p_host` moves.

# %%
calibrated = command(
    *("planner", "calibrate", folder / "plan.json", "--measured", folder / "measured.json"),
    *("--profile", folder / "profile.json", "-o", folder / "calibrated.json"),
)
sides = {side: pd.DataFrame(calibrated[side]["stages"]).set_index(["stage", "kind"]) for side in ("before", "after")}
moves = {name: ratio for name, ratio in calibrated["moved"].items() if name != "stages"}
print("\n".join(f"moves: {name} by {ratio:.2f}" for name, ratio in moves.items()))
print("\n".join(f"stays: {text}" for text in calibrated["stays"]))
pd.DataFrame(
    {
        "actions": sides["before"]["actions"],
        "measured (ms)": sides["before"]["measured_ns"] / MS,
        **{f"planned {side} (ms)": table["planned_ns"] / MS for side, table in sides.items()},
        **{f"error {side} (%)": table["error_percent"] for side, table in sides.items()},
    }
).round(2)

# %% [markdown]
# ## The new prediction beside the old one
#
# The same plan, with the prices of the calibrated profile: bars have moved towards the measured ones. What is left is
# what no price of an operator says, such as Python between two actions, and actions of one kind that differ in length.

# %%
from planner.candidate.reprice import repriced
from planner.plan.replay import replay

moved = read_profile(folder / "calibrated.json")
again = replay(repriced(answer.plan, moved))
figure, axes = new_figure([pair_height(RANKS)] * 2)
end_ns = max(timeline.step_time_ns for timeline in (predicted, again, measured))
for ax, title, timeline in zip(axes, ("before calibration", "after calibration"), (predicted, again), strict=True):
    predicted_and_measured(ax, timeline, measured, title=title, end_ns=end_ns)
figure

# %% [markdown]
# ## The next plan
#
# Planning anew with the calibrated profile may choose another cut. Its plans say that they rest on a calibration, so a
# comparison marks them: their times do not compare with those of plans before it.

# %%
from dataclasses import replace

new = make_plan(replace(question, profile=moved))
table = compare_plans({"before": answer, "calibrated": new}).table()
assert "calibration" in table.loc["calibrated", "differs_in"]
table[["schedule", "stages", "step_time_ns", "bubble_ratio", "gap", "differs_in"]]
