"""What each part of the search earns: thirty fixed problems with all parts, and again without each of them.

    python -m benchmarks.portfolio -o out/portfolio.jsonl [--only REGEX] [--work 6] [--workers 2] [--whole] [--smoke]

Each row is one problem under counted work (`planner.search.turns`), so that it is the same on any machine: the best
step with all subsolvers of `planner.search.loop.PORTFOLIO`, what each brought, in how many pieces and CPU seconds, and
the best step without it. With ``--whole`` none is left out. The summary gives the priors of `priors.toml`
(mean gain as a logarithm, CPU seconds up to the last gain, and of one piece) and what a search without each part loses,
in the mean and at most. Rows are kept at once, and problems in the file are not asked again. Exit 1 where a part
earns below 0.1 % in the mean and below 1 % on every problem. Leaves out first plans and proofs, which nothing is tried
without.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from math import log
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.default_plan import done_before
from benchmarks.first_answer.cases import MIXED, SLOW, TYPICAL, Case
from benchmarks.gaps import MODELS as GAP_MODELS
from benchmarks.gaps import problem_of
from benchmarks.support.kept_rows import add_output, kept
from costmodel.architectures.command import make
from costmodel.machines.cluster import Cluster, read_cluster
from costmodel.model.profile import Profile
from planner import Effort, Problem
from planner.search.loop import PORTFOLIO, PortfolioSearch
from planner.search.turns import TurnRecord

MEAN_PERCENT, ONE_PERCENT = 0.1, 1.0
"""What a part has to earn in the mean, or on one problem."""
DETERMINISTIC_LIMIT, PATIENT_S = 1.0, 600.0
SIZES = (1, 2, 4, 8)
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Question:
    """A model on a number of devices, everything open; or one stage a rank with nothing else open (``cut``).

    `place` is one of `benchmarks.first_answer.cases`; a typical cluster where it is empty.
    """

    model: str
    devices: int
    batch: int
    cut: bool = False
    limit_gib: int | None = None
    place: str = TYPICAL

    @property
    def name(self) -> str:
        """What tells it from others."""
        memory = f", {self.limit_gib} GiB" if self.limit_gib else ""
        place = f", {self.place}" * bool(self.place)
        return f"{self.model} on {self.devices}{', cut' * self.cut}{memory}{place}"

    def problem(self) -> Problem:
        """Return the problem that is searched."""
        effort = Effort(PATIENT_S, DETERMINISTIC_LIMIT)
        if self.cut:
            known = next((model for model in GAP_MODELS if model.name == self.model), GAP_MODELS[0])
            profile = _profile(self.model, known.device, (1,), known.precision)
            return problem_of(known, profile, self.devices, PATIENT_S, deterministic_limit=DETERMINISTIC_LIMIT)
        limit = self.limit_gib * GIB if self.limit_gib else None
        case = Case(self.model, self.devices, self.batch, self.place)
        profile, *others = (_profile(self.model, device, SIZES, "bf16") for device in case.catalogue_ids)
        return Problem(
            profile, _cluster(case), self.devices, self.batch, memory_limit_bytes=limit, target="any", effort=effort,
            other_profiles=tuple(others),
        )  # fmt: skip


def _cluster(case: Case) -> Cluster | None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        path.write_text(case.cluster_text(), encoding="utf-8")
        return read_cluster(path) if case.place else None


QUESTIONS = (
    *(Question(model, 8, 64) for model in ("llama3-8b", "qwen3-30b-a3b", "nasnet", "zoo:dlrm", "zoo:mmt", "zoo:vlm")),
    *(Question(model, 8, 64) for model in ("zoo:unet3d", "zoo:inception", "random:200:2")),
    *(Question(model, 64, 512) for model in ("llama3-8b", "mixtral-8x7b", "gpt-oss-120b", "nasnet", "zoo:mmt")),
    Question("zoo:uno", 16, 128),
    Question("random:12:3", 4, 8),
    Question("llama3-8b", 16, 128, place=MIXED),
    *(Question(model, 16, 128, place=MIXED) for model in ("zoo:vlm", "zoo:unet3d")),
    Question("mixtral-8x7b", 64, 512, place=SLOW),
    Question("zoo:unet3d", 16, 64, place=SLOW),
    Question("llama3-8b", 8, 64, limit_gib=24),
    Question("zoo:vlm", 8, 64, limit_gib=16),
    Question("llama3-70b", 64, 1024),
    *(Question(model, 8, 32, cut=True) for model in ("nasnet", "zoo:mmt", "zoo:dlrm")),
    Question("zoo:mmt", 32, 128, cut=True),
    Question("random:400:31", 8, 32, cut=True),
    Question("random:700:32", 8, 32, cut=True),
)
"""Described language models and graphs: everything open, short of memory, on unlike devices, and one stage a rank."""


def answer(problem: Problem, without: str, work_s: float) -> tuple[int, list[TurnRecord]]:
    """Return the best step without a subsolver, ns (0 where nothing fits), and what the others brought."""
    table = tuple(solver for solver in PORTFOLIO if solver.name != without)
    search = PortfolioSearch(problem, None, table, work_s)
    outcome = search.run()
    best = outcome.pool.best
    return best.step_time_ns if best.fits else 0, search.turns


def row(question: Question, work_s: float, *, whole: bool) -> dict[str, Any]:
    """Return one problem's row."""
    problem, begin = question.problem(), time.perf_counter()
    best_ns, turns = answer(problem, "", work_s)
    names = {solver.name for solver in PORTFOLIO}
    brought = {
        each.solver.name: {
            "gain": each.gain, "pieces": each.pieces, "cpu_s": each.spent_s, "until_s": each.spent_until_gain_s,
        }
        for each in turns
        if each.pieces and each.solver.name in names
    }  # fmt: skip
    without = {} if whole else {name: answer(problem, name, work_s)[0] for name in brought}
    return {
        "problem": question.name,
        "best_step_time_ns": best_ns,
        "brought": brought,
        "without": without,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def rows(questions: Sequence[Question], work_s: float, workers: int, *, whole: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of problems, some at a time, those of one model in one process, which makes its profile once."""
    by_model: dict[str, list[Question]] = {}
    for question in questions:
        by_model.setdefault(question.model, []).append(question)
    with ProcessPoolExecutor(workers) as pool:
        done = [pool.submit(_some, group, work_s, whole) for group in by_model.values()]
        for each in as_completed(done):
            yield from each.result()


def _some(questions: Sequence[Question], work_s: float, whole: bool) -> list[dict[str, Any]]:
    return [row(question, work_s, whole=whole) for question in questions]


@lru_cache(maxsize=2)
def _profile(model: str, device: str, sizes: tuple[int, ...], precision: str) -> Profile:
    return make(model, device, list(sizes), precision=precision)[0]


def earned(found: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Return what a search without a part loses on each problem, in per cent."""
    return [
        100 * (each["without"].get(name, each["best_step_time_ns"]) / each["best_step_time_ns"] - 1)
        for each in found
        if each["best_step_time_ns"]
    ]


def summary(found: Sequence[Mapping[str, Any]]) -> int:
    """Print the priors and what each part earns; return how many earn nothing."""
    poor, tried_without = 0, any(each["without"] for each in found)
    print(
        f"{'part':28s} {'gain':>8s} {'until s':>8s} {'piece s':>8s} {'CPU s':>7s}   lost without: mean, most (per cent)"
    )
    for solver in PORTFOLIO:
        rows = [each["brought"][solver.name] for each in found if solver.name in each["brought"]]
        pieces, spent_s = sum(each["pieces"] for each in rows), sum(each["cpu_s"] for each in rows)
        gain = sum(each["gain"] for each in rows) / len(found)
        until_s = fmean([each["until_s"] for each in rows if each["gain"]] or [0.0])
        lost = earned(found, solver.name) if tried_without else [0.0]
        few = tried_without and solver.kind == "improve" and fmean(lost) < MEAN_PERCENT and max(lost) < ONE_PERCENT
        poor += few
        shown = f"{fmean(lost):7.3f} {max(lost):7.3f}" if tried_without else ""
        per = f"{gain:8.4f} {until_s:8.3f} {spent_s / max(1, pieces):8.4f} {spent_s / len(found):7.2f}"
        print(f"{solver.name:28s} {per}   {shown}{'  EARNS TOO LITTLE' * few}")
    mean = fmean(log(each["best_step_time_ns"]) for each in found if each["best_step_time_ns"])
    print(f"{len(found)} problems, mean logarithm of the best step {mean:.5f}")
    return poor


def main() -> int:
    """Ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="problems 'model on devices' that match")
    parser.add_argument("--work", type=float, default=6.0, metavar="S", help="counted CPU seconds of each search")
    parser.add_argument("--workers", type=int, default=2, help="problems at a time")
    parser.add_argument("--whole", action="store_true", help="leave no part out")
    parser.add_argument("--smoke", action="store_true", help="one small problem")
    add_output(parser)
    args = parser.parse_args()
    found = done_before(args.output)
    known = {each["problem"] for each in found}
    todo = [each for each in QUESTIONS if each.name not in known and re.search(args.only, each.name)]
    work_s, workers = (0.5, 1) if args.smoke else (args.work, args.workers)
    if args.smoke:
        todo = [Question("random:12:3", 4, 32)]
    for each in kept(rows(todo, work_s, workers, whole=args.whole), args.output):
        print(f"{each['problem']:32s} {each['best_step_time_ns'] / 1e6:12.3f} ms, {each['seconds']} s", flush=True)
        found.append(each)
    return int(summary(found) > 0)


if __name__ == "__main__":
    sys.exit(main())
