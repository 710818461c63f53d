"""The example job under a book, on real processes of which one may be killed in the middle: for tests of going on."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.ranks.rank_pool import environment, free_port

PATIENCE_S = 60
EVERY = 3
"""Steps after which the job is saved."""


def shorten(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have the job save itself sooner and train a smaller model."""
    from examples import train

    decoder = train.CausalDecoder
    put(train, "EVERY", EVERY)
    put(train, "CausalDecoder", lambda **shape: decoder(**{**shape, "num_layers": 1}))


def train_under(book: str, folder: str, num_steps: int, losses: str, rank: int, dies_at: int | None) -> None:
    """Train as one rank; writes the losses, and ends with the exit code of what went wrong."""
    import torch

    from costmodel.errors import PenstockError
    from examples import train

    torch.set_num_threads(1)
    shorten()
    batch_of = train.batch_of

    def batch_or_end(step: int, size: int = train.BATCH) -> torch.Tensor:
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch_of(step, size)

    train.batch_of = batch_or_end
    try:
        found = train.train_plan(book, num_steps, folder)
    except PenstockError as error:
        os._exit(error.exit_code)
    Path(losses, f"rank{rank}.json").write_text(json.dumps(found))


def _rank(rank: int, num_ranks: int, port: int, rest: Sequence[object]) -> None:
    os.environ |= environment(rank, num_ranks, port)
    train_under(*rest[:4], rank, rest[4] if rank == rest[5] else None)  # type: ignore[arg-type]


class Starts:
    """Starts of one job, each on so many processes, as a launcher makes them; they share what was imported."""

    def __init__(self, book: Path, folder: Path) -> None:
        self.book, self.folder = str(book), folder
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["examples.train"])

    def run(self, num_ranks: int, num_steps: int, dies_at: int | None = None, who: int = -1) -> list[int]:
        """Run to the end and return the exit code of each rank, negative for a signal."""
        port = free_port()
        rest = (self.book, str(self.folder / "job"), num_steps, str(self.folder), dies_at, who)
        ranks = [self._context.Process(target=_rank, args=(i, num_ranks, port, rest)) for i in range(num_ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(PATIENCE_S)
            process.kill()
        return [process.exitcode or 0 for process in ranks]

    def losses(self, rank: int) -> list[float]:
        """Return the losses of the last start that came to its end."""
        found: list[float] = json.loads((self.folder / f"rank{rank}.json").read_text())
        return found
