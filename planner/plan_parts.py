"""What a plan is made of: batch, stages, edges, prediction, and what the search found.

Leaves out how they make a file (`planner.plan`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.errors import InvalidInput
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from planner.blocks import Block, in_blocks

STATUSES = ("optimal", "bounded", "heuristic", "baseline")


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of a step, of a micro-batch, and how many micro-batches that makes."""

    global_size: int
    microbatch_size: int
    num_microbatches: int

    def __post_init__(self) -> None:
        if self.microbatch_size * self.num_microbatches != self.global_size:
            raise InvalidInput(
                f"{self.num_microbatches} micro-batches of {self.microbatch_size} samples do not make the "
                f"{self.global_size} of the batch"
            )


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage: its operators, the ranks that replicate it, its configuration and cost."""

    operators: tuple[str, ...]
    ranks: tuple[int, ...]
    cost: StageCost
    config: StageConfig = field(default_factory=StageConfig)
    microbatch_multiple: int = 1

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its ranks by replica: those that divide tensors or the sequence among them."""
        return in_blocks(self.ranks, self.config.tensor * self.config.context)


@dataclass(frozen=True, slots=True)
class PlanEdge:
    """The tensors that stage `source` sends to stage `target` for each micro-batch.

    A tensor that `source` itself received is relayed; `size_bytes` is what one action of `source` sends.
    """

    source: int
    target: int
    tensors: tuple[str, ...]
    size_bytes: int
    p2p_ns: int = 0
    gradient: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of the plan; one memory figure a rank."""

    step_time_ns: int
    span_ns: int
    bubble_ratio: float
    peak_memory_bytes: tuple[int, ...]
    peak_memory_upper_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """How the plan was found and how far from the best it may be.

    Attributes
    ----------
    status : str
        ``optimal`` (objective equals the bound), ``bounded``, ``heuristic`` (no bound) or ``baseline``.
    objective : int
        The simulated step time in ns.
    lower_bound_ns : int
        No plan within `scope` takes less.
    scope : str
        The decisions that the bound ranges over, schedule family included.
    baselines : mapping of str to int
        Simulated step time of each rival plan.
    best_step_time_ns : int
        The best step time seen; above it by at most 1 % a simpler plan is preferred.
    limited_by : str
        What ended the search.
    """

    status: str
    objective: int
    lower_bound_ns: int
    scope: str
    baselines: Mapping[str, int] = field(default_factory=dict)
    best_step_time_ns: int = 0
    limited_by: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvalidInput(f"search.status is {self.status!r}; allowed are {', '.join(STATUSES)}")
        if self.lower_bound_ns > self.objective:
            raise InvalidInput(f"the lower bound {self.lower_bound_ns} ns is above the objective {self.objective} ns")

    @property
    def gap(self) -> float:
        """Objective / lower bound - 1."""
        return self.objective / self.lower_bound_ns - 1 if self.lower_bound_ns else float(self.objective > 0)
