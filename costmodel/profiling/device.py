"""What this machine's device is called, how much memory it has, and which device of the catalogue that is."""

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from costmodel.model.profile import Device

_CATALOGUE = (
    (r"V100-SXM2-16GB", 16, "v100-sxm2-16"),
    (r"V100-SXM2-32GB", 32, "v100-sxm2-32"),
    (r"V100-SXM3-32GB", 32, "v100-sxm3-32"),
    (r"A100-SXM4-40GB", 40, "a100-sxm-40"),
    (r"A100-SXM4-80GB", 80, "a100-sxm-80"),
    (r"A100-PCIE-40GB", 40, "a100-pcie-40"),
    (r"A100 80GB PCIe", 80, "a100-pcie-80"),
    (r"H100 80GB HBM3", 80, "h100-sxm-80"),
    (r"H100 NVL", 94, "h100-nvl-94"),
    (r"H100 PCIe", 80, "h100-pcie-80"),
    (r"H200 NVL", 141, "h200-nvl-141"),
    (r"H200", 141, "h200-sxm-141"),
    (r"GH200 (96|480)GB", 96, "gh200-96"),  # the driver names the host's memory
    (r"GB200", 186, "gb200-nvl72"),
    (r"B200", 180, "b200-sxm-180"),
    (r"L40S", 48, "l40s-48"),
    (r"GeForce RTX 4090", 24, "rtx4090-24"),
    (r"GeForce RTX 5090", 32, "rtx5090-32"),
    (r"A10G", 24, "a10g-24"),
    (r"L4", 24, "l4-24"),
)
"""The driver's name of a device, its nominal memory in GB, its id in the catalogue."""

_LEAST, _MOST = 0.85, 1.10
"""Share of the nominal memory (in 10^9 bytes) that the driver reports: some keep a part back, some count in GiB."""


def describe_device(device: torch.device) -> Device:
    """Return type, name and memory of a device; a CPU's memory is the machine's."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, size = properties.name, properties.total_memory
        return Device("cuda", name, size, catalogue_id(name, size))
    return Device("cpu", _processor(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def catalogue_id(name: str, memory_bytes: int) -> str:
    """Return the id of the catalogue's device of this name and memory, "" for a device that it does not have.

    A part of a device, as NVIDIA's MIG makes them, has the name with less memory: it is none of the catalogue's.
    """
    for pattern, gigabytes, found in _CATALOGUE:
        if re.search(rf"(?<!\w){pattern}(?!\w)", name) and _LEAST <= memory_bytes / (gigabytes * 1e9) <= _MOST:
            return found
    return ""


def describe_settings(device: torch.device) -> dict[str, object]:
    """Return what times on this device depend on besides versions: precision of products, attention, driver, clocks."""
    if device.type != "cuda":
        return {}
    backends: Any = torch.backends.cuda
    kernels = {
        "flash": backends.flash_sdp_enabled(),
        "memory-efficient": backends.mem_efficient_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
    }
    return {
        "float32_precision": _float32_precision(),
        "attention": [name for name, enabled in kernels.items() if enabled],
        **_driver(device),
    }


def _float32_precision() -> dict[str, str]:
    """Return what float32 products and convolutions are computed in, by torch's current names.

    Older names (`get_float32_matmul_precision`, `cudnn.allow_tf32`) raise once a program has set one of these.
    """
    backends: Any = torch.backends
    return {"matmul": backends.cuda.matmul.fp32_precision, "convolution": backends.cudnn.conv.fp32_precision}


def clock_mhz(device: torch.device) -> float:
    """Return the clock of a device's multiprocessors at this moment; 0 on a CPU, and where the driver does not say."""
    if device.type != "cuda":
        return 0.0
    said: Any = _driver(device).get("driver", {})
    number, _, unit = str(said.get("clocks.sm", "")).partition(" ")
    return float(number) if unit == "MHz" else 0.0


_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")


def _driver(device: torch.device) -> dict[str, object]:
    """Return what the driver says of the device, under its present load; nothing where its tool is missing."""
    identity = str(torch.cuda.get_device_properties(device).uuid)
    command = ["nvidia-smi", f"--id=GPU-{identity}", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"driver": dict(zip(_ASKED, (part.strip() for part in said.strip().split(",")), strict=False))}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
