"""Known orders made shorter in some seconds: by more local search, and where they are small by CP-SAT.

CP-SAT runs in a process of its own with a hard deadline. The known orders are given back where nothing better is found,
the process is lost or runs out of time, or what it finds is over the limit once the buffers of messages count.
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from costmodel.stages.costs import Costs
from simulator.schedule import Schedule
from simulator.schedules.job_shop import JobShop, Sequences, job_shop_of, job_shop_to_json
from simulator.schedules.job_shop_best import Found, better, improved
from simulator.schedules.job_shop_orders import excess_bytes
from simulator.schedules.job_shop_orders import least_ns as least
from simulator.schedules.job_shop_times import queue_order, starts
from simulator.schedules.kind import Request

MOST_JOBS = 700
"""Jobs of the largest step that is polished."""
TIMED_A_SECOND = 150_000
"""Jobs that local search times in a second, by no clock, so that equal input gives equal orders."""
MOST_MOVES = 3_000
"""Moves after which a local search seldom finds more."""
GRACE_S = 0.3
"""What the process needs to end by itself."""


@dataclass(frozen=True, slots=True)
class Polished:
    """What came of it.

    Attributes
    ----------
    schedule : Schedule
    bound_ns : int
        No orders of its family take less; 0 where nothing was proved.
    """

    schedule: Schedule
    bound_ns: int


def polished(schedule: Schedule, costs: Costs, limit_bytes: int | None, seconds: float, seed: int = 0) -> Polished:
    """Return the best orders found within some seconds.

    Parameters
    ----------
    schedule : Schedule
        Of split backwards alone, within the limit.
    costs : Costs
    limit_bytes : int or None
        Most bytes (static part included) that a rank may hold.
    seconds : float
    seed : int
    """
    request = Request(costs, schedule.graph, schedule.num_microbatches, memory_limit_bytes=limit_bytes)
    jobs, least_ns = (
        job_shop_of(costs, schedule.graph, schedule.num_microbatches, limit_bytes, split=True),
        least(request, split=True),
    )
    known = jobs.sequences(schedule.orders)
    start, best = time.monotonic(), better(jobs, None, known)
    if best is None or best[0] <= least_ns or seconds <= GRACE_S:  # None where messages alone fill the room
        return Polished(schedule, 0)
    num_parts = 2 if len(jobs.actions) <= MOST_JOBS else 1  # CP-SAT follows, and has as long
    work = min(seconds / num_parts * TIMED_A_SECOND, MOST_MOVES * len(jobs.actions))
    found = improved(jobs, best, least_ns, int(work), seed)
    best = _better(request, jobs, best, found[1])
    left = seconds - (time.monotonic() - start)
    if best[0] <= least_ns or len(jobs.actions) > MOST_JOBS or left <= GRACE_S:
        return Polished(replace(schedule, orders=jobs.orders(best[1])), 0)
    times = starts(jobs, best[1])
    assert times is not None  # noqa: S101 - it was timed before
    question = {
        "jobs": job_shop_to_json(jobs), "start_ns": times[1], "step_ns": times[0], "least_ns": least_ns,
        "seconds": left - GRACE_S, "seed": seed,
    }  # fmt: skip
    bound_ns = 0
    place = {job: index for index, job in enumerate(queue_order(jobs))}
    for finding in _findings(question, left):
        if "bound_ns" in finding:
            bound_ns = finding["bound_ns"]
        else:
            best = _better(request, jobs, best, _sequences(jobs, finding["start_ns"], place))
    return Polished(replace(schedule, orders=jobs.orders(best[1])), bound_ns)


def _better(request: Request, jobs: JobShop, best: Found, other: Sequences) -> Found:
    """Return the better of two orders; the other may turn out to wait on itself, or to need too much memory."""
    found = better(jobs, best, other)
    if found is None or found is best or any(excess_bytes(request, jobs.orders(other))):
        return best
    return found


def _sequences(jobs: JobShop, start_ns: list[int], place: dict[int, int]) -> Sequences:
    """Return the jobs of each rank by their starts; those that take no time before others."""
    key = lambda job: (start_ns[job], start_ns[job] + jobs.duration_ns[job], place[job])  # noqa: E731
    return tuple(tuple(sorted((job for queue in queues for job in queue), key=key)) for queues in jobs.queues)


def _findings(request: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """Return what the process told until it ended, or was ended."""
    until = time.monotonic() + seconds
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(  # this very interpreter and a module of ours
        [sys.executable, "-m", "planner.synthesis.solver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - asked for above
    assert process.stdout is not None  # noqa: S101 - asked for above
    deadline = threading.Timer(max(0.0, until - time.monotonic()), process.kill)
    deadline.start()
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()  # and it stays open: its end tells the process that this one is gone
        lines = process.stdout.read().split(b"\n")[:-1]  # a line that was cut short counts nothing
    except BrokenPipeError:
        lines = []
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()
    return [json.loads(line) for line in lines]
