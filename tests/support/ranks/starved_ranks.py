"""Ranks of which one may hold less than its stage needs: the system itself refuses it memory in its first step."""

import re
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executor import Pipeline
from executor.__main__ import main

STARVED, ROOM_BYTES, WIDTH = 1, 24 * 2**20, 1 << 17


class Broad(nn.Module):
    """Little to compute, and 64 MiB of activations for two samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x)).unsqueeze(-1).expand(-1, -1, WIDTH).sin()
        return found.mean(-1)


def broad(batch: int = 4) -> Any:
    return Broad(), (torch.ones(batch, 4),), torch.zeros(batch, 64), F.mse_loss


def starved(arguments: list[str]) -> int:
    """Run the executor's command; rank `STARVED` gets no more than `ROOM_BYTES` beyond what it holds at its start."""
    step = Pipeline.step

    def within_limits(pipe: Pipeline, *given: Any, **named: Any) -> float:
        if pipe.rank == STARVED:
            taken = re.search(r"^VmSize:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
            assert taken
            most = int(taken[1]) * 1024 + ROOM_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return step(pipe, *given, **named)

    Pipeline.step = within_limits  # type: ignore[method-assign]
    return main(arguments)
