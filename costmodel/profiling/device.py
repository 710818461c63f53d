"""What this machine's device is called and how much memory it has."""

import os
import platform
from pathlib import Path

import torch

from costmodel.profile import Device


def describe_device(device: torch.device) -> Device:
    """Return type, name and memory of a device; a CPU's memory is the machine's."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device("cuda", properties.name, properties.total_memory)
    return Device("cpu", _processor(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
