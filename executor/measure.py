"""The measured timeline of a step: every rank's spans on one clock.

Clocks of ranks on one host are one clock (Linux: CLOCK_MONOTONIC); between hosts the offset to rank 0 is
estimated from the quickest of a few round trips. A send's span is the call; a receive has two, the call that
posts it and the time that its user waited for it. A sum of gradients (or of the losses' weights) likewise has its
start and its wait. Leaves out memory.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from executor.recording import RawSpan
from simulator.actions import parse_action
from simulator.timeline import Span, Timeline

_ROUND_TRIPS = 8


def gather_timeline(spans: Sequence[RawSpan], rank: int, num_ranks: int) -> Timeline | None:
    """Return the spans of all ranks as one timeline on rank 0, None elsewhere; collective.

    Time 0 is the first start.
    """
    offset = _clock_offset_ns(rank, num_ranks)
    own = [[str(action), stream, start + offset, end + offset] for action, stream, start, end in spans]
    rows = gather_bytes(json.dumps(own).encode(), rank, num_ranks)
    if rows is None:
        return None
    read = [(r, *entry) for r, row in enumerate(rows) for entry in json.loads(row)]
    first = min((entry[3] for entry in read), default=0)
    found = [Span(parse_action(text), r, stream, start - first, end - first) for r, text, stream, start, end in read]
    return Timeline(num_ranks, tuple(sorted(found, key=lambda s: (s.rank, s.stream, s.start_ns, s.end_ns))))


def gather_bytes(data: bytes, rank: int, num_ranks: int) -> list[bytes] | None:
    """Return every rank's bytes on rank 0, None elsewhere; collective (and without numpy)."""
    if num_ranks == 1:
        return [data]
    length = torch.tensor([len(data)])
    lengths = [torch.zeros_like(length) for _ in range(num_ranks)]
    dist.all_gather(lengths, length)
    longest = max(1, *(int(n) for n in lengths))
    own = torch.zeros(longest, dtype=torch.uint8)
    if data:
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = [torch.zeros_like(own) for _ in range(num_ranks)] if rank == 0 else None
    dist.gather(own, rows)
    if rows is None:
        return None
    return [bytes(row.untyped_storage())[: int(n)] for row, n in zip(rows, lengths, strict=True)]


def _clock_offset_ns(rank: int, num_ranks: int) -> int:
    """Return what to add to this rank's clock to get rank 0's."""
    if num_ranks == 1:
        return 0
    hosts = gather_bytes(_boot_id().encode(), rank, num_ranks)
    same = torch.tensor([int(hosts is not None and len(set(hosts)) == 1)])
    dist.broadcast(same, 0)
    if int(same):
        return 0
    offset = 0
    for peer in range(1, num_ranks):
        if rank == 0:
            _answer(peer)
        elif rank == peer:
            offset = _ask()
    return offset


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text() if path.exists() else f"{time.time_ns()}"


def _ask() -> int:
    best, offset = 2**62, 0
    for _ in range(_ROUND_TRIPS):
        clock = torch.tensor([0])
        sent = time.perf_counter_ns()
        dist.send(clock, 0)
        dist.recv(clock, 0)
        back = time.perf_counter_ns()
        if back - sent < best:
            best, offset = back - sent, int(clock) - (sent + back) // 2
    return offset


def _answer(peer: int) -> None:
    for _ in range(_ROUND_TRIPS):
        clock = torch.tensor([0])
        dist.recv(clock, peer)
        clock[0] = time.perf_counter_ns()
        dist.send(clock, peer)
