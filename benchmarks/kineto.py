"""Kineto traces of torch's own pipelining, imported and simulated, against their steps: two ranks, one thread each.

    python -m benchmarks.kineto [--schedules gpipe,1f1b,interleaved-1f1b] [--steps 12] [--json]

Each schedule trains a chain of layers in two processes under torch's profiler; ``penstock import kineto`` reads the two
traces. 1F1B is profiled with stacks, for its actions carry no marks. Nothing else should use the cores.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from examples.commands import penstock
from tests.support.ranks.kineto_jobs import SCHEDULES, traced
from tests.support.ranks.rank_pool import RankPool

MICROBATCHES, WIDTH = 8, 384


def main() -> None:
    """Trace, import and print one row a schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--steps", type=int, default=12, help="steps in a trace (12)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    pool = RankPool(2)
    rows = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for schedule in args.schedules.split(","):
                files = pool.run(
                    traced, schedule=schedule, folder=folder, microbatches=MICROBATCHES, num_steps=args.steps,
                    stacks=schedule == "1f1b", width=WIDTH,
                )  # fmt: skip
                found = penstock("import", "kineto", *files, "-o", Path(folder) / "profile.json")
                rows.append({"schedule": schedule, **{key: found[key] for key in KEPT}})
    finally:
        pool.close()
    answer = {"rows": rows, "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    print(json.dumps(answer) if args.json else "\n".join(map(_line, rows)))


KEPT = ("steps", "microbatches", "step_time_ns", "simulated_step_time_ns", "error_percent")


def _line(row: dict[str, object]) -> str:
    measured, simulated = (float(str(row[key])) / 1e6 for key in ("step_time_ns", "simulated_step_time_ns"))
    return f"{row['schedule']:<16}  {measured:.1f} ms, simulated {simulated:.1f} ms, {row['error_percent']:+.1f} %"


if __name__ == "__main__":
    main()
