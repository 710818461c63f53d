"""By what compute slows while a sum over all ranks is under way.

Rounds of matrix products are timed by turns alone and during an all-reduce that takes longer than they do: of a GPU by
events of its stream. Leaves out how much longer the sum takes for it.
"""

import time
from statistics import median

import torch
import torch.distributed as dist

from costmodel.capture.clock import clock_for

TURNS = 9
SUM_BYTES = {"cpu": 2**26, "cuda": 2**29}
WIDTH = {"cpu": 256, "cuda": 4096}
SHARE = 0.5
"""Of the sum's time that a round of products takes, so that it ends first."""


def slowdown(dtype: torch.dtype, device: str) -> float:
    """Return compute's time during an all-reduce against its time alone, at least 1; collective over all ranks."""
    clock = clock_for(torch.device(device), 2 if device == "cpu" else 1)
    values = torch.zeros(SUM_BYTES[device] // dtype.itemsize, dtype=dtype, device=device)
    matrix = torch.zeros(WIDTH[device], WIDTH[device], dtype=dtype, device=device)

    def compute(num_products: int) -> float:
        start = clock.mark()
        for _ in range(num_products):
            torch.mm(matrix, matrix)
        end = clock.mark()
        clock.wait()
        return float(clock.span_ns(start, end))

    def sum_ns() -> float:
        dist.barrier()
        start = time.perf_counter_ns()
        dist.all_reduce(values)
        clock.wait()
        return float(time.perf_counter_ns() - start)

    compute(2), sum_ns()
    counted = torch.tensor([SHARE * sum_ns() * 10 / max(1.0, compute(10))], device=device)
    dist.broadcast(counted, 0)  # all ranks compute alike
    num_products = max(1, int(counted))
    alone, beside = [], []
    for _ in range(TURNS):
        dist.barrier()
        alone.append(compute(num_products))
        dist.barrier()
        work = dist.all_reduce(values, async_op=True)
        beside.append(compute(num_products))
        assert work is not None  # noqa: S101 - every rank is in the group
        work.wait()
        clock.wait()
    found = torch.tensor([median(beside) / median(alone)], device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)  # a stage waits for the slowest
    return max(1.0, round(float(found), 4))
