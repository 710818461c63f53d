"""Which input moves the step most: each link, device and stage alone, a share worse and better than it is.

All are simulated in one pass, for the orders stay as they are. Leaves out inputs that move together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from planner.report.whatif.plan_changes import PlanChanges
from planner.report.whatif.settings import Change, change_of


@dataclass(frozen=True, slots=True)
class Bar:
    """One input, and the step time with its value decreased and increased by a factor."""

    key: str
    smaller_ns: int
    larger_ns: int

    @property
    def range_ns(self) -> int:
        """How far the step moves."""
        return abs(self.larger_ns - self.smaller_ns)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"key": self.key, "smaller_ns": self.smaller_ns, "larger_ns": self.larger_ns, "range_ns": self.range_ns}


def inputs(changes: PlanChanges) -> Iterator[str]:
    """Yield the keys of all inputs of a plan's step time."""
    plan = changes.plan
    used = {plan.cluster.device_of(rank).name for rank in range(len(plan.orders))}
    for group in plan.cluster.groups if len(plan.orders) > 1 else ():
        yield f"link.{group.name}.bandwidth"
        if plan.cluster.measured(group).latency_ns:
            yield f"link.{group.name}.latency"
    yield from (f"device.{name}.speed" for name in sorted(used))
    yield from (f"stage.{index}.time" for index in range(len(plan.stages)))


def tornado(changes: PlanChanges, share: Fraction, fixed: tuple[Change, ...] = ()) -> list[Bar]:
    """Return a bar for each input, the one that moves the step most first.

    Parameters
    ----------
    changes : PlanChanges
    share : Fraction
        By which each input is smaller and larger: 1/10 for 10 %.
    fixed : tuple of Change
        What is otherwise all the time.
    """
    factors = [f"{float(factor)}x" for factor in (1 - share, 1 + share)]
    keys = list(inputs(changes))
    plans = [changes.under((*fixed, change_of(key, factor))).plan for key in keys for factor in factors]
    structure = changes.structure(changes.under(fixed).plan)
    found = structure.times_many([plan.costs() for plan in plans], [plan.speeds for plan in plans])
    steps = [times.step_time_ns for times in found]
    bars = [Bar(key, *pair) for key, *pair in zip(keys, steps[::2], steps[1::2], strict=True)]
    return sorted(bars, key=lambda bar: -bar.range_ns)
