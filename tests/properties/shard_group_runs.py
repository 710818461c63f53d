"""Shard groups run on eight ranks: gradients of one process, collectives and bytes as planned, and what is held."""

from typing import Any

from tests.support.ranks import parallel_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

MODEL = "tests.support.hugging_face_models:llama"
CASES: list[dict[str, Any]] = [
    {"num_stages": stages, "data": (8 // stages,) * stages, "zero": (zero,) * stages, "shard_group": group}
    for stages, group in ((1, 4), (1, 2), (2, 2))
    for zero in (1, 2, 3)
]
"""Groups of 4 and of 2 among eight replicas, and of 2 among the four of each of two stages."""


def failures(num_cases: int) -> list[str]:
    """Run so many of the cases, and return a line for each that is not exact or sends otherwise than planned."""
    found, pool = [], RankPool(8)
    try:
        for case in CASES[:num_cases]:
            options = {"model": MODEL, "num_microbatches": 16, **case}
            error = pool.run(jobs.errors, how="none", num_steps=2, **options)[0]["gradient"]
            if error > 1e-5:
                found.append(f"{case}: gradients are {error:.1e} off")
            for rows in pool.run(jobs.collectives, **options) if case["zero"][0] > 1 else ():
                found += [f"{case}: {counted}, planned {planned}" for counted, planned in rows if counted != planned]
    finally:
        pool.close()
    return found
