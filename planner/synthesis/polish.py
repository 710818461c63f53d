"""Orders of a small step made shorter, and proved, by CP-SAT in a process of its own with a hard deadline.

Begins with known orders and gives these back where the process finds nothing better, is lost or runs out of time.
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from simulator.schedules.jobs import Jobs, Sequences, jobs_to_json
from simulator.schedules.jobs_best import Pool
from simulator.schedules.jobs_times import queue_order, timed

MOST_JOBS = 700
"""Jobs of the largest step that is polished."""
GRACE_S = 0.3
"""What the process needs to end by itself."""


@dataclass(frozen=True, slots=True)
class Polished:
    """What came of it.

    Attributes
    ----------
    sequences : Sequences
    step_ns : int
    bound_ns : int
        No orders of these jobs take less, by what the solver proved.
    """

    sequences: Sequences
    step_ns: int
    bound_ns: int


def polished(jobs: Jobs, sequences: Sequences, least_ns: int, seconds: float, seed: int) -> Polished:
    """Return the best orders found within some seconds.

    Parameters
    ----------
    jobs : Jobs
    sequences : Sequences
        Known orders, within the memory of all ranks.
    least_ns : int
        A lower bound on every step.
    seconds : float
    seed : int
    """
    times = timed(jobs, sequences)
    assert times is not None  # noqa: S101 - known orders can be run
    known = Polished(sequences, times.step_ns, min(least_ns, times.step_ns))
    if times.step_ns <= least_ns or len(jobs.actions) > MOST_JOBS or seconds <= GRACE_S:
        return known
    request = {
        "jobs": jobs_to_json(jobs), "start_ns": times.start, "step_ns": times.step_ns, "least_ns": least_ns,
        "seconds": seconds - GRACE_S, "seed": seed,
    }  # fmt: skip
    pool, bound_ns = Pool(jobs, least_ns), known.bound_ns
    pool.add(sequences)
    place = {job: index for index, job in enumerate(queue_order(jobs))}
    for finding in _findings(request, seconds):
        if "bound_ns" in finding:
            bound_ns = max(bound_ns, finding["bound_ns"])
        else:
            pool.add(_sequences(jobs, finding["start_ns"], place))
    assert pool.best is not None  # noqa: S101 - the known orders are in it
    step_ns, found = pool.best
    return Polished(found, step_ns, min(bound_ns, step_ns))


def _sequences(jobs: Jobs, start_ns: list[int], place: dict[int, int]) -> Sequences:
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
