"""What a plan is made of: batch, stages, edges, prediction, what the search found, what was assumed.

Leaves out the whole (`planner.plan.whole`) and its file (`planner.plan.file`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from costmodel.codec import NEEDED, UNSAID, Json, Positive
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.forms import JsonForm, row, whole
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from planner.plan.lockstep import Block, in_blocks

STATUSES = ("optimal", "bounded", "heuristic", "baseline")


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of a step, of a micro-batch, and how many micro-batches that makes."""

    global_size: Annotated[Positive, Json("global")]
    microbatch_size: Positive
    num_microbatches: Annotated[Positive, Json("microbatches")]

    def __post_init__(self) -> None:
        if self.microbatch_size * self.num_microbatches != self.global_size:
            raise InvalidInput(
                f"{self.num_microbatches} micro-batches of {self.microbatch_size} samples do not make the "
                f"{self.global_size} of the batch"
            )


ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


@dataclass(frozen=True, slots=True)
class Collective:
    """What each rank of a stage takes part in within a step: of a kind how many, and their bytes together.

    Bytes are of what is gathered, or of what is summed before it is scattered, whole.
    """

    kind: Annotated[str, Json(allowed=COLLECTIVES)]
    count: int
    size_bytes: Annotated[int, Json("bytes")]


STEP, MICROBATCH = REDUCES = ("step", "microbatch")
"""When replicas that divide parameters sum gradients: once a step, or behind each micro-batch's backward."""
_IF_GATHERED = Json(unsaid=lambda stage: not stage.config.gathers)


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A stage: its operators, the ranks that replicate it, its configuration and cost, and what people call it.

    `modules` are the parts of the model (`costmodel.model.blocks`) that it has operators of, in order; empty where the
    model has none, and in plans of older versions.

    Where ZeRO divides gradients or parameters `units` are the modules whose parameters are gathered by themselves (what
    is outside of them is gathered with the stage) and `reduce` is one of `REDUCES`; `collectives` is what each of its
    ranks takes part in within a step, there and where tensor degrees divide. `shared` are its trainable parameters that
    other stages have too.
    """

    operators: tuple[str, ...]
    ranks: tuple[int, ...]
    cost: StageCost
    config: Annotated[StageConfig, NEEDED] = field(default_factory=StageConfig)
    microbatch_multiple: Annotated[Positive, NEEDED] = 1
    name: Annotated[str, UNSAID] = ""
    units: Annotated[tuple[str, ...], _IF_GATHERED] = ()
    reduce: Annotated[str, _IF_GATHERED, Json(allowed=REDUCES)] = STEP
    collectives: Annotated[tuple[Collective, ...], UNSAID] = ()
    modules: Annotated[tuple[str, ...], UNSAID] = ()
    shared: Annotated[tuple[str, ...], UNSAID] = ()

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """Dimensions along which its ranks are arranged, the last one innermost."""
        return ("data", self.config.data), ("context", self.config.context), ("tensor", self.config.tensor)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its ranks by replica: those that divide tensors or the sequence among them."""
        return in_blocks(self.ranks, self.config.tensor * self.config.context)


REPLICATE = "replicate"
BORDERS = (REPLICATE, "shard(1)", "shard(-1)")
"""How tensors lie on the lanes that pass them on: whole on each, or divided along a dimension."""


@dataclass(frozen=True, slots=True)
class PlanEdge:
    """The tensors that stage `source` sends to stage `target` for each micro-batch.

    A tensor that `source` itself received is relayed; `size_bytes` is what one action of `source` sends, from each of
    its lanes; `border` is one of `BORDERS`, where tensors are unlike that of those that are divided.
    """

    source: Annotated[int, Json("from")]
    target: Annotated[int, Json("to")]
    tensors: tuple[str, ...]
    size_bytes: Annotated[int, Json("bytes")]
    p2p_ns: int = 0
    gradient: bool = True
    border: Annotated[str, UNSAID, Json(allowed=BORDERS)] = REPLICATE


def _interval(node: Node) -> tuple[int, ...]:
    values = node.integers()
    if len(values) != 2 or values[0] > values[1]:
        node.fail("two numbers, the lower one first")
    return values


_INTERVAL = JsonForm(
    _interval, list, row(whole(), whole(), says="Between what four of five measured steps lie.").schema
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of the plan; one memory figure a rank.

    Of described models, four of five measured steps lie within `step_time_interval_ns` (low, high) of such predictions.
    """

    step_time_ns: int
    span_ns: int
    bubble_ratio: float
    peak_memory_bytes: tuple[int, ...]
    peak_memory_upper_bytes: tuple[int, ...]
    step_time_interval_ns: Annotated[tuple[int, int] | None, UNSAID, Json(form=_INTERVAL)] = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """How the plan was found and how far from the best it may be.

    Attributes
    ----------
    status : str
        ``optimal`` (objective equals the bound), ``bounded``, ``heuristic`` (no bound) or ``baseline``.
    objective : int
        The simulated step time in ns.
    lower_bound_ns : int or None
        No plan within `scope` takes less; None where there is no bound.
    scope : str
        The decisions that the bound ranges over, schedule family included.
    baselines : mapping of str to int
        Simulated step time of each rival plan.
    best_step_time_ns : int
        The best step time seen; above it by at most 1 % a simpler plan is preferred.
    limited_by : str
        What ended the search (`planner.plan.limited_by`; earlier versions had other words).
    model_objective_ns, model_lower_bound_ns : int or None
        The least estimate m - 1 times the largest stage plus the longest path of any cut of the best plan's family that
        was met, and a bound on all of them. No step is bounded by it.
    """

    status: Annotated[str, Json(allowed=STATUSES)]
    objective: int
    lower_bound_ns: Annotated[int | None, Json(says="Null where no bound stands.")]
    scope: str
    baselines: Annotated[Mapping[str, int], NEEDED, Json(says="Simulated step time of each rival.")] = field(
        default_factory=dict
    )
    best_step_time_ns: int = 0
    limited_by: str = ""
    model_objective_ns: Annotated[int | None, UNSAID, Json(form=whole(1))] = None
    model_lower_bound_ns: Annotated[int | None, UNSAID, Json(form=whole(1))] = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvalidInput(f"search.status is {self.status!r}; allowed are {', '.join(STATUSES)}")
        if self.lower_bound_ns is not None and self.lower_bound_ns > self.objective:
            raise InvalidInput(f"the lower bound {self.lower_bound_ns} ns is above the objective {self.objective} ns")

    @property
    def gap(self) -> float | None:
        """Objective / lower bound - 1; None without a bound."""
        if self.lower_bound_ns is None:
            return None
        return self.objective / self.lower_bound_ns - 1 if self.lower_bound_ns else float(self.objective > 0)

    @property
    def model_gap(self) -> float | None:
        """Least estimate / its bound - 1; None where neither was sought."""
        if not self.model_objective_ns or not self.model_lower_bound_ns:
            return None
        return self.model_objective_ns / self.model_lower_bound_ns - 1


@dataclass(frozen=True, slots=True)
class Training:
    """What the step was planned for and a run must agree with; empty where the plan does not say (version 1).

    Attributes
    ----------
    dtype : str
        Of parameters and inputs, as torch names it: ``float32``.
    autocast : str
        The dtype that autocast computes in; empty without.
    optimizer : str
        A key of `costmodel.roofline.OPTIMIZERS`; with ``none`` the plan has no OPT.
    """

    dtype: Annotated[str, NEEDED] = ""
    autocast: Annotated[str, NEEDED] = ""
    optimizer: Annotated[str, NEEDED] = ""


LINKS = ("measured", "given", "typical", "free")
"""Where the prices of messages came from: the profile, a cluster file, the catalogue's typical host, or nowhere."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a prediction rests on; plans whose assumptions differ are not compared without a word.

    Attributes
    ----------
    links : str
        One of `LINKS`.
    trainer : str
        Whose convention stages are priced by: ``executor``, or another trainer's name.
    optimizer, precision : str
    bytes_per_parameter : tuple of (str, float)
        What each trainable parameter takes before anything is sharded, by memory term.
    calibration : str
        Digest of the calibration applied, of several profiles joined by ``+``; empty without.
    estimated : tuple of str
        Why times are estimates; empty where all were measured.
    habits : tuple of str
        What another trainer than the executor is taken to do, told by flags or as it usually does.
    """

    links: Annotated[str, NEEDED, Json(allowed=("", *LINKS))] = ""
    trainer: Annotated[str, NEEDED] = ""
    optimizer: Annotated[str, NEEDED] = ""
    precision: Annotated[str, NEEDED] = ""
    bytes_per_parameter: Annotated[tuple[tuple[str, float], ...], NEEDED] = ()
    calibration: Annotated[str, NEEDED] = ""
    estimated: Annotated[tuple[str, ...], NEEDED] = ()
    habits: Annotated[tuple[str, ...], UNSAID] = ()


FITS, MAY_NOT_FIT, DOES_NOT_FIT = FITTING = ("fits", "may-not-fit", "does-not-fit")
"""Whether a plan fits into memory (`planner.plan.fitting`), the best first."""


@dataclass(frozen=True, slots=True)
class Rung:
    """The best plan of one strategy of the ladder.

    Attributes
    ----------
    strategy : str
    step_time_ns : int
    samples_per_s : float
    peak_memory_bytes : int
        Of the rank that holds most.
    runs_on : tuple of str
    why : str
        Why it was chosen, or why it lost.
    devices_used : int
    over_memory_bytes : int
        By how much the rank that is over its limit by most is; 0 where the plan fits. Where it does not, no plan of the
        plan of the strategy was found to, and this one exceeds memory least.
    cost_per_million_samples : float, optional
        What the devices used cost, in the money of the cluster's prices; None where one of them has no price.
    better_if : str
        What would make it better than the plan that was chosen; empty where nothing that was tried does.
    fits : str
        One of `FITTING`; empty in older plans.
    """

    strategy: str
    step_time_ns: int
    samples_per_s: float
    peak_memory_bytes: int
    runs_on: tuple[str, ...]
    why: str
    devices_used: Positive = 1
    over_memory_bytes: Annotated[int, Json(says="What a device lacks; 0 where the plan fits.")] = 0
    cost_per_million_samples: float | None = None
    better_if: str = ""
    fits: Annotated[str, Json(allowed=("", *FITTING))] = ""
