"""What two plans of one model do differently, from their files alone: what moved, figures, assumptions, machines.

Leaves out why (`penstock explain` of either) and pictures (`penstock compare`).
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property

from costmodel.codec import to_json
from costmodel.errors import DoesNotMatch
from costmodel.machines.cluster import CLUSTER
from costmodel.stages.costs import STAGE_COST
from planner.plan import Plan
from planner.report.comparison.machines import Pairs, flat, unlike
from planner.report.comparison.moved import Moved
from planner.report.summary.figures import SHARES, figures, told
from planner.report.summary.text import Table

MOST_SHOWN = 12
"""Differences between machines that people are told; the JSON has all."""


class PlanDifference:
    """Two plans of one model.

    Raises
    ------
    DoesNotMatch
        When they are of two models.
    """

    def __init__(self, old: Plan, new: Plan) -> None:
        operators = [{name for stage in plan.stages for name in stage.operators} for plan in (old, new)]
        if old.fingerprint != new.fingerprint or operators[0] != operators[1]:
            raise DoesNotMatch(
                f"the plans are of the models {old.model_name!r} (fingerprint {old.fingerprint[:12]}) and "
                f"{new.model_name!r} ({new.fingerprint[:12]}); give two plans of one; penstock compare "
                "takes any"
            )
        self.old, self.new = old, new
        self.moved = Moved(old, new)

    @cached_property
    def figures(self) -> Pairs:
        """Figures of both, whether they differ or not."""
        both = [figures(plan, _CALLED) for plan in (self.old, self.new)]
        return {name: (both[0][name], both[1][name]) for name in both[0]}

    @cached_property
    def assumptions(self) -> Pairs:
        """Assumptions that differ."""
        return unlike(*(to_json(plan.assumptions) for plan in (self.old, self.new)))

    @cached_property
    def cluster(self) -> Pairs:
        """What differs between the machines, by keys of the cluster file."""
        return unlike(*(dict(flat(CLUSTER.write(plan.cluster))) for plan in (self.old, self.new)))

    @cached_property
    def prices(self) -> Pairs:
        """What stages, messages and ranks take by the file, and who runs it, where stages are the same."""
        return {} if self.num_orders is None else unlike(*(dict(flat(_prices(plan))) for plan in (self.old, self.new)))

    @property
    def num_orders(self) -> int | None:
        """Ranks that do their actions in another order; None where the stages are others."""
        if self.moved.between or self.moved.changed:
            return None
        return sum(a != b for a, b in zip(self.old.orders, self.new.orders, strict=True))

    @property
    def same(self) -> bool:
        """Whether both say the same in everything that is looked at."""
        differ = any(a != b for a, b in self.figures.values())
        found = self.assumptions or self.cluster or self.prices
        return not (differ or found or self.num_orders is None or self.num_orders)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "same": self.same,
            "moved": self.moved.to_json(),
            "orders": self.num_orders,
            **{name: {key: list(pair) for key, pair in getattr(self, name).items()}
               for name in ("figures", "assumptions", "cluster", "prices")},
        }  # fmt: skip

    def text(self) -> Iterator[str | Table]:
        """Say it to people."""
        if self.same:
            yield "the plans do the same"
            return
        moved = self.moved.text()
        orders = f"; {self.num_orders} ranks do their actions in another order" if self.num_orders else ""
        yield f"moved        {moved}{orders}"
        for name in ("assumptions", "cluster", "prices"):
            pairs: Pairs = getattr(self, name)
            said = [f"{key} {_said(a)} to {_said(b)}" for key, (a, b) in pairs.items()]
            more = len(said) - MOST_SHOWN
            if said:
                yield f"{name:<12} {'; '.join(said[:MOST_SHOWN])}" + (f"; {more} more: see --json" if more > 0 else "")
        yield Table(("", "first", "second", "difference"), list(self._rows()))

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        for name, (a, b) in self.figures.items():
            yield _CALLED[name], told(name, a), told(name, b), _change(name, a, b)


_CALLED = {
    "step_time_ns": "step time",
    "samples_per_s": "samples/s",
    "bubble_ratio": "bubble",
    "peak_memory_bytes": "peak memory",
    "peak_memory_upper_bytes": "at most",
    "lower_bound_ns": "lower bound",
    "gap": "gap",
    "strategy": "strategy",
}


def _change(name: str, before: object, after: object) -> str:
    """Write by how much a figure changes: a share, in points where it is one itself."""
    if not isinstance(before, int | float) or not isinstance(after, int | float) or (not before and name not in SHARES):
        return "-"
    return f"{100 * (after - before):+.2f} points" if name in SHARES else f"{after / before - 1:+.2%}"


def _prices(plan: Plan) -> dict[str, object]:
    return {
        "stage": [{"index": i, **STAGE_COST.write(stage.cost)} for i, stage in enumerate(plan.stages)],
        "edge": [
            {"name": f"{e.source}-{e.target}", "bytes": e.size_bytes, "p2p_ns": e.p2p_ns, "gradient": e.gradient}
            for e in plan.edges
        ],
        "training": asdict(plan.training),
        "peak": [{"index": rank, "bytes": size} for rank, size in enumerate(plan.prediction.peak_memory_bytes)],
        "runs_on": list(plan.runs_on),
    }


def _said(value: object) -> str:
    return "nothing" if value in (None, "", [], {}) else str(value)
