"""Runs of a part's operators that keep nothing but what flows into them: their forward runs again in the backward.

Each is a module of its own, called by `torch.utils.checkpoint`. Parameters that a run alone reads are read within it,
so that gathered ones are not held for it. Leaves out which operators run again (`costmodel.stages.config`), and their
random numbers, which are seeded where they are drawn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions
from torch.utils.checkpoint import checkpoint, noop_context_fn

from costmodel.capture.capture import Capture
from costmodel.capture.parts import RUN, Part
from costmodel.model.blocks import block_of


class _Checkpointed(nn.Module):
    """A run that is made again for its backward, which leaves buffers as its forward did."""

    def __init__(self, inner: nn.Module, buffers: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.inner, self._written = inner, buffers

    def forward(self, *values: Any) -> Any:
        """Return what the run makes."""
        if not torch.is_grad_enabled():
            return self.inner(*values)
        contexts = (lambda: (nullcontext(), self._leaving_buffers())) if self._written else noop_context_fn
        return checkpoint(self.inner, *values, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)

    @contextmanager
    def _leaving_buffers(self) -> Iterator[None]:
        kept = [buffer.clone() for buffer in self._written]
        try:
            yield
        finally:
            for buffer, value in zip(self._written, kept, strict=True):
                buffer.data.copy_(value)


def runs_of(capture: Capture, operators: Sequence[str], again: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the operators that run again together: those that follow each other in a stage and are of one block."""
    runs: list[list[str]] = []
    wanted, before = set(again), None
    for name in operators:
        block = block_of(capture.groups[name].module) if name in wanted else None
        if block is not None and block == before:
            runs[-1].append(name)
        elif block is not None:
            runs.append([name])
        before = block
    return tuple(map(tuple, runs))


def checkpointed_part(part: Part, buffers: Sequence[torch.Tensor]) -> Part:
    """Return a part that computes the same, each run under a checkpoint; `buffers` are those that it may write."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(part.module.graph, {}))
    module = fx.GraphModule(part.module, graph)
    rows: dict[int, dict[fx.Node, int | None]] = {}
    for node in graph.nodes:
        if RUN in node.meta:
            rows.setdefault(node.meta[RUN], {})[node] = None
    for row in rows.values():
        for node in list(row):
            reads = [one for one in node.all_input_nodes if not one.all_input_nodes and one.op != "placeholder"]
            row.update(dict.fromkeys(one for one in reads if row.keys() >= one.users.keys()))
    fuse_by_partitions(module, list(rows.values()), prefix="run_")
    for number in range(len(rows)):
        setattr(module, f"run_{number}", _Checkpointed(getattr(module, f"run_{number}"), buffers))
    module.recompile()
    return replace(part, module=module)
