"""What the commands do, for a notebook or a program: describe or measure, plan, compare, judge; results have tables.

    from planner import Problem, compare_plans, make_plan, model

    answer = make_plan(Problem(model("llama3-8b"), None, num_devices=64, global_batch=512))
    answer.table()

Leaves out reading and writing files, whose functions `planner` offers next to these.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.architectures.command import DEFAULT_DEVICE, make
from costmodel.calibration import Calibration, published
from costmodel.model.profile import Profile
from planner.answer.decide import find
from planner.answer.held_memory import FixedPlans
from planner.answer.memory_table import MemoryTable
from planner.checker import check_plan
from planner.plan import Plan
from planner.question.problem import Problem, Report
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.summary.answer import PlanAnswer

if TYPE_CHECKING:
    from pandas import DataFrame


def model(
    name: str,
    device: str = DEFAULT_DEVICE,
    microbatch_sizes: Sequence[int] = (1, 2, 4),
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
