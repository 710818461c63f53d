"""Question `machine`: what the device does at most, and what a launch, an event and a bare context take.

In a main call torch is imported while models are captured, and the device is waited for.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.call.errand import Errand
from costmodel.capture.clock import Clock, clock_for
from costmodel.profiling.device import describe_device, describe_settings

WIDTH = 8192
"""Of the square matrices that are multiplied."""

LAUNCHES, EVENTS = 900, 500
"""So many fit the launch queue of 1,024 entries, so that the host is not held up."""


def ask_machine(errand: Errand) -> None:
    """Write the machine's row."""
    if errand.plan == "main":
        errand.await_turn(0)
    errand.ask("machine", partial(_row, torch.device(errand.device)))


def _row(device: torch.device) -> dict[str, object]:
    found = describe_device(device)
    row: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "device": found.name,
        "catalogue": found.catalogue,
    }
    if device.type != "cuda":
        return row
    command = ["nvidia-smi", "-q", "-d", "CLOCK,POWER,TEMPERATURE,COMPUTE"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    row |= {"settings": describe_settings(device), "smi": said[:3000]}
    row |= {**_rates(device), **_latencies(device)}
    free, total = torch.cuda.mem_get_info()
    return {**row, "context_mib": round((total - free - torch.cuda.memory_reserved()) / 2**20)}


def _rates(device: torch.device) -> dict[str, float]:
    """Return the rates of matrix products and of copies on the device and to it."""
    seconds, found = partial(_seconds, clock_for(device)), {}
    for name, dtype, count in (("bf16", torch.bfloat16, 10), ("fp32", torch.float32, 3)):
        x, y = (torch.randn(WIDTH, WIDTH, device=device, dtype=dtype) for _ in range(2))
        found[f"{name}_tflops"] = round(2 * WIDTH**3 / seconds(partial(torch.matmul, x, y), count) / 1e12, 1)
        del x, y
    big = torch.empty(2**30, dtype=torch.uint8, device=device)
    other = torch.empty_like(big)
    host = torch.empty(2**28, dtype=torch.uint8).pin_memory()
    found["copy_tb_s"] = round(2 * big.numel() / seconds(lambda: other.copy_(big), 10) / 1e12, 2)
    part = big[: host.numel()]
    rate = host.numel() / seconds(lambda: part.copy_(host, non_blocking=True), 5)
    return {**found, "host_to_device_gb_s": round(rate / 1e9, 1)}


def _seconds(clock: Clock, call: Callable[[], object], count: int) -> float:
    """Return the device's time of one of `count` calls, after three untimed ones."""
    for _ in range(3):
        call()
    start = clock.mark()
    for _ in range(count):
        call()
    end = clock.mark()
    clock.wait()
    return clock.span_ns(start, end) / count / 1e9


def _latencies(device: torch.device) -> dict[str, float]:
    """Return what the host takes to issue a launch, and to make and record an event."""
    one = torch.ones(1, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        one.add_(1)
    launch_us = (time.perf_counter() - start) / LAUNCHES * 1e6
    torch.cuda.synchronize()
    start = time.perf_counter()
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(EVENTS)]  # type: ignore[no-untyped-call]
    for event in events:
        event.record()
    event_us = (time.perf_counter() - start) / EVENTS * 1e6
    return {"launch_us": round(launch_us, 2), "event_us": round(event_us, 2)}
