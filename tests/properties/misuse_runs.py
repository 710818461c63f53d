"""Misused loops on real ranks, and whether each ends as it may: with the plain losses, or in an error on every rank."""

import atexit
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from costmodel.errors import PenstockError
from executor.communication.watch import farewell
from tests.support.loops.misuses import CASES, MISUSES, NUM_RANKS, Job, plain_losses
from tests.support.ranks.rank_pool import environment, free_port, process_context


def _rank(name: str, victim: int, rank: int, port: int, out: str) -> None:
    """Run a loop as one rank's program would, through the interpreter's end."""
    os.environ |= environment(rank, NUM_RANKS, port)
    torch.set_num_threads(1)
    os.dup2(os.open(out + ".err", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    sys.stderr = os.fdopen(2, "w", 1)
    try:
        losses = MISUSES[name][0](Job(rank, victim))
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them, a program does not
    except PenstockError as error:
        farewell(error.exit_code, f"error: {error}")
        sys.exit(error.exit_code)
    Path(out).write_text(json.dumps(losses))


def problems_of(name: str, victim: int) -> list[str]:
    """Run one misuse; return what is wrong with how its ranks end."""
    with tempfile.TemporaryDirectory() as folder:
        port, outs = free_port(), [str(Path(folder) / f"out{rank}") for rank in range(NUM_RANKS)]
        started = time.monotonic()
        processes = [
            process_context().Process(target=_rank, args=(name, victim, rank, port, out), daemon=True)
            for rank, out in enumerate(outs)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.1, started + 300 - time.monotonic()))
        hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        codes = [process.exitcode for process in processes]
        losses = [json.loads(Path(out).read_text()) if Path(out).exists() else None for out in outs]
        said = [Path(out + ".err").read_text() if Path(out + ".err").exists() else "" for out in outs]
    return list(_judged(name, hung, codes, losses, said))


def _judged(
    name: str, hung: list[int], codes: list[int | None], losses: list[list[float] | None], said: list[str]
) -> Iterator[str]:
    if hung:
        yield f"the ranks {hung} never end: {said}"
    elif MISUSES[name][2]:
        for rank, found in enumerate(losses):
            if found is None or not _alike(found, plain_losses()):
                yield f"rank {rank} ended with {codes[rank]} and has not the plain losses: {found} {said[rank][-500:]}"
    else:
        for rank, (code, words) in enumerate(zip(codes, said, strict=True)):
            if not code or losses[rank] is not None or not words.strip():
                yield f"rank {rank} ended with {code} and no error: {words[-500:]}"


def _alike(found: list[float], expected: list[float]) -> bool:
    return len(found) == len(expected) and all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(found, expected, strict=True)
    )


def misuse_failures(num_cases: int) -> list[str]:
    """Run misuses of the loop, in turn; return those that neither train as a plain loop nor end in an error."""
    rows = []
    for name, victim in CASES[:num_cases]:
        with suppress(KeyboardInterrupt):
            rows += [f"{name}, rank {victim}: {line}" for line in problems_of(name, victim)]
    return rows
