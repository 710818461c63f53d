"""Sums of gradients among a stage's shard groups: each rank's part with those of the ranks that hold the same one.

A unit's part is one message, behind the last sum within the group; it is waited for at the end of the step, so that no
rank blocks while others need its backwards. Leaves out sums within a group (`fully_sharded`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from executor.context import RankContext


class ShardGroupSums:
    """The sums among groups that one stage of this rank takes part in; none where all replicas are one group."""

    def __init__(self, context: RankContext, stage: int) -> None:
        self._groups, self._ranks = context.groups, context.lanes.across_groups(context.plan, stage, context.rank)
        self._group = self._groups.named_group(self._ranks) if len(self._ranks) > 1 else None
        self._flying: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = []

    def start(self, parameters: Sequence[nn.Parameter]) -> None:
        """Start the sum of a unit's gradients; those that only other groups have count as zeros."""
        trained = [p for p in parameters if p.requires_grad]
        if self._group is None or all(p.grad is None for p in trained):
            return
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        own: list[torch.Tensor] = [p.grad.to_local() for p in trained]  # type: ignore[union-attr]
        flat = torch.cat([gradient.reshape(-1) for gradient in own])
        self._flying.append((self._group.allreduce([flat]), flat, own))

    def finish(self) -> None:
        """Wait for all sums, and put them into ``.grad``."""
        while self._flying:
            work, flat, own = self._flying.pop(0)
            with self._groups.waiting(self._ranks):
                work.wait()
            self._groups.expects(flat.device, next(rank for rank in self._ranks if rank != self._groups.rank))
            pieces = torch.split(flat, [gradient.numel() for gradient in own])
            torch._foreach_copy_(own, [p.view_as(g) for p, g in zip(pieces, own, strict=True)])
