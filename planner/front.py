"""What the commands do, for a notebook or a program: describe or measure, plan, compare, judge; results have tables.

A trainer that finds its plan by itself (`executor.adapters`) calls `find_plan`, which keeps plans between runs.

    from planner import Problem, compare_plans, make_plan, model

    answer = make_plan(Problem(model("llama3-8b"), None, num_devices=64, global_batch=512))
    answer.table()

Leaves out reading and writing files, whose functions `planner` offers next to these.
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.architectures.command import DEFAULT_DEVICE, make
from costmodel.calibration import Calibration, published
from costmodel.errors import UsageError
from costmodel.model.profile import Profile, read_profile, write_profile
from planner.answer.decide import find
from planner.answer.held_memory import FixedPlans
from planner.answer.memory_table import MemoryTable
from planner.candidate.make import profile_digest, version
from planner.checker import check_plan
from planner.plan import Plan, read_plan, write_plan
from planner.plan.rung import rung
from planner.question.effort import Effort
from planner.question.problem import Problem, Report
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.summary.answer import PlanAnswer
from planner.search.solvers.kernel_cache import take_lock
from planner.search.space.cache_folder import cache_folder, can_write

if TYPE_CHECKING:
    from pandas import DataFrame


def model(
    name: str,
    device: str = DEFAULT_DEVICE,
    microbatch_sizes: Sequence[int] = (),
    sequence: int = 0,
    precision: str = "",
) -> Profile:
    """Describe a model without running it, its times estimated on a catalogue device: what ``penstock model`` does.

    Parameters
    ----------
    name : str
        An id of the table of models, the path of a ``config.json``, ``module:function`` or ``zoo:NAME``.
    device : str
        Catalogue id, or the path of a file that describes a device.
    microbatch_sizes : sequence of int
        Samples of a micro-batch; by default 1, 2, 4, and up to 32 while a device holds what the model keeps of them.
    sequence : int
        Tokens of a sample; 0 for the model's own, at most 4096.
    precision : str
        Of training; empty for bf16, or for the types that a function's model is built in.
    """
    return make(name, device, tuple(microbatch_sizes), sequence, precision)[0]


def profile(name: str, **options: Any) -> Profile:
    """Measure a torch model operator by operator here: what ``penstock profile`` does, with no journal to go on from.

    Parameters
    ----------
    name : str
        ``module:function`` or ``zoo:NAME``.
    **options
        Fields of `costmodel.profiling.options.Options`: ``microbatch_sizes``, ``device``, ``dtype`` and so on.
    """
    from costmodel.profiling.dry import dry_profile
    from costmodel.profiling.options import Options
    from costmodel.profiling.run import profile as measured

    asked = Options(model=name, **options)
    if asked.dry_run:
        return dry_profile(asked, _say_nothing)
    with tempfile.TemporaryDirectory() as folder:
        return measured(asked, Path(folder) / "journal", False, _say_nothing)


def memory(
    profile: Profile, num_devices: int, *, batch: int = 0, microbatch_size: int = 1, **options: Any
) -> MemoryTable:
    """Say by strategy what each device holds of a model, and whether that fits: what ``penstock memory`` does.

    Parameters
    ----------
    profile : Profile
    num_devices : int
    batch : int
        Samples of a step; 0 for enough to fill pipelines.
    microbatch_size : int
    **options
        Fields of `Problem`: ``cluster``, ``optimizer``, ``precision``, ``trainer``, ``memory_margin_bytes``.
    """
    cluster = options.pop("cluster", None)
    return MemoryTable(FixedPlans(lambda _: profile, num_devices, batch, cluster, options), 0, microbatch_size)


def judge(runs: str | Path, by: Sequence[str] = ("source",), calibration: Calibration | None = None) -> "DataFrame":
    """Hold the prices of today against measured jobs, one row a group: what ``penstock fit --judge`` does.

    Parameters
    ----------
    runs : path
        CSV of measured jobs (`docs/calibration.md`).
    by : sequence of str
        Columns that make the groups.
    calibration : Calibration, optional
        In place of the published constants.
    """
    from pandas import DataFrame

    from planner.measured.judge import judge as judged
    from planner.measured.runs import rows_of_runs

    found = judged(rows_of_runs(runs), calibration or published(), tuple(by))["by"]
    return DataFrame.from_dict(dict(found) if isinstance(found, dict) else {}, orient="index")


def _say_nothing(_: str) -> None:
    """Take a line of progress for nobody."""


def make_plan(problem: Problem, progress: Report | None = None) -> PlanAnswer:
    """Plan, and have the independent checker look at what comes out: what ``penstock plan`` does.

    Takes and raises what `planner.search.planners.plan` does, and RuntimeError when the checker refuses the plan, which
    is a bug.
    """
    start = time.perf_counter()
    found = find(problem, progress)
    searched = found.record.to_json()
    problems = check_plan(found.plan, problem.profile.graph)
    if problems:
        raise RuntimeError(f"the checker refuses the plan, which was not written: {problems[0].message}")
    return PlanAnswer(found.plan, problem, time.perf_counter() - start, searched=searched)


SAME_WORK = Effort(time_limit_s=600.0, deterministic_limit=10.0)
"""By counted work, so that hosts that share no folder find the same plan; the clock is a backstop."""


def find_plan(
    name: str,
    num_devices: int,
    global_batch: int,
    *,
    device: str = DEFAULT_DEVICE,
    folder: str | Path | None = None,
    say: Report | None = None,
    **choices: Any,
) -> Plan:
    """Return the plan of a job: the first call describes (or measures) the model and plans, later ones read that.

    Processes of one host that call it together wait for the first of them, which says what it found.

    Parameters
    ----------
    name : str
        The model, as of `model`; to be measured, as of `profile`.
    num_devices, global_batch : int
    device : str
        Catalogue id to describe the model on; ``cpu`` or ``cuda`` measures it here.
    folder : path, optional
        Where plans and measured profiles are kept, by the fingerprint of the model, machines and choices; by default
        `plans` in the user's cache.
    say : callable, optional
        Takes the answer with its ladder, or where the plan was found; by default it is printed to stderr.
    **choices
        Fields of `Problem`: ``cluster``, ``target``, ``space`` and so on.

    Raises
    ------
    UsageError
        When nothing can be written to the folder that was named.
    """
    kept, say = _folder_of_plans(folder), say or _say_to_stderr
    with _alone_in(kept):
        known = (
            _measured_once(name, device, num_devices > 1, kept) if device in ("cpu", "cuda") else model(name, device)
        )
        problem = Problem(known, num_devices=num_devices, global_batch=global_batch,
                          **{"cluster": None, "effort": SAME_WORK, **choices})  # fmt: skip
        asked = (profile_digest(known), problem.machines, num_devices, global_batch, sorted(choices.items()), version())
        path = kept / f"{hashlib.sha256(repr(asked).encode()).hexdigest()[:32]}.plan.json"
        if path.exists():
            plan = read_plan(path)
            say(f"plan         {path}: {rung(plan)}, found by an earlier run")
            return plan
        answer = replace(make_plan(problem), path=str(path))
        write_plan(path, answer.plan)
        say(str(answer))
    return answer.plan


def _folder_of_plans(given: str | Path | None) -> Path:
    """Return the folder that was named, else the user's cache, or one for this process alone where there is none."""
    folder = Path(given) if given else cache_folder("plans")
    if folder is not None and can_write(folder):
        return folder
    if given:
        raise UsageError(f"{given}: no file can be written there, where plans are to be kept; name another folder")
    return Path(tempfile.mkdtemp(prefix="penstock-plans-"))


def _measured_once(name: str, device: str, links: bool, folder: Path) -> Profile:
    """Return the profile of a model (with links) on this machine, measured where the folder has none of its kind."""
    graph = profile(name, device=device, dry_run=True).graph
    path = folder / f"{graph.fingerprint[:32]}.{device}{'.links' * links}.profile.json"
    if not path.exists():
        write_profile(path, profile(name, device=device, links=links))
    return read_profile(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; where it cannot be locked, processes plan side by side, and write the same."""
    held = None
    with suppress(OSError):
        held = take_lock(folder, wait=True)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _say_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare_plans(
    plans: Mapping[str, Plan | PlanAnswer], measured: Mapping[str, str | Path] | None = None
) -> Comparison:
    """Put plans side by side: what ``penstock compare`` does.

    Parameters
    ----------
    plans : mapping of str to Plan or PlanAnswer
        By the names that rows and pictures give them.
    measured : mapping of str to path, optional
        Files of measured timelines (``--timeline`` of the executor), by the same names.
    """
    files = measured or {}
    return Comparison(
        tuple(
            ComparedPlan(name, found.plan if isinstance(found, PlanAnswer) else found, files.get(name))
            for name, found in plans.items()
        )
    )
