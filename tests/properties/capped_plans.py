"""Small models planned under a cap of 70 to 110 % of what their best plan really holds, and run: is the word right?

On a CPU memory is the tensors that are alive, so that the plan's sums are tried and no allocator; on a GPU torch's
allocator gets no more than the cap. A plan that is said to fit and does not is a failure, and so are too many refusals,
or doubts, where a plan is known to fit.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import NoPlanFits
from costmodel.profiling.options import Options
from costmodel.profiling.run import profile
from planner.answer.decide import plan
from planner.plan import Plan, write_plan
from planner.plan.fitting import DOES_NOT_FIT, FITS, MAY_NOT_FIT, fitting_of
from planner.question.effort import Effort
from planner.question.problem import Problem
from tests.support.ranks.live_tensors import peak_bytes
from tests.support.ranks.rank_pool import RankPool, process_context

MOST = {DOES_NOT_FIT: 0.05, MAY_NOT_FIT: 0.2}
"""The largest part of the cases in which a plan is known to fit that may get this word."""
LOWEST, HIGHEST, GOLDEN = 0.7, 1.1, 0.6180339887
BATCH, SIZES = 8, (1, 2)
COUNTED = Effort(60, deterministic_limit=0.2)


@dataclass(frozen=True, slots=True)
class CappedCase:
    """A model under a cap.

    Attributes
    ----------
    seed : int
    part : float
        The cap over what the plan without one held.
    word : str
    held : float
        What the plan under the cap held, over the cap; infinity where its device refused it, 0 without a plan.
    """

    seed: int
    part: float
    word: str
    held: float

    @property
    def is_known_to_fit(self) -> bool:
        """Whether some plan was seen to stay within the cap."""
        return self.part >= 1 or 0 < self.held <= 1

    def line(self) -> str:
        """Return the case for people."""
        return f"model {self.seed}, cap {self.part:.3f} of the peak: {self.word}, holds {self.held:.3f} of the cap"


def failures(num_cases: int) -> list[str]:
    """Return a line for each plan that fits in word alone, and one for each word that is too frequent."""
    return judged(list(cases(num_cases)))


def judged(found: Sequence[CappedCase]) -> list[str]:
    """Return what is wrong with cases."""
    lines = [each.line() for each in found if each.word == FITS and each.held > 1]
    fitting = [each for each in found if each.is_known_to_fit]
    for word, part in MOST.items():
        said = [each for each in fitting if each.word == word]
        if len(said) > part * len(fitting):
            lines.append(f"{len(said)} of {len(fitting)} that fit are said as {word}, at most {part:.0%} may be")
            lines += [f"  {each.line()}" for each in said]
    return lines


def cases(num_cases: int) -> Iterator[CappedCase]:
    """Yield the cases, one model after the other, on ranks that stay."""
    num_ranks = min(2, torch.cuda.device_count()) or 2
    pool = RankPool(num_ranks, _context())
    try:
        pool.start()  # while the first model is profiled
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(num_cases):
                yield _case(seed, num_ranks, pool, Path(folder, "plan.json"))
    finally:
        pool.close()


def _context() -> Any:
    context = process_context()
    context.set_forkserver_preload(["tests.support.ranks.live_tensors"])
    return context


def _case(seed: int, num_ranks: int, pool: RankPool, path: Path) -> CappedCase:
    model = f"tests.support.capped_models:model{seed}"
    on = "cuda" if torch.cuda.is_available() else "cpu"
    problem = Problem(
        profile(Options(model, SIZES, on, repeats=1, links=False)), None, num_ranks, BATCH, effort=COUNTED
    )
    held = partial(_held, pool, path, model)
    part = LOWEST + (HIGHEST - LOWEST) * (GOLDEN * (seed + 1) % 1)
    cap_bytes = int(part * held(plan(problem)))
    try:
        capped = plan(replace(problem, memory_limit_bytes=cap_bytes))
    except NoPlanFits:
        return CappedCase(seed, part, DOES_NOT_FIT, 0.0)
    return CappedCase(seed, part, fitting_of(capped), held(capped, cap_bytes) / cap_bytes)


def _held(pool: RankPool, path: Path, model: str, made: Plan, cap_bytes: int = 0) -> float:
    """Run a plan and return what its fullest rank held; infinity where the cap ended it."""
    write_plan(path, made)
    try:
        return max(pool.run(peak_bytes, plan=str(path), model=model, cap_bytes=cap_bytes))
    except AssertionError as error:
        if "OutOfMemory" not in str(error) and "has died" not in str(error):
            raise
        return math.inf
