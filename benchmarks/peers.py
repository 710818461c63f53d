"""Other planners' instances under their own objectives: our value against the best known one, and the time to a proof.

    python -m benchmarks.peers [--instances FOLDER] [--time-limit 120]

Reads `best_known.csv` and the instances beside it, solves each with two cores and prints the ratio of our objective to
the best known, status, seconds by the wall and of CPU. Leaves out what a peer's planner takes on this machine: the
file's CPU seconds are its authors'.
"""

import argparse
import csv
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peer_problems.answer import OPTIMAL, PeerAnswer
from benchmarks.peer_problems.contiguous_search import solve_contiguous
from benchmarks.peer_problems.pipedream import solve_pipedream
from benchmarks.peer_problems.piper import PiperSetting, solve_piper
from benchmarks.peer_problems.readers.dnn_partitioning import read_dnn_partitioning
from benchmarks.peer_problems.readers.pipedream import read_pipedream
from benchmarks.peer_problems.readers.piper import read_piper

DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data" / "instances"
CLOSE = 1e-6
GIB = 2**30


def solve(folder: Path, row: Mapping[str, str], seconds: float) -> PeerAnswer:
    """Solve the instance of a row of `best_known.csv` in its setting."""
    kind, name, settings, devices = row["format"], row["instance"], row["settings"], int(row["devices"])
    if kind == "dnn-partitioning":
        latencies = read_dnn_partitioning(folder / kind / f"{name}.json")
        return solve_contiguous(latencies, devices, latencies.memory_bytes, seconds)
    if kind == "pipedream":
        layers = read_pipedream(folder / kind / f"{name}_graph.txt")
        return solve_pipedream(layers, devices, 1e9, replicate="replication" in settings, seconds=seconds)
    found = dict(re.findall(r"(memory|N=|bandwidth) ?(\d+)", settings))
    alone = "no DP" in settings
    setting = PiperSetting(
        devices, int(found["memory"]) * GIB, float(found["bandwidth"]), int(found["N="]), not alone, not alone
    )
    return solve_piper(read_piper(folder / kind / f"{name}.json"), setting, seconds)


def main() -> int:
    """Print a row for each instance; exit 1 where one is above the best known value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=Path, default=DEFAULT, metavar="FOLDER", help="holds best_known.csv")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not (args.instances / "best_known.csv").exists():
        print(f"{args.instances / 'best_known.csv'} is not there: --instances names the folder", file=sys.stderr)
        return 3
    rows: list[dict[str, object]] = []
    with (args.instances / "best_known.csv").open() as file:
        for row in csv.DictReader(file):
            wall, cpu = time.perf_counter(), time.process_time()
            found = solve(args.instances, row, args.time_limit)
            ratio = found.objective / float(row["best_known"]) if found.objective else float("inf")
            rows.append(
                {
                    "instance": f"{row['format']} {row['instance']} on {row['devices']}",
                    "objective": found.objective,
                    "ratio": ratio,
                    "status": found.status,
                    "seconds": round(time.perf_counter() - wall, 2),
                    "cpu_seconds": round(time.process_time() - cpu, 2),
                    "peer_cpu_seconds": float(row["peer_cpu_seconds"]),
                }
            )
            if not args.json:
                print("  ".join(f"{value}" for value in rows[-1].values()), flush=True)
    worse = sum(float(str(row["ratio"])) > 1 + CLOSE for row in rows)
    proved = sum(row["status"] == OPTIMAL for row in rows)
    print(
        json.dumps({"rows": rows, "worse": worse, "proved": proved})
        if args.json
        else f"{proved} of {len(rows)} proved, {worse} worse"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
