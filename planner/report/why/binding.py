"""What holds a plan's step up: the rank with most work, how it spends the rest, and how near memory is to its limit.

Leaves out what more of anything would gain (`planner.report.why.replanned`): a full device need not be what binds.
"""

from dataclasses import asdict, dataclass

from costmodel.stages.costs import largest
from planner.plan import Plan
from planner.plan.provenance import rank_limits
from planner.report.summary.text import percent, size
from simulator.actions import COMPUTE
from simulator.bubbles import BubbleCauses
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Binding:
    """Ranks are those of the plan, the first of a block that works in lockstep.

    Attributes
    ----------
    constraint : str
        ``compute``, or the cause of most of the busiest rank's idle time where that is more than its work.
    rank : int
        The busiest.
    stages : tuple of int
        Its stages.
    work_share : float
        Of the step.
    fullest_rank : int or None
        Nearest to its limit; None where no limit is known.
    peak_bytes, limit_bytes, next_bytes : int
        Of that rank; `next_bytes` is what one more micro-batch in flight would take.
    """

    constraint: str
    rank: int
    stages: tuple[int, ...]
    work_share: float
    fullest_rank: int | None
    peak_bytes: int
    limit_bytes: int
    next_bytes: int

    @property
    def text(self) -> str:
        """Say it in one line."""
        stages = " and ".join(map(str, self.stages))
        said = f"rank {self.rank} (stage {stages}) works {percent(self.work_share)} of the step"
        said += "" if self.constraint == "compute" else f", and idles more than it works: {self.constraint}"
        if self.fullest_rank is None:
            return f"{said}; no memory limit is known"
        room = "fits" if self.peak_bytes + self.next_bytes <= self.limit_bytes else "does not fit"
        held = f"{size(self.peak_bytes)} of {size(self.limit_bytes)}"
        more = f"one more micro-batch in flight there ({size(self.next_bytes)}) {room}"
        return f"{said}; rank {self.fullest_rank} is fullest, {held}, and {more}"

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)


def binding(plan: Plan, timeline: Timeline, causes: BubbleCauses) -> Binding:
    """Find what holds a plan up in its simulated timeline."""
    works = [0] * len(plan.blocks)
    for span in timeline.spans:
        if span.action.kind in COMPUTE:
            works[span.rank] += span.end_ns - span.start_ns
    busiest = works.index(max(works))
    idle = causes.per_rank[busiest]
    cause = max(idle, key=lambda name: idle[name], default="")
    constraint = cause if cause and idle[cause] > works[busiest] else "compute"
    share = works[busiest] / max(1, timeline.step_time_ns)
    ranks = rank_limits(plan)
    limits = [ranks[block[0]] for block in plan.blocks]
    peaks = timeline.peak_memory_bytes
    known = [i for i, limit in enumerate(limits) if limit]
    fullest = max(known, key=lambda i: peaks[i] / limits[i], default=None)
    rank = plan.blocks[busiest][0]
    if fullest is None:
        return Binding(constraint, rank, _stages(plan, busiest), share, None, max(peaks), 0, 0)
    held = [largest(plan.stages[stage].cost.activation_bytes) for stage in _stages(plan, fullest)]
    return Binding(constraint, rank, _stages(plan, busiest), share, plan.blocks[fullest][0], peaks[fullest],
                   limits[fullest], min(held))  # fmt: skip


def _stages(plan: Plan, block: int) -> tuple[int, ...]:
    """Return the stages that a block runs."""
    return tuple(i for i, stage in enumerate(plan.stages) if plan.blocks[block] in stage.blocks)
