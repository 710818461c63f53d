"""Ranks whose model is four times what one of them holds: peak memory of each, and how often the file is read.

    python -m benchmarks.rank_memory [--width 4096] [--layers 16] [--steps 2] [--json]

The model, a chain of linear layers, is built on meta; four ranks on gloo take equal stages of it, read their values
from one safetensors file and train with SGD. Memory is anonymous resident memory of each process (Linux), sampled every
2 ms, over what the process had before it built the model. It is held against the bytes of the rank's stages: their
parameters while they are read, parameters and gradients in steps. Bytes read are those that the ranks' system calls
returned while they started, over the file's. Leaves out activations, which are small here.
"""

import argparse
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture, operator_graph
from executor import Pipeline
from planner.plan import Plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand
from tests.support.ranks.rank_pool import RankPool
from tests.support.safetensors_file import write_safetensors

RANKS, MICROBATCHES = 4, 4
PERIOD_S = 0.002


@dataclass(frozen=True, slots=True)
class Row:
    """What one rank took, in bytes: of its stages, at most while they were read, at most in steps; read from files."""

    stage_bytes: int
    loading_bytes: int
    training_bytes: int
    read_bytes: int


class Peak:
    """The most anonymous memory of this process since the last question."""

    def __init__(self) -> None:
        self._most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            self._most = max(self._most, anonymous_bytes())

    def taken(self) -> int:
        """Return it, and begin anew."""
        found, self._most = max(self._most, anonymous_bytes()), 0
        return found


def anonymous_bytes() -> int:
    """Return this process's anonymous resident memory."""
    return _figure("/proc/self/status", "RssAnon") * 1024


def _figure(path: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.MULTILINE)
    assert found, f"{path} has no {name}: this benchmark needs Linux"
    return int(found[1])


def chain(width: int, num_layers: int) -> TrainingModel:
    """Return the model on meta."""
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
        inputs, targets = torch.ones(MICROBATCHES, width), torch.zeros(MICROBATCHES, width)
    return TrainingModel("chain", module, (inputs,), {}, targets, True, F.mse_loss, {}, MICROBATCHES)


def equal_stages(model: TrainingModel) -> Plan:
    """Return a plan of as many stages as there are ranks."""
    source = capture(model, 1)
    names = [operator.name for operator in operator_graph(source, (1,)).operators]
    groups = in_equal_runs(names[:-1], RANKS)
    groups[-1] += names[-1:]
    return plan_by_hand(source, groups, num_microbatches=MICROBATCHES, microbatch_size=1, schedule="1f1b")


def run_rank(path: str, width: int, num_layers: int, steps: int) -> Row:
    """Read this rank's part, train, and return what it took."""
    equal_stages(chain(1, num_layers))  # what capturing imports is the bare process's
    bare, read, peak = anonymous_bytes(), _figure("/proc/self/io", "rchar"), Peak()
    model = chain(width, num_layers)
    plan = equal_stages(model)
    inputs, targets = torch.ones(MICROBATCHES, width), torch.zeros(MICROBATCHES, width)
    with Pipeline(plan, model, values=path) as pipe:
        stage_bytes = sum(parameter.nbytes for parameter in pipe.parameters())
        read, loading = _figure("/proc/self/io", "rchar") - read, peak.taken() - bare
        optimizer = torch.optim.SGD(pipe.parameters(), 0.1, foreach=False)
        for _ in range(steps):
            pipe.step((inputs,), targets)
            optimizer.step()
        return Row(stage_bytes, loading, peak.taken() - bare, read)


def measure(width: int, num_layers: int, steps: int) -> list[Row]:
    """Return a row a rank."""
    layer = torch.full((width, width), 1 / width)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        write_safetensors(path, {f"{i}.weight": layer for i in range(num_layers)})
        pool = RankPool(RANKS)
        try:
            rows: list[Row] = pool.run(run_rank, path=str(path), width=width, num_layers=num_layers, steps=steps)
        finally:
            pool.close()
        return rows


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Return the worst rank's peaks over its stages, and bytes read by all over those of all stages."""
    return {
        "loading": max(row.loading_bytes / row.stage_bytes for row in rows),
        "training": max(row.training_bytes / (2 * row.stage_bytes) for row in rows),
        "read": sum(row.read_bytes for row in rows) / sum(row.stage_bytes for row in rows),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    started = time.perf_counter()
    rows = measure(args.width, args.layers, args.steps)
    found = ratios(rows)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], **found}))
        return
    for rank, row in enumerate(rows):
        sizes = (row.stage_bytes, row.loading_bytes, row.training_bytes)
        stage, loading, training = (f"{size / 2**20:.0f} MiB" for size in sizes)
        print(f"rank {rank}: stage {stage}, at most {loading} to read it, {training} to train it")
    seconds, load = time.perf_counter() - started, os.getloadavg()[0]
    print(
        f"worst over the stages' bytes: {found['loading']:.3f} reading, {found['training']:.3f} training (with "
        f"gradients); read {found['read']:.3f} times; {seconds:.0f} s, load {load:.1f}"
    )


if __name__ == "__main__":
    main()
