"""The main job on real input: profile a model, plan it as a graph and as a chain, run both, compare.

    python -m examples.demo out/demo

Calls the same commands that a person would type, prints them, and leaves every file they make in the
folder. Four ranks share whatever cores this machine has; the table says so.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.commands import penstock, torchrun

MODEL, DEVICES, BATCH, MICROBATCH, STEPS = "zoo:mmt:small", 4, 16, 2, 6


def main(folder: Path) -> int:
    """Run the whole road into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.json"
    penstock("profile", MODEL, "-o", profile, "--microbatch-sizes", "1,2,4", "--seed", "0")
    plans, measured = [], []
    for planner in ("ours", "chain"):
        plan = folder / ("graph.json" if planner == "ours" else "chain.json")
        choices = f"--devices {DEVICES} --batch {BATCH} --microbatch-size {MICROBATCH} --planner {planner}"
        penstock("plan", profile, *choices.split(), "-o", plan)
        penstock("validate", plan)
        penstock("simulate", plan, "--chart", plan.with_suffix(".png"), "--trace", plan.with_suffix(".trace.json"))
        flags = f"--model {MODEL} --steps {STEPS} --check --timeline {plan.with_suffix('.timeline.json')}"
        measured.append(torchrun(DEVICES, plan, *flags.split()))
        plans.append(plan)
    compared = penstock("compare", *plans, "--chart", folder / "compare.png")
    print_table(compared["rows"], measured)
    names = sorted(path.name for path in folder.iterdir())
    print(f"\npictures and files in {folder}/: {', '.join(names)}")
    return 0


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
