"""Which device a rank has, what tells it from every other, and what carries tensors between the ranks' devices.

Leaves out memory and speed: whether a device is the planned one asks `matching`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import DoesNotMatch


def choose_device(kind: str) -> torch.device:
    """Return this process's device of a kind; GPUs are shared when there are fewer than processes.

    Raises
    ------
    DoesNotMatch
        When there is none of that kind.
    """
    if kind != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DoesNotMatch("the plan is for GPUs and torch sees none here; profile and plan on this machine's CPU")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def of_this_process(device: torch.device) -> torch.device:
    """Return a device by its number: ``cuda`` alone names the current one, and torch's `set_device` refuses it so."""
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def identity(device: torch.device) -> str:
    """Return what no other device of any host has; nothing for a CPU, which all ranks of a host may share."""
    if device.type == "cpu":
        return ""
    return f"{boot_id()} {torch.cuda.get_device_properties(device).uuid}"


def carrier(identities: Sequence[str]) -> str:
    """Return the backend for these devices: NCCL refuses two ranks on one GPU, so then gloo carries everything."""
    return "nccl" if all(identities) and len(set(identities)) == len(identities) else "gloo"


def reached(device: torch.device) -> Callable[[], bool]:
    """Return what answers, later and to any thread, whether the device has done what its stream holds by now."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    found: Callable[[], bool] = event.query
    return found


def boot_id() -> str:
    """Return what tells this host's run of its system from any other."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else os.uname().nodename
