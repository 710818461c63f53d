"""A chain as torch's own pipelining runs it from an export, beside one process; every rank makes the same model."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, SAMPLES = 16, 2
NAMES = ("inp", *(f"layers.{i}" for i in range(6)), "out")


def chain() -> torch.nn.ModuleDict:
    """Return the modules of the chain by their names in the plan, each a linear layer and a tanh."""
    torch.manual_seed(0)
    modules = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in NAMES]
    return torch.nn.ModuleDict(zip(map(attribute, NAMES), modules, strict=True)).double()


def attribute(name: str) -> str:
    return name.replace(".", "_")


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(output, target)


def batch_of(num_microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    size = (num_microbatches * SAMPLES, WIDTH)
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


def largest_error(folder: str, num_microbatches: int) -> float:
    """Run the exported orders on these ranks; return how far this rank's gradients are from one process's."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    parts = json.loads((Path(folder) / "parts.json").read_text())
    rows = (Path(folder) / "schedule.csv").read_text().splitlines()
    own = sorted({int(cell.split("F")[0]) for cell in rows[rank].split(",") if "F" in cell})
    model = chain()
    held = {i: torch.nn.Sequential(*(model[attribute(name)] for name in parts[i])) for i in own}
    stages = [PipelineStage(module, i, len(parts), torch.device("cpu")) for i, module in held.items()]
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=num_microbatches, loss_fn=loss_of, scale_grads=False)
    schedule._load_csv(str(Path(folder) / "schedule.csv"))
    inputs, targets = batch_of(num_microbatches)
    arguments: tuple[Any, ...] = (inputs,) if 0 in own else ()
    schedule.step(*arguments, **({"target": targets} if len(parts) - 1 in own else {}))
    assert world == len(rows)
    names = {attribute(name) for i in own for name in parts[i]}
    return _error(model, names, inputs, targets, num_microbatches)


def _error(
    model: torch.nn.ModuleDict, held: set[str], inputs: torch.Tensor, targets: torch.Tensor, num_microbatches: int
) -> float:
    alone = chain()
    ends = range(0, num_microbatches * SAMPLES + 1, SAMPLES)
    for start, stop in pairwise(ends):
        output = inputs[start:stop]
        for module in alone.values():
            output = module(output)
        loss_of(output, targets[start:stop]).backward()
    worst = 0.0
    for name in held:
        for mine, other in zip(model[name].parameters(), alone[name].parameters(), strict=True):
            assert mine.grad is not None
            assert other.grad is not None
            worst = max(worst, float((mine.grad - other.grad).abs().max()))
    return worst
