"""How good profiles are: every zoo model (``:small``, CPU, one thread), one table.

    python -m benchmarks.profiler [NAME...] [--batch 4] [--repeats 9] [--json FILE]

For each model: operators, seconds of the capture, coverage; the unscaled sum of in-context times against
the separate whole step; the scaled prediction against another run afterwards; saved bytes against torch's
MemTracker. Then the distribution, which decides the cuts: the model is cut at five random places, every part
is run alone, and its forward, backward and saved bytes are held against the profile's for its operators.
Bars: coverage 95 %, sum 8 %, prediction 5 %, memory 6 %; parts: median error 8 %, worst 20 %.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel import zoo
from costmodel.profile import Profile
from costmodel.profiling.batches import TrainingModel
from costmodel.profiling.capture import Capture, capture
from costmodel.profiling.clock import Clock, clock_for
from costmodel.profiling.models import load_model
from costmodel.profiling.options import Options
from costmodel.profiling.parts import Part, extract
from costmodel.profiling.run import profile
from costmodel.profiling.timing import time_whole

NUM_CUTS = 5
SMALLEST_SHARE = 0.02
"""Parts of less than this share of the step are left out of the distribution: there marks and calls are the time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model; ratios are profile / other measurement, errors shares."""

    model: str
    operators: int
    capture_s: float
    coverage: float
    sum_ratio: float
    prediction_ratio: float
    memory_ratio: float
    median_error: float
    worst_error: float
    worst_saved_error: float


def measure(name: str, batch: int, repeats: int, seed: int = 0) -> Row:
    """Profile one model and hold the profile against other measurements."""
    spec = f"zoo:{name}:small"
    model = load_model(spec, batch)
    start = time.perf_counter()
    captured = capture(model)
    capture_s = time.perf_counter() - start
    found = profile(Options(spec, (batch,), repeats=repeats, links=False))
    unscaled: Any = found.extra["unscaled"]
    clock = clock_for(torch.device("cpu"))
    again = _another_run(captured, model, clock, repeats)
    errors, saved = _distribution(captured, model, found, clock, repeats, Random(seed))  # noqa: S311 - no secrets
    return Row(
        name,
        len(found.graph.operators),
        round(capture_s, 2),
        unscaled["coverage"][0],
        round(unscaled["sum_ns"][0] / unscaled["step_ns"][0], 4),
        round(found.whole.step_ns[0] / again, 4),
        round(_saved_bytes(found, found.graph.index, batch) / _tracked_bytes(load_model(spec, batch)), 4),
        round(median(errors), 4),
        round(max(errors), 4),
        round(max(saved), 4),
    )


def _another_run(captured: Capture, model: TrainingModel, clock: Clock, repeats: int) -> float:
    whole = extract(captured, captured.operators)
    spans = [time_whole(whole, model, clock) for _ in range(repeats + 3)][3:]
    return median(span.forward_ns + span.backward_ns for span in spans)


def _saved_bytes(found: Profile, operators: Any, batch: int) -> int:
    chosen = [o for o in found.graph.operators if o.name in operators]
    union = {s.storage: s.size_bytes * (1 if s.fixed else batch) for o in chosen for s in o.saved}
    return sum(union.values())


def _tracked_bytes(model: TrainingModel) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    leaves = pytree.tree_leaves((model.args, dict(model.kwargs), model.targets))
    tracker.track_external(model.module, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
    with tracker:
        loss, _ = model.evaluate(model.module(*model.args, **model.kwargs), model.targets)
        snapshot = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    assert loss.requires_grad
    return int(next(size for kind, size in snapshot.items() if "ACT" in str(kind)))


def _distribution(
    captured: Capture, model: TrainingModel, found: Profile, clock: Clock, repeats: int, dice: Random
) -> tuple[list[float], list[float]]:
    """Return the errors of forward + backward, and of saved bytes, of each part."""
    names = captured.operators
    cuts = sorted(dice.sample(range(1, len(names)), min(NUM_CUTS, len(names) - 1)))
    stages = [names[i:j] for i, j in zip((0, *cuts), (*cuts, len(names)), strict=True)]
    known: dict[str, Any] = dict(captured.bind(model))
    total = sum(p.numel() for p in model.module.parameters())
    errors, saved = [], []
    for stage in stages:
        inside = set(stage)
        sends = [f.name for f in captured.flows.values() if f.producer in inside and not inside.issuperset(f.consumers)]
        part = extract(captured, stage, sends)
        time_ns, kept, results = _alone(part, known, model, clock, repeats)
        known.update({name: results[name] for name in sends})
        share = sum(captured.parameter(name).numel() for name in part.parameters) / total
        predicted = _predicted_ns(found, inside) + found.whole.accumulate_ns * share
        if predicted < SMALLEST_SHARE * found.whole.step_ns[0]:
            continue
        errors.append(abs(predicted / time_ns - 1))
        saved.append(abs(_saved_bytes(found, inside, model.batch) / max(1, kept) - 1))
    return errors, saved


def _predicted_ns(found: Profile, names: set[str]) -> int:
    rows = [found.times_of[name] for name in names]
    return sum(t.forward_ns[0] + t.backward_input_ns[0] + t.backward_weight_ns[0] for t in rows)


def _alone(
    part: Part, known: dict[str, Any], model: TrainingModel, clock: Clock, repeats: int
) -> tuple[float, int, dict[str, Any]]:
    """Run a part forward and backward by itself; return its time, saved bytes and results."""
    spans = []
    results: dict[str, Any] = {}
    for _ in range(repeats + 2):
        values = {name: known[name] for name in part.raw_inputs}
        for name in part.receives:
            values[name] = known[name].detach().requires_grad_(known[name].requires_grad)
        start = clock.mark()
        results = part(values, model.targets)
        middle = clock.mark()
        ends = [value for value in results.values() if value.requires_grad]
        gradients = [torch.ones_like(value) for value in ends]
        again = clock.mark()
        if ends:
            torch.autograd.backward(ends, gradients)
        spans.append(clock.span_ns(start, middle) + clock.span_ns(again, clock.mark()))
    return median(spans[2:]), _kept(part, known, model), results


def _kept(part: Part, known: dict[str, Any], model: TrainingModel) -> int:
    fixed = {t.untyped_storage()._cdata for t in (*model.module.parameters(), *model.module.buffers())}
    fixed |= {known[n].untyped_storage()._cdata for n in part.raw_inputs if isinstance(known[n], torch.Tensor)}
    found: dict[int, int] = {}
    held = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held.append(storage)  # so that no address is used twice
        if storage._cdata not in fixed:
            found[storage._cdata] = storage.nbytes()
        return tensor

    values = {name: known[name] for name in part.raw_inputs}
    values.update({n: known[n].detach().requires_grad_(known[n].requires_grad) for n in part.receives})
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = part(values, model.targets)
    assert results
    return sum(found.values())


BARS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("coverage", lambda r: r.coverage >= 0.95),
    ("sum", lambda r: abs(r.sum_ratio - 1) <= 0.08),
    ("prediction", lambda r: abs(r.prediction_ratio - 1) <= 0.05),
    ("memory", lambda r: abs(r.memory_ratio - 1) <= 0.06),
    ("parts", lambda r: r.median_error <= 0.08 and r.worst_error <= 0.20),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler", description=__doc__)
    parser.add_argument("names", nargs="*", default=zoo.NAMES, metavar="NAME")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    columns = list(Row.__dataclass_fields__)
    print("  ".join(columns), "missed", sep="  ")
    for name in args.names:
        row = measure(name, args.batch, args.repeats)
        rows.append(row)
        missed = ", ".join(bar for bar, holds in BARS if not holds(row)) or "-"
        print(
            "  ".join(str(v).ljust(len(c)) for c, v in zip(columns, asdict(row).values(), strict=True)),
            missed,
            sep="  ",
        )
    for bar, holds in BARS:
        print(f"{bar}: {sum(map(holds, rows))} of {len(rows)} within the bar")
    if args.json:
        with open(args.json, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
