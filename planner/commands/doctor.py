"""Say what this machine can do: versions, where packages are imported from, devices, what can be profiled.

    penstock doctor --json

Nothing is measured, and nothing is sent anywhere.
"""

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from planner.commands import NEEDED_BY
from planner.commands.answer import Answer
from planner.report.summary.text import Table

_OURS = ("costmodel", "simulator", "planner", "executor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: there are none."""


def run(args: argparse.Namespace) -> Answer:
    """Look around; nothing is measured and nothing written."""
    versions = {"python": platform.python_version(), **{name: _version(name) for name in ("penstock", *NEEDED_BY)}}
    places = {name: _place(name) for name in (*_OURS, *NEEDED_BY)}
    devices, abilities = _torch()
    body = {"versions": versions, "import_locations": places, "devices": devices, "can": abilities}
    rows = [(name, versions.get(name, ""), places[name] or "not installed", NEEDED_BY.get(name, "")) for name in places]
    table = Table(("package", "version", "imported from", "needed by"), rows, f"Python {versions['python']}")
    shown = [(str(d["type"]), str(d["name"]), f"{int(str(d['memory_bytes'])) / 2**30:.1f}") for d in devices]
    found = Table(("device", "name", "memory GiB"), shown)
    lines = [f"{'yes' if able['able'] else 'no '}  {what}: {able['why']}" for what, able in abilities.items()]
    return Answer(body, [table, found, *lines])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _place(name: str) -> str:
    spec = find_spec(name)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""


def _torch() -> tuple[list[dict[str, object]], dict[str, dict[str, object]]]:
    """Return the devices that torch sees and what can be measured on them, with the reason."""
    try:
        import torch

        from costmodel.profiling.device import describe_device
    except ImportError as error:
        why = f"torch cannot be imported ({error}); install penstock[torch], or use penstock import layers"
        no = {"able": False, "why": why}
        return [], {"profile on the CPU": no, "profile on a GPU": no, "measure links": no}
    found = [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]
    shown = [describe_device(device) for device in found]
    devices: list[dict[str, object]] = [{"type": d.type, "name": d.name, "memory_bytes": d.memory_bytes} for d in shown]
    return devices, {
        "profile on the CPU": {
            "able": True,
            "why": f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
        },
        "profile on a GPU": _gpu(torch),
        "measure links": _links(torch),
    }


def _gpu(torch: object) -> dict[str, object]:
    cuda, built = torch.cuda, torch.version.cuda  # type: ignore[attr-defined]
    if built is None:
        return {"able": False, "why": f"torch {_version('torch')} is a build without CUDA; install a CUDA build"}
    if not cuda.is_available():
        return {"able": False, "why": f"torch is built for CUDA {built}, but finds no driver or no GPU"}
    return {"able": True, "why": f"{cuda.device_count()} GPUs, CUDA {built}"}


def _links(torch: object) -> dict[str, object]:
    distributed = torch.distributed  # type: ignore[attr-defined]
    if not distributed.is_available():
        return {"able": False, "why": "this torch has no torch.distributed"}
    backends = [name for name in ("gloo", "nccl") if getattr(distributed, f"is_{name}_available")()]
    gpus = torch.cuda.device_count()  # type: ignore[attr-defined]
    nccl = "NCCL between GPUs" if "nccl" in backends and gpus > 1 else f"no NCCL: {gpus} GPUs, two are needed"
    return {
        "able": bool(backends),
        "why": f"backends {', '.join(backends)}; {nccl}",
    }
