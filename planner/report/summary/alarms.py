"""What of an answer should make its reader stop: an implausible time, a plan that only fits, one that nobody runs.

An alarm changes nothing about the plan. Leaves out what is wrong with a plan file (`planner.checker`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from planner.plan import Plan
from planner.plan.fitting import FITS, fitting
from planner.question.problem import Problem
from planner.report.summary.rates import mfu, mfu_causal
from planner.report.summary.text import percent, size

LEAST_SHARE, MOST_SHARE = 0.15, 0.70
"""Shares of the devices' dense peak between which jobs that train well lie."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One sentence for people, and its kind for programs."""

    kind: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Return the JSON object."""
        return asdict(self)


def alarms(problem: Problem, plan: Plan, searched: Mapping[str, object]) -> list[Alarm]:
    """Return the alarms of a plan that a search found.

    Parameters
    ----------
    problem : Problem
    plan : Plan
    searched : mapping
        `searched` of ``plan --json`` (`planner.search.state.record`); empty for a plan of which no search is known.
    """
    return [Alarm(kind, text) for kind, text in _found(problem, plan, searched)]


def is_impossible(plan: Plan) -> bool:
    """Whether a plan promises more than the devices' peak, which is a fault of ours."""
    share = mfu(plan)
    return share is not None and share > 1


def _found(problem: Problem, plan: Plan, searched: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if text := _share(plan):
        yield "share-of-peak", text
    if searched.get("only_fits"):
        yield (
            "only-fits",
            "the plan was found by looking for the least memory, after every usual shape had failed to fit: it fits, "
            "and there may be much faster ones; a longer --time-limit looks for them",
        )
    if text := _tight(problem, plan):
        yield "may-not-fit", text
    used = len(plan.orders)
    if used < problem.num_devices:
        yield "devices-idle", f"the plan uses {used} of {problem.num_devices} devices, the others stay idle"
    if text := _unseen(searched):
        yield "few-families", text
    if not plan.runs_on:
        yield (
            "runs-nowhere",
            "no trainer that is known here runs the plan as it is; --target NAME asks for one that a trainer runs",
        )


def _share(plan: Plan) -> str:
    """Say that the share of the devices' peak is implausible; nothing where it is not, or is not known."""
    share = mfu_causal(plan)
    if share is None or LEAST_SHARE <= share <= MOST_SHARE:
        return ""
    if is_impossible(plan):
        return f"the plan uses {percent(mfu(plan))} of the devices' peak, which cannot be: this is a bug of Penstock's"
    if share > MOST_SHARE:
        return (
            f"the plan uses {percent(share)} of the devices' peak, more than the {percent(MOST_SHARE)} that jobs "
            "reach: some price may be too low"
        )
    return (
        f"the plan uses {percent(share)} of the devices' peak, less than the {percent(LEAST_SHARE)} of jobs that train "
        "well: the batch may be too small for this number of devices, or the search has missed faster plans"
    )


def _tight(problem: Problem, plan: Plan) -> str:
    """Say on how many ranks the upper bound of memory is over the limit; nothing where it is on none."""
    uppers, margin, asked = (
        plan.prediction.peak_memory_upper_bytes,
        problem.memory_margin_bytes,
        problem.memory_limit_bytes,
    )
    devices = [plan.cluster.device_of(rank).memory_bytes for rank in range(len(uppers))]
    limits = [min(filter(None, (asked, size)), default=0) for size in devices]
    if fitting(plan.prediction.peak_memory_bytes, uppers, limits, margin) == FITS:
        return ""
    over = [(upper + margin - limit, limit) for upper, limit in zip(uppers, limits, strict=True) if limit]
    by, limit = max(over)
    free = f" and {size(margin)} that are to stay free" if margin else ""
    return (
        f"the plan may not fit: its memory is at most {size(limit + by - margin)} on the fullest rank, "
        f"with this{free} {size(by)} above the {size(limit)} there, and above the limit on "
        f"{sum(more > 0 for more, _ in over)} of {len(uppers)} ranks; --recompute, a deeper --zero, smaller "
        "micro-batches or more stages take less"
    )


def _unseen(searched: Mapping[str, object]) -> str:
    """Say that less than half of the families were seen; nothing where more were."""
    seen, every = searched.get("families_seen"), searched.get("families")
    if not isinstance(seen, int) or not isinstance(every, int) or 2 * seen >= every:
        return ""
    return (
        f"the search has seen {seen} of {every} families of plans before its limit; a longer --time-limit sees more, "
        "and flags that fix a choice leave fewer"
    )
