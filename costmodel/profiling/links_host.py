"""Host time of a message: what a rank loses to it at one of its ends while it computes.

In each round two ranks exchange a message each way and compute, as in a pipeline: post a receive, put pieces
together, send, compute, then take the message of the round before, which has arrived meanwhile. What a round takes
longer than one that only computes is lost to its send and its receive; half of it is noted. It holds copies, calls,
and what the backend's own threads take from computing; stalls are part of the price, so means count. A GPU computes
while its host exchanges: only what delays the device is lost. Leaves out how long the message travels.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

HOST_SIZES_BYTES = (4 * 2**10, 32 * 2**10, 256 * 2**10, 2**20)

PIECES = 4
"""Tensors of a message."""

ROUNDS = 10
"""Rounds in a row; by turns they exchange and only compute."""

LEAST_REPEATS, MOST_REPEATS, BUDGET_NS = 4, 12, 700_000_000
"""Turns at one size: as many as the time of each size allows."""

WIDTH, PRODUCTS = {"cpu": 256, "cuda": 4096}, {"cpu": 8, "cuda": 1}
"""What a round computes, products of square matrices: a few ms, as a stage's action."""


def host_ns(size: int, device: str) -> int:
    """Return the ns that ranks 0 and 1 lose to one end of a message of `size` bytes; other ranks pass by."""
    if dist.get_rank() > 1:
        return 0
    compute, pieces = _computation(device), _pieces(size, device)
    lost: list[float] = []
    stop = time.perf_counter_ns() + BUDGET_NS
    while _goes_on(len(lost), stop, device):
        alone = _round_ns(compute, (), device)
        lost.append((_round_ns(compute, pieces, device) - alone) / 2)
    lost.sort()
    cut = len(lost) // 4
    return max(1, round(statistics.fmean(lost[cut : len(lost) - cut])))


def _goes_on(num_turns: int, stop: int, device: str) -> bool:
    """Whether rank 0 wants another turn."""
    wanted = num_turns < LEAST_REPEATS or (num_turns < MOST_REPEATS and time.perf_counter_ns() < stop)
    flag = torch.tensor([float(wanted)], device=device)
    if dist.get_rank() == 0:
        dist.send(flag, 1)
    else:
        dist.recv(flag, 0)
    return bool(flag)


def _computation(device: str) -> Callable[[], None]:
    matrix = torch.zeros(WIDTH[device], WIDTH[device], device=device)

    def compute() -> None:
        for _ in range(PRODUCTS[device]):
            torch.mm(matrix, matrix)

    return compute


def _pieces(size: int, device: str) -> tuple[torch.Tensor, ...]:
    return torch.zeros(size, dtype=torch.uint8, device=device).chunk(PIECES)


def _round_ns(compute: Callable[[], None], pieces: Sequence[torch.Tensor], device: str) -> float:
    """Return the mean time of a round that exchanges the pieces each way; without pieces it only computes."""
    for work in _exchange(_pieces(PIECES, device)):  # start together
        work.wait()
    before: list[Any] = []
    start = time.perf_counter_ns()
    for _ in range(ROUNDS):
        latest = _exchange(pieces) if pieces else []
        compute()
        for work in before:
            work.wait()
        before = latest
    for work in before:
        work.wait()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / ROUNDS


def _exchange(pieces: Sequence[torch.Tensor]) -> list[Any]:
    """Post a receive and a send, in the order in which the peer posts its send and its receive."""
    rank, world = dist.get_rank(), dist.group.WORLD
    assert world is not None  # noqa: S101 - the caller has made it
    room = torch.empty(sum(piece.numel() for piece in pieces), dtype=torch.uint8, device=pieces[0].device)
    posted = []
    for sends in (rank == 0, rank == 1):
        post = world.send if sends else world.recv
        posted.append(post([torch.cat(tuple(pieces)) if sends else room], 1 - rank, 0))
    return posted
