"""Drawn points of `benchmarks.default_plan` as whole commands: `penstock plan` answers as the library does.

    python -m benchmarks.default_commands [--points 100] [--workers 2] [--smoke] [--json]

Each point is a model on so many devices under a target with one way of its grid fixed, or nothing. It is planned in
this process and by the command from the profile's file, both under the same deterministic limit, and must come to the
same best time, step time and bound, or be refused by both. Where the clock ended either, as its backstop does on a busy
machine, what they found says nothing: such points are counted apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path
from random import Random

from benchmarks.default_plan import SAMPLES_A_DEVICE, Case, Fixed, Found, cases, corners, grid, profile_of, search
from costmodel.model.profile import write_profile
from planner import Effort

CLOCK = "time limit"
LIMIT = 0.02
"""Deterministic seconds of the solver: a search of its own, not much of one."""

Point = tuple[Case, Fixed]


def drawn(num_points: int) -> Iterator[tuple[str, list[Point]]]:
    """Yield the points of each model, drawn evenly from its cases."""
    dice = Random(0)  # noqa: S311 - no secrets here
    points: dict[str, list[Point]] = {}
    known = list(cases())
    for number in range(num_points):
        case = known[number * len(known) // num_points]
        ways: list[Fixed] = [{}, *corners(case.devices), *grid(case.devices)]
        points.setdefault(case.model, []).append((case, dice.choice(ways)))
    yield from points.items()


def differences(job: tuple[str, Sequence[Point]]) -> list[dict[str, object]]:
    """Plan a model's points both ways; return a row for each."""
    model, points = job
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        write_profile(path, profile_of(model))
        for case, fixed in points:
            found, answer = search(case, fixed, Effort(deterministic_limit=LIMIT))
            told, ended = commanded(path, case, fixed)
            own = [found.best_ns, found.step_ns, found.bound_ns]
            clock = CLOCK in (ended, answer and answer.plan.search.limited_by)
            rows.append({"point": f"{case} {found}".strip(), "library": own, "command": told, "same": own == told,
                         "clock": clock})  # fmt: skip
    return rows


def commanded(path: Path, case: Case, fixed: Fixed) -> tuple[list[int | None], str]:
    """Return best time, step time and bound of the command, and what ended it; nothing where it refuses."""
    flags = str(Found(fixed, None, None, None, 0.0)).split()
    command = [
        sys.executable, "-m", "planner", "plan", str(path), "--devices", str(case.devices), "--batch",
        str(SAMPLES_A_DEVICE * case.devices), "--target", case.target, "--deterministic-limit", str(LIMIT), "--json",
        "-o", str(path.with_name("plan.json")), *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [None, None, None], ""
    body = json.loads(done.stdout)
    return [body["best_step_time_ns"], body["step_time_ns"], body["lower_bound_ns"]], body["limited_by"]


def main() -> int:
    """Compare the points; exit 1 when any differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="two points of one small model")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    jobs = list(drawn(args.points))
    if args.smoke:
        small = Case("random:12:3", 4, "executor")
        jobs = [(small.model, [(small, {}), (small, {"data": 2, "zero": 1})])]
    rows: list[dict[str, object]] = []
    with Pool(min(args.workers, len(jobs))) as pool:
        for found in pool.imap_unordered(differences, jobs):
            rows += found
            if not args.json:
                for row in found:
                    kind = "same" if row["same"] else "clock" if row["clock"] else "DIFFERENT"
                    print(f"{kind:<9}", row["point"], row["library"], row["command"])
    counts = {"points": len(rows), "refused": sum(row["library"] == [None] * 3 for row in rows),
              "clock": sum(bool(row["clock"]) for row in rows),
              "different": sum(not row["same"] and not row["clock"] for row in rows)}  # fmt: skip
    print(json.dumps({**counts, "rows": rows} if args.json else counts))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
