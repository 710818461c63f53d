"""What a plan costs in money and days: a step, a billion tokens, and a run of as many tokens as were asked for.

Leaves out what a run loses to restarts, checkpoints and evaluation.
"""

from dataclasses import asdict, dataclass
from math import ceil

from planner.plan import Plan
from planner.plan.provenance import of_a_sample
from planner.plan.rung import NS_PER_HOUR
from planner.question.prices import Prices
from planner.report.summary.text import amount, money

BILLION, NS_PER_DAY = 10**9, 24 * NS_PER_HOUR


@dataclass(frozen=True, slots=True)
class RunTarget:
    """What a run is to come to; 0 for what was not said.

    Attributes
    ----------
    tokens : int
    deadline_days, budget : float
    """

    tokens: int = 0
    deadline_days: float = 0.0
    budget: float = 0.0


@dataclass(frozen=True, slots=True)
class RunCost:
    """Money of a step, of a billion tokens and of the run, its days, and where prices are from.

    None for what is not known: money without prices, tokens of samples that have none, a run of which nothing was said.
    """

    per_step: float | None
    per_billion_tokens: float | None
    run: float | None
    days: float | None
    price_source: str | None
    price_date: str | None
    meets_deadline: bool | None
    within_budget: bool | None

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return asdict(self)


def run_cost(plan: Plan, target: RunTarget, prices: Prices | None) -> RunCost | None:
    """Return what a plan costs; None where neither a price nor tokens are said."""
    hourly = [plan.cluster.device_of(rank).price_per_hour for rank in range(len(plan.orders))]
    if not (target.tokens or all(hourly)):
        return None
    step_ns, tokens = plan.prediction.step_time_ns, plan.batch.global_size * of_a_sample(plan, "tokens")
    per_step = sum(hourly) * step_ns / NS_PER_HOUR if all(hourly) else None
    steps = ceil(target.tokens / tokens) if tokens and target.tokens else None
    days = steps * step_ns / NS_PER_DAY if steps else None
    run = per_step * steps if per_step is not None and steps else None
    known = prices if prices and per_step is not None else None
    return RunCost(
        per_step,
        per_step * BILLION / tokens if per_step is not None and tokens else None,
        run,
        days,
        (known.source if known else "the cluster file") if per_step is not None else None,
        known.date or None if known else None,
        days <= target.deadline_days if days is not None and target.deadline_days else None,
        run <= target.budget if run is not None and target.budget else None,
    )


def cost_lines(cost: RunCost | None, target: RunTarget) -> list[str]:
    """Say what a step, a billion tokens and the run cost, and whether that is what was asked for."""
    if cost is None:
        return []
    told = []
    if cost.per_step is not None:
        each = f", {money(cost.per_billion_tokens)} for a billion tokens" if cost.per_billion_tokens is not None else ""
        dated = f", {cost.price_date}" if cost.price_date else ""
        told.append(f"costs        {money(cost.per_step)} a step{each} (prices: {cost.price_source}{dated})")
    if target.tokens and cost.days is None:
        told.append("a run        of tokens: not known, for the model's samples are not made of tokens")
    elif cost.days is not None:
        run = f" and {money(cost.run)}" if cost.run is not None else ""
        told.append(
            f"a run        of {amount(target.tokens)} tokens: {days_said(cost.days)}{run}{_asked(cost, target)}"
        )
    return told


def days_said(days: float) -> str:
    """Write days for people."""
    return f"{days:.{0 if days >= 100 else 1 if days >= 1 else 3}f} days"


def _asked(cost: RunCost, target: RunTarget) -> str:
    """Say whether the deadline and the budget are kept, where they were asked for."""
    parts = []
    if cost.meets_deadline is not None:
        verb = "within" if cost.meets_deadline else "beyond"
        parts.append(f"{verb} the deadline of {days_said(target.deadline_days)}")
    if cost.within_budget is not None:
        parts.append(f"{'within' if cost.within_budget else 'beyond'} the budget of {money(target.budget)}")
    return f": {' and '.join(parts)}" if parts else ""
