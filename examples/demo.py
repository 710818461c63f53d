"""The main job on real input: profile a model, plan it, look at the ladder, run plans, compare.

    python -m examples.demo out/demo

Calls the same commands that a person would type, prints them, and leaves every file they make in the folder. Nothing
fixed, four devices get the plan that the search finds best, with the ladder of what else there is. What this project is
about shows when each device is a stage, which flags fix: a graph of stages against a chain. These run on four ranks
that share whatever cores this machine has; the table says so. Last, a plan for as many devices as there are cores is
run as it was planned, so that its predicted time can be held against the measured one.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.commands import penstock, torchrun
from planner.plan import read_plan
from planner.report.comparison.compared import ComparedPlan
from simulator.charts import gantt, gantt_height, new_figure, save_figure

MODEL, DEVICES, BATCH, MICROBATCH, STEPS = "zoo:mmt:small", 4, 16, 2, 6
A_STAGE_A_DEVICE = (
    *("--data", 1, "--stages", DEVICES, "--chunks", 1),
    *("--microbatch-size", MICROBATCH, "--recompute", "none"),
)


def main(folder: Path) -> int:
    """Run the whole road into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.json"
    penstock("profile", MODEL, "-o", profile, "--microbatch-sizes", "1,2,4", "--seed", "0")
    free = penstock("plan", profile, "--devices", DEVICES, "--batch", BATCH, "-o", folder / "free.json")
    print_ladder(free)
    plans, measured = [], []
    for planner in ("ours", "chain"):
        plan = folder / ("graph.json" if planner == "ours" else "chain.json")
        question = ("--devices", DEVICES, "--batch", BATCH, "--planner", planner, *A_STAGE_A_DEVICE)
        penstock("plan", profile, *question, "-o", plan)
        penstock("validate", plan)
        penstock("simulate", plan, "--chart", plan.with_suffix(".png"), "--trace", plan.with_suffix(".trace.json"))
        measured.append(run(plan, DEVICES))
        plans.append(plan)
    compared = penstock("compare", *plans, "--chart", folder / "compare.png", "--html", folder / "compare.html")
    draw(plans, folder / "demo.png")
    print_table(compared["rows"], measured)
    hold_against_a_run(folder, profile)
    names = sorted(path.name for path in folder.iterdir())
    print(f"\npictures and files in {folder}/: {', '.join(names)}")
    return 0


def run(plan: Path, num_ranks: int) -> dict[str, Any]:
    """Run a plan, check its gradients and keep its timeline."""
    flags = f"--model {MODEL} --steps {STEPS} --check --timeline {plan.with_suffix('.timeline.json')}"
    return torchrun(num_ranks, plan, *flags.split())


def draw(paths: Sequence[Path], picture: Path) -> None:
    """Draw a panel for each plan: its timeline, all on one time axis, and its lower bound as an upright line."""
    plans = [ComparedPlan(path.stem, read_plan(path)) for path in paths]
    end_ns = max(each.predicted.end_ns for each in plans)
    figure, axes = new_figure([gantt_height(each.predicted.num_ranks) for each in plans])
    for ax, each in zip(axes, plans, strict=True):
        gantt(ax, each.predicted, title=f"{each.name} of stages, {each.plan.schedule}", end_ns=end_ns)
        ax.axvline((each.plan.search.lower_bound_ns or 0) / 1e6, color="black", linewidth=2)
    save_figure(figure, picture)


def hold_against_a_run(folder: Path, profile: Path) -> None:
    """Plan for as many devices as there are cores, run that, and print both times."""
    plan = folder / "cores.json"
    cores = min(DEVICES, os.cpu_count() or 1)
    answer = penstock("plan", profile, "--devices", cores, "--batch", BATCH, "--target", "executor", "-o", plan)
    done = run(plan, answer["devices_used"])
    compared = penstock("compare", plan, "--measured", plan.with_suffix(".timeline.json"))
    found = compared["rows"][0]["measured"]
    print(
        f"\non {cores} of this machine's cores, {answer['strategy']} on {answer['devices_used']}: predicted "
        f"{answer['step_time_ns'] / 1e6:.1f} ms, measured {done['step_time_ns'] / 1e6:.1f} ms (median of "
        f"{STEPS - 1} steps); the last step's error is {found['error_percent']:+.1f} %"
    )


def print_ladder(answer: Mapping[str, Any]) -> None:
    """Print what was chosen for the model, and why the other strategies lost."""
    print(f"\n{answer['strategy']} on {answer['devices_used']} of {DEVICES} devices: {answer['choice']}")
    for rung in answer["rungs"]:
        print(f"  {rung['strategy']:<30}{rung['step_time_ns'] / 1e6:>9.1f} ms  {rung['why']}")
    print(flush=True)


def print_table(rows: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> None:
    """Print predicted and measured figures side by side."""
    cores = os.cpu_count() or 1
    head = f"{'plan':<8}{'stages':>7}{'depth':>7}{'predicted':>12}{'measured*':>12}"
    head += f"{'bubble':>9}{'peak MiB':>10}{'gradient error':>16}"
    print(f"\n{head}\n{'-' * len(head)}")
    for row, run in zip(rows, measured, strict=True):
        print(
            f"{Path(row['plan']).stem:<8}{row['stages']:>7}{row['depth']:>7}{row['step_time_ns'] / 1e6:>9.1f} ms"
            f"{run['step_time_ns'] / 1e6:>9.1f} ms{100 * row['bubble_ratio']:>7.1f} %"
            f"{row['peak_memory_bytes'] / 2**20:>10.1f}{run['max_gradient_error']:>16.1e}"
        )
    print(
        f"* {DEVICES} ranks share {cores} cores here, one thread each: the measured step is this machine's, "
        f"the prediction is for {DEVICES} devices."
    )


if __name__ == "__main__":
    began = time.perf_counter()
    code = main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo"))
    print(f"the demo took {time.perf_counter() - began:.0f} s")
    raise SystemExit(code)
