"""Ranks that end in different ways, each through the interpreter's own end.

``python -m tests.support.ranks.ending_ranks`` prints one line a way: its name and the exit code of each rank, negative
for a signal.
"""

import os
import sys
from contextlib import suppress

import torch
import torch.distributed as dist

from executor import Pipeline
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import environment, free_port

NUM_RANKS = 2
kept: list[object] = []


def _pipeline() -> Pipeline:
    plan = jobs.make_plan("tied_gpt", num_stages=NUM_RANKS)
    pipe = Pipeline(plan, jobs.captured("tied_gpt"))
    batch = jobs.whole_batch("tied_gpt", plan)
    pipe.worker.loader.load(batch.kwargs or batch.args, batch.targets)
    kept.append(pipe)  # as a module's variable, until the interpreter's end
    return pipe


def _threads() -> int:
    """Count this process's threads that run collectives."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError), open(f"/proc/self/task/{task}/comm") as file:  # it may end meanwhile
            names.append(file.read())
    return sum(name.startswith("pt_gloo") for name in names)


def closed(rank: int) -> int:
    """Ends with the number of threads that are left of the groups."""
    with _pipeline() as pipe:
        pipe.step()
        assert _threads() > 0
    return _threads()


def closed_in_a_world_of_the_users(rank: int) -> int:
    dist.init_process_group("gloo")
    with _pipeline() as pipe:
        pipe.step()
    dist.destroy_process_group()
    return _threads()


def never_closed(rank: int) -> int:
    _pipeline().step()
    dist.barrier()
    return 0


def failed_with_a_sum_in_flight(rank: int) -> int:
    with _pipeline() as pipe:
        pipe.step()
        if rank == 0:
            kept.append(dist.all_reduce(torch.zeros(1000), async_op=True))
            raise RuntimeError("the user's own")
        pipe.step()
    return 0


def failed_and_caught(rank: int) -> int:
    try:
        return failed_with_a_sum_in_flight(rank)
    except RuntimeError:
        return 0


WAYS = (closed, closed_in_a_world_of_the_users, never_closed, failed_with_a_sum_in_flight, failed_and_caught)


def main() -> None:
    torch.set_num_threads(1)
    jobs.captured("tied_gpt")
    for way in WAYS:
        port, ranks = free_port(), {}
        for rank in range(NUM_RANKS):
            pid = os.fork()
            if pid == 0:
                os.environ |= environment(rank, NUM_RANKS, port)
                sys.exit(way(rank))
            ranks[pid] = rank
        codes = {}
        for _ in range(NUM_RANKS):
            pid, status = os.wait()
            codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
        print(way.__name__, *(codes[rank] for rank in range(NUM_RANKS)), flush=True)


if __name__ == "__main__":
    main()
