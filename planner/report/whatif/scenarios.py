"""How a step spreads when nothing is quite as planned: seeded scenarios of jitter and of slow ranks.

Jitter multiplies the time of every action by a factor of its own, lognormal with mean 1 and the share given as its
standard deviation. Slowness makes a rank's actions longer all step long, by 1 + |a normal number| x the share: a rank
is never faster than planned. Orders stay as they are. Leaves out jitter of messages, sums and the optimizer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.stages.costs import Amount, Costs, StageCost
from planner.plan import Plan
from planner.report.why.what_if import TIMES
from simulator.engine import Structure

QUANTILES = (50, 90, 99)
AT_ONCE = 32
"""Scenarios that are simulated together, which bounds the memory that they take."""


@dataclass(frozen=True, slots=True)
class StepSpread:
    """Step times of all scenarios, in order of their drawing, with the planned one."""

    planned_ns: int
    steps_ns: tuple[int, ...]

    def quantile_ns(self, percent: int) -> int:
        """Return the least step time that this percentage of the scenarios does not exceed."""
        return sorted(self.steps_ns)[-(-percent * len(self.steps_ns) // 100) - 1]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "planned_ns": self.planned_ns,
            "mean_ns": round(sum(self.steps_ns) / len(self.steps_ns)),
            **{f"p{percent}_ns": self.quantile_ns(percent) for percent in QUANTILES},
            "largest_ns": max(self.steps_ns),
            "count": len(self.steps_ns),
        }


def scenarios(plan: Plan, structure: Structure, count: int, seed: int, jitter: float, slowness: float) -> StepSpread:
    """Simulate a plan under a number of scenarios; the same seed gives the same ones."""
    costs = plan.costs()
    planned_ns = structure.times(costs, plan.speeds).step_time_ns
    drawn, steps = _drawn(plan, costs, count, seed, jitter, slowness), list[int]()
    for first in range(0, count, AT_ONCE):
        rows = [next(drawn) for _ in range(min(AT_ONCE, count - first))]
        found = structure.times_many([row for row, _ in rows], [speeds for _, speeds in rows])
        steps += [times.step_time_ns for times in found]
    return StepSpread(planned_ns, tuple(steps))


def _drawn(
    plan: Plan, costs: Costs, count: int, seed: int, jitter: float, slowness: float
) -> Iterator[tuple[Costs, Sequence[float]]]:
    generator = np.random.default_rng(seed)
    sigma = float(np.sqrt(np.log1p(jitter**2)))
    for _ in range(count):
        slower = 1 + np.abs(generator.standard_normal(len(plan.speeds))) * slowness
        speeds = [speed / float(factor) for speed, factor in zip(plan.speeds, slower, strict=True)]
        stages = costs.stages
        if jitter:
            groups = [plan.batch.num_microbatches // multiple for multiple in costs.multiples]
            stages = tuple(_noisy(*pair, sigma, generator) for pair in zip(costs.stages, groups, strict=True))
        yield replace(costs, stages=stages), speeds


def _noisy(stage: StageCost, num_actions: int, sigma: float, generator: np.random.Generator) -> StageCost:
    def noisy(amount: Amount) -> Amount:
        size = num_actions if isinstance(amount, int) else len(amount)
        factors = generator.lognormal(-(sigma**2) / 2, sigma, size)
        found: list[int] = np.rint(np.asarray(amount) * factors).astype(np.int64).tolist()
        return tuple(found)

    return replace(stage, **{name: noisy(getattr(stage, name)) for name in TIMES})  # type: ignore[arg-type]
