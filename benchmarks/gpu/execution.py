"""Question `execution` (Show 4): what the executor costs, and whether four ranks on one GPU are exact.

One stage: a plan of one stage through the executor and the plain eager loop over the same micro-batches, step by step
in turn. Four ranks: the multi-modal transformer's branches, a stage each, all on the one device, messages over gloo;
started as a user starts it, its gradients checked, its timeline written and drawn where matplotlib is there.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import SUBJECTS, UNTIMED, Row, Setting, Verdict
from costmodel.capture.batches import TrainingModel, split_batch
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.profiling.device import describe_device
from executor import Pipeline
from planner.plan import Plan, write_plan
from simulator.timeline import read_timeline
from tests.support.plans_by_hand import plan_by_hand

MODELS = ("llama3", "mmt")
NUM_MICROBATCHES = 4
MOST_RATIO = 1.02
SECONDS = 240.0
"""After which the four ranks are given up."""


def rows(setting: Setting) -> Iterator[Callable[[], Row]]:
    """Yield what measures one stage, then four ranks."""
    for subject in setting.chosen(MODELS):
        yield lambda name=subject.name: one_stage(setting, name)  # type: ignore[misc]
    if setting.chosen(("mmt",)):
        yield lambda: four_ranks(setting)


def one_stage(setting: Setting, name: str) -> Row:
    """Step through the executor and plainly, in turn."""
    setting.free()
    size = SUBJECTS[name].sizes[0] if setting.full else 1
    model = setting.load(SUBJECTS[name], size * NUM_MICROBATCHES)
    captured = capture(model, size)
    plan = on_device(setting, plan_by_hand(captured, [captured.operators], num_microbatches=NUM_MICROBATCHES,
                                           microbatch_size=size))  # fmt: skip
    with Pipeline(plan, captured, device=setting.device) as pipeline:
        sides: tuple[Callable[[], object], ...] = (pipeline.step, lambda: _plain_step(model))
        times = _in_turn(setting, sides)
    ratios = [ours / plain for ours, plain in times]
    return {
        "what": f"one stage, {name}",
        "ratio": round(statistics.median(ratios), 4),
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "ours_ms": round(statistics.median(ours for ours, _ in times) / 1e6, 3),
        "plain_ms": round(statistics.median(plain for _, plain in times) / 1e6, 3),
    }


def _plain_step(model: TrainingModel) -> None:
    """Accumulate gradients as a training loop does, and read the step's loss at its end."""
    model.module.zero_grad()
    losses = []
    for index in range(NUM_MICROBATCHES):
        piece = split_batch(model, index, NUM_MICROBATCHES)
        loss, _ = piece.evaluate(piece.module(*piece.args, **piece.kwargs), piece.targets)
        (loss / NUM_MICROBATCHES).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    sum(map(float, losses))


def _in_turn(setting: Setting, sides: tuple[Callable[[], object], ...]) -> list[tuple[int, int]]:
    """Time both sides round by round, who goes first changing."""
    found: list[tuple[int, int]] = []
    for index in range(-UNTIMED, setting.repeats):
        elapsed = [0, 0]
        for side in (0, 1) if index % 2 else (1, 0):
            setting.wait()
            start = time.perf_counter_ns()
            sides[side]()
            setting.wait()
            elapsed[side] = time.perf_counter_ns() - start
        if index >= 0:
            found.append((elapsed[0], elapsed[1]))
    return found


def on_device(setting: Setting, plan: Plan) -> Plan:
    """Return a plan made by hand for as many devices of the kind at hand."""
    found = describe_device(setting.device)
    kind = DeviceType(found.name, found.memory_bytes, found.type, found.catalogue)
    hosts = (Host(kind.name, len(plan.orders)),)
    return replace(plan, cluster=Cluster((kind,), hosts, (LinkGroup("local", 0, 1.0, 20000),)))


def four_ranks(setting: Setting, seconds: float = SECONDS) -> Row:
    """Run the branches on four ranks that share the device."""
    folder = setting.folder
    folder.mkdir(parents=True, exist_ok=True)
    spec, plan, timeline = setting.spec(SUBJECTS["mmt"]), folder / "four-ranks.plan.json", folder / "four-ranks.json"
    write_plan(plan, on_device(setting, branches_plan(capture(load_model(spec, 2), 2))))
    words = [str(plan), "--model", spec, "--steps", "4", "--check", "--json", "--timeline", str(timeline)]
    answer, _ = run_ranks(4, "executor", words, seconds)
    return {
        "what": "four ranks over gloo, mmt",
        "gradient_error": answer["max_gradient_error"],
        "loss_error": answer["loss_error"],
        "ours_ms": round(answer["step_time_ns"] / 1e6, 3),
        "drawn": _drawn(timeline),
    }


def run_ranks(
    count: int, module: str, words: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """Run so many ranks as a user starts them; return the first one's JSON object and all that they said beside it.

    Raises
    ------
    RuntimeError
        When a rank has failed or none has answered; what was said goes to stderr, too.
    """
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    run = subprocess.run(
        [*start, "--nproc-per-node", str(count), "-m", module, *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines or run.returncode:
        print(run.stdout[-3000:], run.stderr[-6000:], file=sys.stderr, flush=True)
        raise RuntimeError(f"{count} ranks ended with {run.returncode}: {(run.stdout + run.stderr)[-2000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer, run.stderr


def branches_plan(captured: Capture, size: int = 2) -> Plan:
    """Return a plan of four stages: a branch each, the last with the head and the loss."""
    groups: list[list[str]] = [[], [], [], []]
    for name in captured.operators:
        module = captured.groups[name].module if name in captured.groups else ""
        groups[int(module.split(".")[1]) if module.startswith("branches.") else 3].append(name)
    return plan_by_hand(captured, groups, num_microbatches=NUM_MICROBATCHES, microbatch_size=size)


def _drawn(timeline: Path) -> str:
    """Draw the measured timeline; the picture's name, "" without matplotlib."""
    try:
        from simulator.charts import save_figure, timeline_figure
    except ImportError:
        return ""
    picture = timeline.with_suffix(".svg")
    save_figure(timeline_figure(read_timeline(timeline), title="four ranks on one device, measured"), picture)
    return picture.name


def verdicts(found: list[Row]) -> list[Verdict]:
    """Judge the ratio and the gradients."""
    judged = []
    for row in found:
        if "ratio" in row:
            judged.append(
                (f"{row['what']}: {row['ratio']} of the plain loop, at most {MOST_RATIO}", row["ratio"] <= MOST_RATIO)
            )
        else:
            error = row["gradient_error"]
            judged.append((f"{row['what']}: gradient error {error:.1e}, at most 1e-5", error <= 1e-5))
    return judged
