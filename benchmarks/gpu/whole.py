"""Question `whole` (Show 1): operators' times against a separate plain step, and their bytes against the allocator's.

The step is the user's: the model itself, eager, loaded anew. `held` is the same sum where the device begins only after
the host has issued most of the step, so that no launch is waited for: near `sum` the device binds, far below it the
host does. Memory is parameters, gradients, inputs, what operators save and the workspace of the profile.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.gpu.setting import UNTIMED, Row, Setting, Subject, Verdict, eager_step, percent, within
from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.profiling.measure.memory import saved_bytes
from costmodel.profiling.measure.timing import time_in_context
from costmodel.profiling.measure.walk import Walk

MODELS = ("mmt", "dlrm", "uno", "llama3", "unet3d", "yolo")
HELD_CYCLES = 200_000_000
"""What the device does nothing for, about a tenth of a second."""


def rows(setting: Setting) -> Iterator[Callable[[], Row]]:
    """Yield what measures each row: every model at each of its sizes."""
    for subject in setting.chosen(MODELS):
        sizes = setting.profile(subject).microbatch_sizes
        for index in range(len(sizes)):
            yield lambda subject=subject, index=index: _row(setting, subject, index)  # type: ignore[misc]


def _row(setting: Setting, subject: Subject, index: int) -> Row:
    profile = setting.profile(subject)
    size, unscaled = profile.microbatch_sizes[index], _numbers(profile.extra["unscaled"])
    setting.free()
    before = setting.allocated_bytes()
    model = setting.load(subject, size)
    wall_ns = setting.step_ns(lambda: eager_step(model))
    device_ns = _device_ns(setting, model)
    state = _state_bytes(model)
    held = setting.allocated_bytes() - before if setting.full else state
    with setting.growth() as growth:
        eager_step(model)
        peak_bytes = held + growth()
    workspace: Any = profile.extra.get("workspace_bytes", [0] * len(profile.microbatch_sizes))
    needed = state + saved_bytes(profile.graph, size)
    last = index == len(profile.microbatch_sizes) - 1
    return {
        "model": subject.name,
        "size": size,
        "step_ms": round(device_ns / 1e6, 3),
        "wall_ms": round(wall_ns / 1e6, 3),
        "kernel_ms": round(unscaled["kernel_ns"][index] / 1e6, 3) if "kernel_ns" in unscaled else None,
        "sum_%": percent(unscaled["sum_ns"][index] / device_ns),
        "held_%": percent(_held_ns(setting, model) / device_ns) if last else None,
        "peak_mib": round(peak_bytes / 2**20, 1),
        "memory_%": percent((needed + workspace[index]) / peak_bytes) if setting.full else None,
        "saved_%": percent(needed / peak_bytes),
    }


def _numbers(value: Any) -> dict[str, list[float]]:
    return dict(value)


def _device_ns(setting: Setting, model: TrainingModel) -> float:
    """Return the median time of a step between two marks of the device's stream."""
    clock, spans = setting.clock, []
    for _ in range(UNTIMED + setting.repeats):
        clock.wait()
        start = clock.mark()
        eager_step(model)
        end = clock.mark()
        clock.wait()
        spans.append(clock.span_ns(start, end))
    return median(spans[UNTIMED:])


def _held_ns(setting: Setting, model: TrainingModel) -> float:
    """Return the sum of the operators' times in context with the device held back until the host is ahead."""
    walk, clock, sums = Walk(capture(model, model.batch)), setting.clock, []
    for _ in range(UNTIMED + 3):
        if setting.full:
            torch.cuda._sleep(HELD_CYCLES)  # type: ignore[no-untyped-call]
        found = time_in_context(walk, model, _NeverWaits(clock))
        clock.wait()
        sums.append(found)
    totals = [sum(f.forward_ns.values()) + sum(f.backward_ns.values()) for f in sums[UNTIMED:]]
    return median(totals)


class _NeverWaits:
    """A clock that lets the host run ahead: the first wait is passed over."""

    def __init__(self, clock: Any) -> None:
        self._clock, self._passed = clock, False
        self.mark, self.span_ns, self.host_ns = clock.mark, clock.span_ns, clock.host_ns

    def wait(self) -> None:
        """Wait from the second time on."""
        if self._passed:
            self._clock.wait()
        self._passed = True


def _state_bytes(model: TrainingModel) -> int:
    """Return parameters twice (the gradients), buffers, inputs and targets."""
    trained = sum(p.nbytes * (2 if p.requires_grad else 1) for p in model.module.parameters())
    leaves = pytree.tree_leaves((model.args, dict(model.kwargs), model.targets))
    # An input that is its own target counts once.
    given = {leaf.data_ptr(): leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return trained + sum(b.nbytes for b in model.module.buffers()) + sum(given.values())


def verdicts(found: list[Row]) -> list[Verdict]:
    """Judge sums and memory."""
    on_gpu = any(row["memory_%"] is not None for row in found)
    memory = within("memory against the allocator's peak", found, "memory_%", 3) if on_gpu else []
    return [*within("unscaled sum against a separate step", found, "sum_%", 5), *memory]
