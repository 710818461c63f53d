"""What a plan takes under some changes: step, rate, idle time by cause, memory against its limit.

Leaves out how the plan was changed (`planner.report.whatif.plan_changes`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.candidate.fit import NO_LIMIT
from planner.plan import Plan
from planner.plan.fitting import fitting
from planner.plan.lockstep import spread
from planner.plan.provenance import rank_limits
from planner.report.summary.figures import figures
from planner.report.whatif.settings import Change
from simulator.bubbles import bubble_causes
from simulator.engine import Structure, Times
from simulator.timeline import Timeline

WORK, UNUSED = "stages' own work", "devices not used"


@dataclass(frozen=True)
class Consequence:
    """A plan whose costs and orders are those under some changes.

    Attributes
    ----------
    changes : sequence of Change
    plan : Plan
    structure : Structure
        Of its orders.
    left_out : sequence of str
        What its prices leave out.
    num_devices : int
        Devices there are.
    """

    changes: Sequence[Change]
    plan: Plan
    structure: Structure
    left_out: Sequence[str] = ()
    num_devices: int = 0

    @cached_property
    def times(self) -> Times:
        """When everything happens."""
        return self.structure.times(self.plan.costs(), self.plan.speeds)

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated timeline."""
        return self.times.timeline()

    @property
    def step_time_ns(self) -> int:
        """Simulated step time."""
        return self.times.step_time_ns

    @property
    def samples_per_s(self) -> float:
        """Samples of the batch over the step time."""
        return self.plan.batch.global_size * 1e9 / max(1, self.step_time_ns)

    @cached_property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """Peak of each rank."""
        return spread(self.plan.blocks, self.times.peak_memory_bytes)

    @cached_property
    def worst(self) -> tuple[int, int]:
        """By how much the rank that lacks most is over its limit (0 or below: it fits), and which rank that is."""
        pairs = zip(self.peak_memory_bytes, rank_limits(self.plan), strict=True)
        most, rank = max((peak - (limit or NO_LIMIT), -rank) for rank, (peak, limit) in enumerate(pairs))
        return most, -rank

    @cached_property
    def fits(self) -> str:
        """Whether it fits, one of `FITTING`: its upper bounds are above its peaks by as much as the plan's."""
        said = self.plan.prediction
        known = said.peak_memory_upper_bytes or said.peak_memory_bytes
        rows = zip(self.peak_memory_bytes, said.peak_memory_bytes, known, strict=True)
        uppers = [peak + upper - before for peak, before, upper in rows]
        return fitting(self.peak_memory_bytes, uppers, rank_limits(self.plan))

    @property
    def as_predicted(self) -> Plan:
        """The plan with what it takes under the changes as its prediction."""
        prediction = replace(
            self.plan.prediction, step_time_ns=self.step_time_ns, peak_memory_bytes=self.peak_memory_bytes,
            span_ns=self.times.span_ns, bubble_ratio=self.times.bubble_ratio,
        )  # fmt: skip
        return replace(self.plan, prediction=prediction)

    @cached_property
    def idle(self) -> Mapping[str, int]:
        """Idle time by cause, summed over ranks, the largest first."""
        found = bubble_causes(self.structure.schedule, self.plan.costs(), self.timeline)
        sums = Counter(found.over([len(block) for block in self.plan.blocks]))
        return {cause: time_ns for cause, time_ns in sums.most_common() if time_ns}

    @cached_property
    def device_ns(self) -> Mapping[str, float]:
        """Device time that a sample costs, by what it goes into: adds up to devices x step time / samples."""
        num_ranks, samples = len(self.plan.orders), self.plan.batch.global_size
        work = num_ranks * self.step_time_ns - sum(self.idle.values())
        unused = max(0, self.num_devices - num_ranks) * self.step_time_ns
        return {name: ns / samples for name, ns in {WORK: work, **self.idle, UNUSED: unused}.items() if ns}

    def to_json(self) -> dict[str, object]:
        """Return the figures."""
        plan, over = self.plan, self.worst[0]
        return {
            "step_time_ns": self.step_time_ns,
            "samples_per_s": self.samples_per_s,
            "bubble_ratio": self.times.bubble_ratio,
            "bubble_causes": dict(self.idle),
            "peak_memory_bytes": list(self.peak_memory_bytes),
            "fits": over <= 0,
            "over_memory_bytes": max(0, over),
            **figures(plan, "strategy stages schedule microbatches microbatch_size"),
            "devices": self.num_devices or len(plan.orders),
            "devices_used": len(plan.orders),
            "left_out": list(self.left_out),
        }


def saturates(first: Consequence, each: Consequence) -> str:
    """Return what of the device time that a sample costs has grown most since the first outcome; empty if nothing."""
    before = first.device_ns
    growth = {name: ns - before.get(name, 0.0) for name, ns in each.device_ns.items()}
    most = max(growth, key=lambda name: growth[name], default="")
    return most if most and growth[most] > 0 else ""
