"""Mutation testing: what could be wrong in the modules that all else is trusted for, with their tests none the wiser.

    python -m benchmarks.mutants [--mutants 1000] [--seed 0] [--only REGEX] [--workers 2] [--json]

Needs ``pip install -e '.[mutants]'`` (cosmic-ray), which alters one expression of a module at a time. The mutants of
the simulator's engine and bounds, the checker and the plan file's reader are drawn by a seed from all that there are;
each stands in a copy of the tree, and the tests of its area run against it: it survives where they pass. Survivors are
printed as they stand in the source. Leaves out unions in annotations, which say nothing to a test.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkItem

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("benchmarks", "costmodel", "examples", "executor", "planner", "simulator", "tests", "pyproject.toml")
ENGINE = ("engine", "engine_memory", "engine_nccl", "torch_csv", "trace", "engine_laws", "engine_agreement", "lowering",
          "overlapped_pairs")  # fmt: skip
CHECKER = ("golden", "checker", "checker_command", "wrong_bound", "host_time", "checker_replicas", "checker_second")
PLAN = ("golden", "files", "plan_orders", "show_diff", "checker", "one_replica", "planner_choices", "checker_replicas")
AREAS: Mapping[str, tuple[str, ...]] = {
    "simulator/engine": ENGINE,
    "simulator/bounds": ("bounds", "overlapped_pairs", "bounds_published", "search_bounds"),
    "planner/checker": CHECKER,
    "planner/plan": ("plan_says", *PLAN, "export", "schemas"),
}
"""Folder -> the tests that are to find what is wrong in it, the quickest first."""
ANNOTATIONS = "ReplaceBinaryOperator_BitOr_"
ENDLESS_S = 180.0
"""Tests that have not ended by then never do: the mutant is found."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one mutant: ``killed``, ``survived`` or ``incompetent``, and the change."""

    area: str
    outcome: str
    change: str


def main() -> int:
    """Run what the command line asks for; 1 where more than a tenth survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="REGEX", help="areas such as planner/checker")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    out = sys.stderr if args.json else sys.stdout
    found: list[Found] = []
    for one in tried(args):
        found.append(one)
        if one.outcome == "survived":
            print(one.change, file=out)
        print(f"{len(found)}: {one.area}: {one.outcome}", file=out, flush=True)
    for area in AREAS:
        rows = Counter(one.outcome for one in found if one.area == area)
        print(area, dict(rows), file=out)
    survived = sum(one.outcome == "survived" for one in found)
    print(f"{survived} of {len(found)} survive ({100 * survived / max(1, len(found)):.1f} %)", file=out)
    if args.json:
        print(json.dumps([{"area": one.area, "outcome": one.outcome, "change": one.change} for one in found]))
    return int(survived > len(found) / 10)


def tried(args: argparse.Namespace) -> Iterator[Found]:
    """Yield what comes of each mutant that the seed draws."""
    jobs = [(area, item) for area in AREAS if re.search(args.only, area) for item in mutants(area)]
    jobs = Random(args.seed).sample(jobs, min(args.mutants, len(jobs)))  # noqa: S311 - no secrets here
    with TemporaryDirectory() as folder, Pool(args.workers, _enter_copy, (folder,)) as pool:
        yield from pool.imap_unordered(_tried, jobs)


def mutants(area: str) -> list[WorkItem]:
    """Return all mutants of an area, in an order that does not change."""
    os.chdir(ROOT)
    with TemporaryDirectory() as folder, use_db(f"{folder}/work.sqlite", WorkDB.Mode.create) as work:
        init(sorted(Path(area).glob("*.py")), work, {})
        items = [item for item in work.work_items if ANNOTATIONS not in item.mutations[0].operator_name]
    return sorted(items, key=_place)


def _place(item: WorkItem) -> tuple[str, str, int]:
    mutation = item.mutations[0]
    return str(mutation.module_path), mutation.operator_name, mutation.occurrence


def _enter_copy(folder: str) -> None:
    """Give this worker a tree of its own, whose compiled files go by what is in their sources, not by their times."""
    home = Path(folder) / str(os.getpid())
    for name in COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, home / name)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(home)], check=True
    )
    os.chdir(home)
    os.environ["PYTHONPATH"] = str(home)


def _tried(job: tuple[str, WorkItem]) -> Found:
    area, item = job
    result = mutate_and_test(item.mutations, _command(AREAS[area]), ENDLESS_S)
    return Found(area, str(result.test_outcome and result.test_outcome.value), result.diff or str(result.output))


def _command(modules: Sequence[str]) -> str:
    files = " ".join(str(_test_file(name)) for name in modules)
    return f"{sys.executable} -m pytest -x -q -p no:cacheprovider -p no:xdist {files}"


def _test_file(name: str) -> Path:
    (found,) = ROOT.glob(f"tests/**/test_{name}.py")
    return found.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
