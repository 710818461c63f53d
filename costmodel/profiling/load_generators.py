"""Load generators while a CPU is measured: processes that train the same model on the other cores.

Ranks of one host share memory bandwidth, caches and clock rate, so an operator that is timed alone is
faster than the same one in a run. Each load generator does what the neighbouring rank will do. GPUs have
memory of their own and need none. Leaves out how unlike the neighbours' work may be.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from costmodel.capture.heap import keep_freed_memory
from costmodel.profiling.options import Options

READY = b"ready\n"
MOST = 3
"""As many as a plan for four ranks has neighbours; more rarely change what one sees."""


def num_default_load_generators(threads: int) -> int:
    """Return how many more ranks of that many threads the cores of this machine hold, at most `MOST`."""
    return max(0, min(MOST, (os.cpu_count() or 1) // threads - 1))


@contextmanager
def load_generators(options: Options, microbatch_size: int) -> Iterator[None]:
    """Keep `options.companions` processes at work until the block ends; on a GPU none."""
    with ExitStack() as stack:
        for _ in range(options.companions if options.device == "cpu" else 0):
            stack.enter_context(_load_generator(options, microbatch_size))
        yield


@contextmanager
def _load_generator(options: Options, microbatch_size: int) -> Iterator[None]:
    words = (options.model, microbatch_size, options.seed, options.dtype, options.threads, options.sequence)
    command = [sys.executable, "-m", "costmodel.profiling.load_generators", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    # Its standard input is a life line: when this process ends in any way, the load generator reads the end of it.
    process = subprocess.Popen(  # noqa: S603 - our own module with our own words
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    try:
        process.stdout.readline()  # a load generator that fails says nothing and keeps no one waiting
        yield
    finally:
        process.kill()
        process.communicate()


def _train(model: str, microbatch_size: int, seed: int, dtype: str, threads: int, sequence: int) -> None:
    """Train without end; the life line ends it."""
    from costmodel.capture.batches import move, take
    from costmodel.capture.models import load_model

    torch.set_num_threads(threads)
    keep_freed_memory()
    kind = getattr(torch, dtype) if dtype else None
    loaded = move(load_model(model, microbatch_size, seed, sequence), "cpu", kind)
    piece = take(loaded, microbatch_size)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    while True:
        loss, _ = piece.evaluate(piece.module(*piece.args, **piece.kwargs), piece.targets)
        loss.backward()  # type: ignore[no-untyped-call]


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    _train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
