"""Question `kernels`: kernels' owners in one recorded step, by marks against torch's own links."""

import gzip
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.call.errand import Errand
from benchmarks.gpu.call.owners import compared, marked_owners
from benchmarks.gpu.setting import Row, Setting, Subject, eager_step
from costmodel.capture.batches import take
from costmodel.capture.capture import capture
from costmodel.capture.clock import DeviceClock
from costmodel.profiling.measure.marks import PREFIX, KernelMarks
from costmodel.profiling.measure.records import CALL, KERNELS, LAUNCHES, NOTE
from costmodel.profiling.measure.timing import observe
from costmodel.profiling.measure.walk import Walk

WARM_UP_STEPS = 4
_CATEGORIES = {*KERNELS, *LAUNCHES, NOTE, CALL, "fwdbwd"}
_ARGUMENTS = {"correlation", "External id", "Sequence number", "Fwd thread id", "stream"}


def kernels(errand: Errand, setting: Setting, subject: Subject) -> Row:
    """Record a plain step and one in context, keep both, and compare every kernel's owners in the second."""
    size = (subject.sizes if errand.plan == "main" and setting.full else (1, 2))[1]
    loaded = setting.load(subject, size)
    captured = capture(loaded, size)
    piece, walk, clock = take(captured.model, size), Walk(captured), setting.clock
    if not isinstance(clock, DeviceClock):
        return {"size": size, "left_out": "a CPU writes no kernels"}
    for _ in range(WARM_UP_STEPS):
        eager_step(loaded)
    began = time.perf_counter()
    with clock.records() as plain:
        eager_step(loaded)
    plain_s, began = time.perf_counter() - began, time.perf_counter()
    marks = KernelMarks(clock)
    with clock.records() as events:
        seen = observe(walk, piece, marks)
    traced_s = time.perf_counter() - began
    _keep(errand.work / "traces" / f"{errand.name}-marks.json.gz", events)
    _keep(errand.work / "traces" / f"{errand.name}-plain.json.gz", plain)
    marks.read(events)
    spans = seen.spans(marks.span_ns)
    kernel_us = sum(event["dur"] for event in events if event.get("cat") in KERNELS)
    plain_us = sum(event["dur"] for event in plain if event.get("cat") in KERNELS)
    return {
        "size": size,
        "plain_kernel_ms": round(plain_us / 1e3, 3),
        "marks_against_plain_%": round(100 * (kernel_us / max(plain_us, 1e-9) - 1), 2),
        **compared(events, PREFIX, marked_owners(seen.forward, seen.backward), seen.backward[0][1]),
        "unattributed_%": round(0.1 * marks.sums.unattributed_ns / max(kernel_us, 1e-9), 3),
        "spans_ms": round((sum(spans.forward_ns.values()) + sum(spans.backward_ns.values())) / 1e6, 3),
        "trace_s": round(traced_s, 2),
        "plain_trace_s": round(plain_s, 2),
    }


def _keep(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Keep a trace small enough to be replayed by a test."""
    rows = [
        {
            **{k: event[k] for k in ("ph", "cat", "name", "ts", "dur", "tid", "pid", "id") if k in event},
            "args": {k: v for k, v in event.get("args", {}).items() if k in _ARGUMENTS},
        }
        for event in events
        if event.get("cat") in _CATEGORIES
    ]
    path.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode()))
