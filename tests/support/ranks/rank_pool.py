"""Real ranks for tests: processes in one gloo world that stay alive and run one job after the other."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_context() -> Any:
    """Processes that inherit torch and the captures of the test models instead of making them anew."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.ranks.executor_captures"])
    return context


def environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _work(rank: int, num_ranks: int, port: int, jobs: Connection) -> None:
    os.environ |= environment(rank, num_ranks, port)
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    while (job := jobs.recv()) is not None:
        function, arguments = job
        try:
            jobs.send((True, function(**arguments)))
        except BaseException as error:  # the parent raises it
            jobs.send((False, "".join(traceback.format_exception(error))))
    torch.distributed.destroy_process_group()


class RankPool:
    """`run(job, ...)` calls a module's function on every rank and returns what each returned.

    A job that fails on any rank ends all of them; the next job gets new ones. `context` makes the processes; by default
    they have the captures of the test models.
    """

    def __init__(self, num_ranks: int, context: Any = None) -> None:
        self.num_ranks, self.context = num_ranks, context
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []

    def start(self) -> None:
        context = self.context or process_context()
        port = free_port()
        for rank in range(self.num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, self.num_ranks, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers: dict[int, Any] = {}
        while len(answers) < self.num_ranks:
            ready = wait([pipe for rank, pipe in enumerate(self.pipes) if rank not in answers], 240)
            problem = "" if ready else f"only the ranks {sorted(answers)} answer"
            for pipe in ready:
                rank = self.pipes.index(pipe)
                try:
                    ok, answers[rank] = pipe.recv()
                except EOFError:
                    ok, answers[rank] = False, f"rank {rank} has died"
                problem = problem if ok else f"{problem}{answers[rank]}"
            if problem:
                self.close()
                raise AssertionError(problem)
        return [answers[rank] for rank in range(self.num_ranks)]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                with suppress(OSError):
                    pipe.send(None)
        for process in self.processes:
            process.join(5)
            process.kill()
        self.pipes, self.processes = [], []
