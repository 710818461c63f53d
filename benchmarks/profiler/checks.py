"""What profiles are held against: whole steps run separately, torch's MemTracker, and parts of models run alone.

Times are CPU time of the one thread, so that other work on the machine shows little; and what is compared is measured
in turn within fractions of a second, because the pace of a shared machine drifts by more than what is asked here.
Leaves out the table (`benchmarks.profiler`).
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture
from costmodel.capture.clock import Clock
from costmodel.capture.parts import Part, extract
from costmodel.model.accumulation import accumulation_of
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from costmodel.profiling.measure.timing import time_whole
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile

UNTIMED = 2
"""Runs before the timed ones, whose caches the work that ran before has left cold."""

TIMED = 3

SECONDS_BETWEEN_STEPS = 0.15

SMALLEST_SHARE = 0.02
"""Parts of less than this share of the step (of what is saved) are left out: there marks and calls are the time."""


@dataclass(frozen=True, slots=True)
class PartError:
    """A part alone: (the profile's / measured - 1) of forward, backward and saved bytes; None where too small.

    `share` is the part's of the whole step.
    """

    share: float
    forward: float | None
    backward: float | None
    saved: float | None


def profile_beside(options: Options, step_ns: Callable[[], int]) -> tuple[Profile, float]:
    """Profile in a process of its own, halted now and then for a step here; return the median of these steps too.

    Steps here count where the profile has measured some of its own since the last: what it does besides, the machine
    may do at another pace.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")
        child = multiprocessing.get_context("forkserver").Process(target=_send_profile, args=(there, options, journal))
        child.start()
        there.close()
        steps, done = [], 0
        try:
            while not here.poll(SECONDS_BETWEEN_STEPS):
                os.kill(child.pid or 0, signal.SIGSTOP)
                before, done = done, journal.read_text().count("step/") if journal.exists() else 0
                if done > before:
                    steps.append(step_ns())
                os.kill(child.pid or 0, signal.SIGCONT)
            return here.recv(), median(steps)
        finally:
            child.kill()
            child.join()


def _send_profile(there: Connection, options: Options, journal: Path) -> None:
    there.send(profile(options, journal))


def stepper(captured: Capture, model: TrainingModel, clock: Clock) -> Callable[[], int]:
    """Return what runs whole steps without instruments and returns the median time of the last few."""
    return partial(_warm_step_ns, extract(captured, captured.operators), model, clock)


def _warm_step_ns(whole: Part, model: TrainingModel, clock: Clock) -> int:
    spans = [time_whole(whole, model, clock) for _ in range(UNTIMED + TIMED)][UNTIMED:]
    return round(median(span.forward_ns + span.backward_ns for span in spans))


def union_bytes(graph: OperatorGraph, names: Iterable[str], microbatch_size: int) -> int:
    """Return what these operators together keep, each storage once."""
    chosen = [graph.operators[graph.index[name]] for name in names]
    union = {s.storage: s.size_bytes * (1 if s.fixed else microbatch_size) for o in chosen for s in o.saved}
    return sum(union.values())


def tracked_bytes(model: TrainingModel) -> int:
    """Return the activations that torch's MemTracker finds after the forward."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    leaves = pytree.tree_leaves((model.args, dict(model.kwargs), model.targets))
    tracker.track_external(model.module, *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))
    with tracker:
        loss, _ = model.evaluate(model.module(*model.args, **model.kwargs), model.targets)
        snapshot = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    assert loss.requires_grad
    return int(next(size for kind, size in snapshot.items() if "ACT" in str(kind)))


def part_errors(
    captured: Capture, model: TrainingModel, found: Profile, clock: Clock, repeats: int, num_cuts: int, seed: int
) -> list[PartError]:
    """Cut the model at random places and run every part alone, as a rank does that has nothing else.

    Every round runs the whole step too: the profile's times are first brought to the machine's pace of that moment.
    """
    stages = random_stages(captured.operators, num_cuts, seed)
    parts = [part_of(captured, stage) for stage in stages]
    step_ns = stepper(captured, model, clock)
    rounds, steps = [], []
    for _ in range(repeats):
        steps.append(step_ns())
        rounds.append(_round(parts, captured, model, clock))
    pace = median(steps) / found.whole.step_ns[0]
    kept = _kept(parts, captured, model)
    return [
        _error(part, stages[i], found, pace, model, [spans[i] for spans in rounds], kept[i])
        for i, part in enumerate(parts)
    ]


def random_stages(names: tuple[str, ...], num_cuts: int, seed: int) -> list[tuple[str, ...]]:
    """Cut the operators at random places, the same for one seed."""
    cuts = sorted(Random(seed).sample(range(1, len(names)), min(num_cuts, len(names) - 1)))  # noqa: S311 - no secrets
    return [names[i:j] for i, j in zip((0, *cuts), (*cuts, len(names)), strict=True)]


def part_of(captured: Capture, names: tuple[str, ...]) -> Part:
    """Return these operators as a part that hands on all that others read."""
    inside = set(names)
    crossing = (f for f in captured.flows.values() if f.producer in inside and not inside.issuperset(f.consumers))
    return extract(captured, names, [flow.name for flow in crossing])


def _error(
    part: Part,
    names: tuple[str, ...],
    found: Profile,
    pace: float,
    model: TrainingModel,
    spans: list[tuple[int, int]],
    kept: int,
) -> PartError:
    rows = [found.times_of[name] for name in names]
    forward = pace * sum(row.forward_ns[0] for row in rows)
    own = sum(row.backward_input_ns[0] + row.backward_weight_ns[0] for row in rows)
    backward = pace * (own + accumulation_of(found).over(part.parameters))
    saved = union_bytes(found.graph, names, model.batch)
    step_ns, all_bytes = pace * found.whole.step_ns[0], union_bytes(found.graph, found.graph.index, model.batch)
    return PartError(
        (forward + backward) / step_ns,
        _relative(forward, median(span[0] for span in spans), step_ns),
        _relative(backward, median(span[1] for span in spans), step_ns),
        _relative(saved, kept, all_bytes),
    )


def _relative(predicted: float, measured: float, whole: float) -> float | None:
    return None if max(predicted, measured) < SMALLEST_SHARE * whole else predicted / max(1, measured) - 1


def _round(parts: list[Part], captured: Capture, model: TrainingModel, clock: Clock) -> list[tuple[int, int]]:
    """Run every part forward and backward a few times by itself; return the times of the last."""
    known: dict[str, Any] = dict(captured.bind(model))
    spans = []
    for part in parts:
        for _ in range(UNTIMED):
            run_part(part, known, model, clock)
        results, *span = run_part(part, known, model, clock)
        known.update(results)
        spans.append((span[0], span[1]))
    return spans


def run_part(
    part: Part, known: Mapping[str, Any], model: TrainingModel, clock: Clock
) -> tuple[dict[str, torch.Tensor], int, int]:
    """Run a part forward and backward on known values; return what it hands on and the two times in ns."""
    values = _inputs(part, known)
    clock.wait()
    start = clock.mark()
    results = part(values, model.targets)
    middle = clock.mark()
    ends = [value for value in results.values() if value.requires_grad]
    gradients = [torch.ones_like(value) for value in ends]
    again = clock.mark()
    if ends:
        torch.autograd.backward(ends, gradients)
    end = clock.mark()
    clock.wait()
    return results, clock.span_ns(start, middle), clock.span_ns(again, end)


def _inputs(part: Part, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a part takes in, received values cut from what made them."""
    values = {name: known[name] for name in part.raw_inputs}
    values.update({n: known[n].detach().requires_grad_(known[n].requires_grad) for n in part.receives})
    return values


def _kept(parts: list[Part], captured: Capture, model: TrainingModel) -> list[int]:
    """Return the bytes that each part by itself saves for its backward, received values included."""
    known: dict[str, Any] = dict(captured.bind(model))
    leaves = [*model.module.parameters(), *model.module.buffers(), *known.values()]
    fixed = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
    sizes = []
    for part in parts:
        found: dict[int, torch.UntypedStorage] = {}  # holds them, so that no address is used twice

        def pack(tensor: torch.Tensor, found: dict[int, torch.UntypedStorage] = found) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in fixed:
                found[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = part(_inputs(part, known), model.targets)
        known.update(results)
        sizes.append(sum(storage.nbytes() for storage in found.values()))
    return sizes
