"""Recipes that others published with their throughput, beside what the default finds for the same job.

    python -m benchmarks.recipes [--only REGEX] [--seconds 10] [--most N] [-o FILE.jsonl]

A question is one model, device, number of devices, batch, sequence, precision and trainer; of its published
configurations the one that is fastest by our price is the recipe. Ours is what `penstock plan` finds with every choice
open, in the same trainer's habits. `ratio` is our best step over the recipe's by our price: above 1 the recipe is
ahead, and the command ends with exit 1. `in_interval` says whether the measured step lies where four of five should.
The tables do not tell what a recipe runs again: one that does not fit without is priced with the least recompute that
fits, and whether it fits then is said. Recipes that cannot be priced are skipped and counted. Leaves out schedules that
a recipe runs and no search tries.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.accuracy.tables import GIVEN, read
from benchmarks.default_plan import done_before
from benchmarks.support.kept_rows import add_output, kept
from benchmarks.support.published_data import published_data
from costmodel.calibration import published
from costmodel.errors import PenstockError
from planner import Effort, Problem, Space, make_plan
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predicted, Predictor
from planner.plan.fitting import DOES_NOT_FIT
from planner.question.problem import AUTO

LEAST_DEVICES = 8
SIZES = (1, 2, 4, 8)
AHEAD = 1.0005
"""A recipe by less is not ahead: steps are whole nanoseconds, and a fixed job's layers may be cut otherwise."""


def questions() -> dict[tuple[object, ...], list[MeasuredJob]]:
    """Return the published jobs that can be described, by what they answer."""
    found: dict[tuple[object, ...], list[MeasuredJob]] = {}
    for name in GIVEN:
        for row in read(published_data(name)):
            job = row.job
            if isinstance(job, MeasuredJob) and job.step_ns and job.num_devices >= LEAST_DEVICES and not job.cluster:
                asked = (job.model, job.device, job.num_devices, job.batch, job.sequence, job.precision, job.trainer)
                found.setdefault((*asked, job.optimizer, job.network_gbs), []).append(job)
    return found


def free(job: MeasuredJob, seconds: float) -> Problem:
    """Return a job's question with every choice open."""
    calibration = published()
    fixed = job.problem(job.profile(calibration, SIZES), calibration)
    return replace(fixed, microbatch_size=None, schedule=AUTO, space=Space(), effort=Effort(seconds))


def row(jobs: Sequence[MeasuredJob], seconds: float) -> dict[str, Any]:
    """Return one question's row: the recipe that we price as the fastest, and ours."""
    predictor = Predictor()
    predicted = [_that_fits(job, predictor) for job in jobs]
    first = jobs[0]
    case = f"{first.model} on {first.num_devices} {first.device} {first.precision}, batch {first.batch}"
    priced = [pair for pair in predicted if not pair[1].why_not]
    if not priced:
        return {"case": case, "why_not": predicted[0][1].why_not}
    job, recipe = min(priced, key=lambda pair: pair[1].step_ns)
    try:
        search = make_plan(free(job, seconds)).plan.search
    except PenstockError as error:
        return {"case": case, "why_not": f"no plan: {error}"}
    return {
        "case": case,
        "source": job.source,
        "recipe": said(job),
        "recipe_ns": recipe.step_ns,
        "recipe_fits": recipe.fits,
        "best_step_time_ns": search.best_step_time_ns,
        "ratio": search.best_step_time_ns / recipe.step_ns,
        "measured_ms": job.step_ns / 1e6,
        "in_interval": is_within(recipe),
    }


def _that_fits(job: MeasuredJob, predictor: Predictor) -> tuple[MeasuredJob, Predicted]:
    """Return a job as it is told, or with the least recompute with which it fits, and its price."""
    told = job, predictor.all([job])[0]
    if told[1].fits != DOES_NOT_FIT or job.space.recompute != "none":
        return told
    for recompute in ("selective", "full"):
        again = replace(job, space=replace(job.space, recompute=recompute))
        found = predictor.all([again])[0]
        if not found.why_not and found.fits != DOES_NOT_FIT:
            return again, found
    return told


def said(job: MeasuredJob) -> str:
    """Write the degrees of a job."""
    known = {name: value for name, value in job.space.to_json().items() if value not in (1, None, False, "none")}
    return ", ".join([*(f"{name} {value}" for name, value in known.items()), f"micro-batches of {job.microbatch_size}"])


def is_within(recipe: Predicted) -> bool | None:
    """Whether the measured step lies in the interval of the predicted one; None where that is not known."""
    return recipe.interval_ns[0] <= recipe.job.step_ns <= recipe.interval_ns[1] if recipe.interval_ns else None


def rows(groups: Sequence[Sequence[MeasuredJob]], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each question."""
    for jobs in groups:
        yield row(jobs, seconds)


def main() -> int:
    """Print the table; exit 1 where a recipe is ahead by our price."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="'source: model on device' that match")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each search (10)")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="questions at most, evenly drawn (all)")
    add_output(parser)
    args = parser.parse_args()
    groups = [
        jobs for key, jobs in questions().items() if re.search(args.only, f"{jobs[0].source}: {key[0]} on {key[1]}")
    ]
    groups = groups[:: max(1, len(groups) // args.most)] if args.most else groups
    found: list[dict[str, Any]] = [*done_before(args.output)]
    for each in kept(rows(groups[len(found) :], args.seconds), args.output):
        found.append(each)
        _print(each)
    known = [each for each in found if "ratio" in each]
    ratios = [float(each["ratio"]) for each in known]
    inside = [bool(each["in_interval"]) for each in known if each["in_interval"] is not None]
    num_ahead = sum(ratio > AHEAD for ratio in ratios)
    print(
        f"{len(known)} recipes, {len(found) - len(known)} skipped; {num_ahead} ahead of ours; ours over theirs in the "
        f"mean {fmean(ratios or [1.0]):.4f}; {100 * fmean(inside or [0]):.1f} % of measured steps in their interval"
    )
    return int(num_ahead > 0)


def _print(each: dict[str, Any]) -> None:
    if "ratio" not in each:
        print(f"{each['case']}: skipped, {each['why_not']}", flush=True)
        return
    print(
        f"{each['case']:60.60s} {each['recipe_ns'] / 1e6:10.1f} ms {each['best_step_time_ns'] / 1e6:10.1f} ms "
        f"{each['ratio']:.4f} measured {each['measured_ms']:10.1f} {each['recipe_fits']:12s} {each['recipe']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
