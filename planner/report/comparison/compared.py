"""One plan of a comparison and what it comes to: rates, idle time by cause, messages, memory and its limits.

A plan's simulated ranks are its blocks (`planner.plan.lockstep`); what is summed here counts every rank of a block.
Leaves out other plans (`planner.report.comparison.comparison`) and pictures.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from planner.plan import Plan
from planner.plan.provenance import rank_limits
from planner.plan.replay import check_recorded, plan_schedule, replay
from planner.report.comparison.measured import Measurement, message_bytes, read_measured
from simulator.actions import SENDS, Kind
from simulator.bubbles import BubbleCauses, bubble_causes
from simulator.schedule import Schedule
from simulator.timeline import Timeline

ASSUMED = ("links", "trainer", "habits", "optimizer", "precision", "calibration")
"""Assumptions under which step times compare only when they are the same."""


@dataclass(frozen=True, slots=True)
class Communication:
    """What travels between stages in one step, and for how long gradients are summed.

    Summed over ranks; some of it hides behind compute, and what does not is among the causes of idle time. Collectives
    inside a stage (tensor, context, expert degrees, parameters that ZeRO-3 gathers) are part of its actions' times and
    not in here.

    Attributes
    ----------
    messages : int
        Tensors of one edge and one action that go from one rank to another, forward and backward.
    message_bytes : int
    message_ns : int
        How long they are on their way.
    reduction_ns : int
        How long REDUCE takes.
    """

    messages: int
    message_bytes: int
    message_ns: int
    reduction_ns: int

    def to_json(self) -> dict[str, int]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class ComparedPlan:
    """A plan under a name and, where it was run, the file of its measured timeline.

    `short` is what tables and pictures call it; `samples` is what step times are divided by where plans of unlike
    batches are held against each other, else 1.
    """

    name: str
    plan: Plan
    measured: str | Path | None = None
    short: str = ""
    samples: int = 1

    def shared_ns(self, time_ns: int) -> int:
        """Return a time of a step as it compares with the other plans' times: of the step, or of one sample."""
        return round(time_ns / self.samples)

    @cached_property
    def schedule(self) -> Schedule:
        """The orders of its blocks."""
        return plan_schedule(self.plan)

    @cached_property
    def predicted(self) -> Timeline:
        """The simulated timeline.

        Raises
        ------
        ReadableButWrong
            When the plan says another step time or peak.
        """
        timeline = replay(self.plan)
        check_recorded(self.name, self.plan, timeline)
        return timeline

    @cached_property
    def measurement(self) -> Measurement | None:
        """The measured timeline of the same plan."""
        if not self.measured:
            return None
        return Measurement(self.plan, self.predicted, read_measured(self.measured, self.plan))

    @property
    def measured_timeline(self) -> Timeline | None:
        """What was measured, where it was run."""
        return self.measurement.measured if self.measurement else None

    @property
    def longest_ns(self) -> int:
        """The step that takes longer, predicted or measured."""
        return max(each.step_time_ns for each in (self.predicted, self.measured_timeline) if each)

    @cached_property
    def idle(self) -> BubbleCauses:
        """Every idle nanosecond of each block with its cause."""
        return bubble_causes(self.schedule, self.plan.costs(), self.predicted)

    @property
    def causes(self) -> Mapping[str, int]:
        """Idle ns of each cause, summed over ranks."""
        return self.idle.over([len(block) for block in self.plan.blocks])

    @cached_property
    def communication(self) -> Communication:
        """Messages between stages, and reductions."""
        sizes = message_bytes(self.plan, self.schedule)
        messages = size_bytes = message_ns = reduction_ns = 0
        for span in self.predicted.spans:
            ranks, time_ns = len(self.plan.blocks[span.rank]), span.end_ns - span.start_ns
            if span.action.kind in SENDS:
                messages += ranks
                size_bytes += ranks * sizes[span.action]
                message_ns += ranks * time_ns
            elif span.action.kind is Kind.REDUCE:
                reduction_ns += ranks * time_ns
        return Communication(messages, size_bytes, message_ns, reduction_ns)

    @property
    def limit_bytes(self) -> int | None:
        """The lowest of the known limits."""
        return min(filter(None, rank_limits(self.plan)), default=None)
