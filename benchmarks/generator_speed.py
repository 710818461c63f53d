"""How long each schedule of the catalogue takes to make, at 32 ranks and 256 micro-batches by default.

python -m benchmarks.generator_speed [--ranks P] [--microbatches M] [--json]
"""

import argparse
import json
import sys
import time

from simulator.schedules import SCHEDULES, build_schedule
from simulator.uniform import share_bytes, uniform_costs

CHUNKS = {"loop": 4, "graph": 2, "line": 1, "wave": 2, "two-way": 1}
"""Stages a rank by placement; with several, a graph schedule has to simulate."""


def seconds(name: str, ranks: int, microbatches: int) -> float:
    """Time one build; the synthesis gets the memory of ZB-1.5p, where it searches longest."""
    chunks = CHUNKS[SCHEDULES[name].placement]
    costs = uniform_costs(ranks, chunks, 11347, 11248, 8132, 377, placement=SCHEDULES[name].placement)
    begin = time.perf_counter()
    build_schedule(name, costs, microbatches, memory_limit_bytes=ranks * share_bytes(chunks) * 3 // 2)
    return time.perf_counter() - begin


def main() -> int:
    """Time every schedule; exit 1 if one takes 2 s or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    taken = {name: seconds(name, args.ranks, args.microbatches) for name in SCHEDULES}
    if args.json:
        print(json.dumps({"rows": [{"schedule": name, "seconds": value} for name, value in taken.items()]}))
    for name, value in taken.items() if not args.json else ():
        print(f"{name}: {value:.3f} s")
    return int(max(taken.values()) >= 2)


if __name__ == "__main__":
    sys.exit(main())
