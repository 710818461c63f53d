"""How long ``penstock --help`` takes: median of 10 warm runs of the whole process.

python -m benchmarks.startup
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

RUNS = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    command = [os.path.join(os.path.dirname(sys.executable), "penstock"), "--help"]
    times = [_seconds(command) for _ in range(RUNS + 1)][1:]  # the first run warms the file cache
    answer = {
        "command": "penstock --help",
        "runs": RUNS,
        "median_ms": 1000 * statistics.median(times),
        "min_ms": 1000 * min(times),
        "max_ms": 1000 * max(times),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(answer) if as_json else "\n".join(f"{key:>14}: {value}" for key, value in answer.items()))


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
