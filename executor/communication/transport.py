"""Messages between two ranks on torch.distributed: groups, posting and waiting.

Point-to-point goes through the pipeline's control group with one tag a message on gloo, through one group of each two
ranks on NCCL, which knows no tags; there the plan's order keeps both ends in step, and both directions share a
communicator: the order is live even if each call waits for its other end. Where gloo carries the tensors of
GPUs (several ranks share one) they are copied through the host. Leaves out when to send: the plan says that.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from costmodel.errors import PeerLost
from executor.communication.groups import MESSAGES
from executor.communication.packing import empty_message, pack
from executor.communication.wiring import Template
from executor.context import RankContext

MAX_UNSETTLED = 2
"""Sends to one peer whose buffers are kept before the oldest is waited for; any number is safe, because
the plan's order stays live even if every send waits for its receive."""


@dataclass(slots=True)
class Pending:
    """A message on its way to this rank, and the tensors in it."""

    peer: int
    work: Any
    tensors: list[torch.Tensor]


class Transport:
    """Sends and receives of one rank.

    Parameters
    ----------
    context : RankContext
        Connected; its groups' watch is told what this rank waits for.
    """

    def __init__(self, context: RankContext) -> None:
        groups, device = context.groups, context.device
        self.device, self._rank = device, groups.rank
        self._watch, self._expects = groups.watch, groups.expects
        self._asynchronous = groups.asynchronous
        self._direct = device.type == "cpu" or self._asynchronous
        self._wire_device = device if self._direct else torch.device("cpu")
        self._pair_groups: dict[tuple[int, int], Any] = {}
        self._unsettled: dict[int, deque[tuple[Any, torch.Tensor]]] = {}
        pairs = context.lanes.pairs(context.plan) if self._asynchronous else ()
        for pair in sorted({(min(pair), max(pair)) for pair in pairs}):
            if self._rank in pair:
                self._pair_groups[pair] = groups.group_on(pair, MESSAGES)
        self._control = groups.control

    def send(self, peer: int, tensors: Sequence[torch.Tensor], tag: int) -> None:
        """Start sending some tensors as one message."""
        waiting = self._unsettled.setdefault(peer, deque())
        group, place = self._group(self._rank, peer, peer)
        try:
            message = pack(tensors).to(self._wire_device)
            waiting.append((group.send([message], place, tag), message))
        except RuntimeError as error:
            raise self._lost(peer, error) from None
        while len(waiting) > MAX_UNSETTLED and not self._asynchronous:
            self._settle(peer)
        while waiting and self._asynchronous and waiting[0][0].is_completed():  # a wait would hold up the computing
            waiting.popleft()

    def receive(self, peer: int, templates: tuple[Template, ...], tag: int) -> Pending:
        """Start receiving the tensors of one message."""
        group, place = self._group(peer, self._rank, peer)
        message, tensors = empty_message(templates, self._wire_device)
        try:
            work = group.recv([message], place, tag)
        except RuntimeError as error:
            raise self._lost(peer, error) from None
        return Pending(peer, work, tensors)

    def wait(self, pending: Pending) -> list[torch.Tensor]:
        """Return the tensors once they are here."""
        self._watch.waits_for(pending.peer)
        try:
            pending.work.wait()
        except RuntimeError as error:
            raise self._lost(pending.peer, error) from None
        self._watch.works()
        if self._pair_groups:
            self._expects(self.device, pending.peer)
        pending.work = None  # gloo's Work objects must be gone before the groups are
        return pending.tensors if self._direct else [tensor.to(self.device) for tensor in pending.tensors]

    def settle(self) -> None:
        """Wait until everything that was sent has arrived."""
        for peer, waiting in self._unsettled.items():
            while waiting:
                self._settle(peer)

    def close(self) -> None:
        """Give up the groups."""
        self._unsettled.clear()
        self._pair_groups.clear()
        self._control = None

    def _settle(self, peer: int) -> None:
        work, _ = self._unsettled[peer][0]
        self._watch.waits_for(peer)
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(peer, error) from None
        self._watch.works()
        self._unsettled[peer].popleft()

    def _group(self, sender: int, receiver: int, peer: int) -> tuple[Any, int]:
        """Return the group of two ranks and the peer's rank in it."""
        low, high = sorted((sender, receiver))
        group = self._pair_groups.get((low, high))
        return (self._control, peer) if group is None else (group, int(peer == high))

    def _lost(self, peer: int, error: RuntimeError) -> PeerLost:
        return self._watch.lost(peer, str(error).strip().split("\n")[0])
