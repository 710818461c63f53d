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
# # From a GPU's profile to a plan
#
# `penstock profile` ran on an H100 (80 GB, SXM) and wrote one file for each of four models; they are part of the house.
# Planning needs no GPU: this page reads such a profile, holds it against prices that were estimated without the device,
# and plans with it. Links of several GPUs were not measured there: messages take what those of a typical host do.

# %%
# %matplotlib inline
from pathlib import Path

import pandas as pd

import costmodel.zoo
from planner import Effort, Problem, compare_plans, make_plan, model, read_profile
from simulator.charts import new_figure

MS, GIB = 10**6, 2**30
FOLDER = Path(costmodel.zoo.__file__).parent / "profiles" / "h100-sxm-80"
measured = read_profile(FOLDER / "mmt.json.gz")
print(measured.device.name, measured.dtype, "micro-batches of", measured.microbatch_sizes)

# %% [markdown]
# ## What was measured, and what would have been estimated
#
# The same model is described without the device by `penstock model zoo:mmt`. The table adds up the forwards and the
# backwards of all operators at each size. At the small sizes the host issues kernels more slowly than the device runs
# them: measured times hold that wait, and the estimate of the device alone does not. At the largest size the two are
# near.

# %%
estimated = model("zoo:mmt", microbatch_sizes=measured.microbatch_sizes, precision="bf16")


def totals(profile):
    forward = [sum(column) for column in zip(*(row.forward_ns for row in profile.times), strict=True)]
    inputs = [sum(column) for column in zip(*(row.backward_input_ns for row in profile.times), strict=True)]
    weights = [sum(column) for column in zip(*(row.backward_weight_ns for row in profile.times), strict=True)]
    return {
        f"{size} samples": f"{first / MS:.1f} + {(second + third) / MS:.1f} ms"
        for size, first, second, third in zip(profile.microbatch_sizes, forward, inputs, weights, strict=True)
    }


pd.DataFrame({"measured on an H100": totals(measured), "estimated": totals(estimated)})

# %% [markdown]
# ## Plan for eight such devices
#
# A profile of operators is enough for any number of devices. The answer says what its times rest on.

# %%
answer = make_plan(Problem(measured, None, num_devices=8, global_batch=64, effort=Effort(time_limit_s=3)))
print("\n".join(str(answer).splitlines()[:2]))

# %%
table = answer.table()
pd.DataFrame(
    {
        "step (ms)": (table["step_time_ns"] / MS).round(2),
        "peak (GiB)": (table["peak_memory_bytes"] / GIB).round(1),
        "why": table["why"],
    }
)

# %% [markdown]
# ## The same question with estimated prices
#
# Where both choose alike, nobody had to wait for a GPU to decide.

# %%
guessed = make_plan(Problem(estimated, None, num_devices=8, global_batch=64, effort=Effort(time_limit_s=3)))
compare_plans({"measured": answer, "estimated": guessed}).table()

# %%
figure, axes = new_figure([3.0])
answer.draw(axes[0])
figure
