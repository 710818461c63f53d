"""Plans that hold less on a rank than a given one, each as a command and what it frees by the plan's own figures.

Each changes one choice; nothing is priced. Leaves out what that costs in time, and whether it suffices: planning says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel.stages.costs import mean
from planner.plan.parts import PlanStage
from planner.plan.provenance import options_of
from planner.plan.whole import Plan

SHARDS = {1: ("optimizer", "master_weights"), 2: ("gradients", "gradient_copies"), 3: ("parameters",)}
"""Terms that each stage of ZeRO divides among replicas and the one before it does not."""
KEEP_ALL = ("gpipe", "looped-bfs")
"""Schedules that keep the activations of the whole batch, whatever the size of a micro-batch."""


@dataclass(frozen=True, slots=True)
class LighterPlan:
    """What a rank would hold less of, how much, and the command that plans it."""

    freed_bytes: int
    term: str
    command: str


def lighter_plans(plan: Plan, rank: int, activation_bytes: int) -> tuple[LighterPlan, ...]:
    """Return the changes that free memory on a rank; the one that frees most comes first.

    Parameters
    ----------
    plan : Plan
    rank : int
    activation_bytes : int
        What the rank keeps of all its micro-batches.
    """
    stages = [stage for stage in plan.stages if rank in stage.ranks]
    found = (
        _smaller_microbatches(plan, activation_bytes),
        _recompute(plan, rank, activation_bytes),
        _zero(plan, stages),
    )
    changes = [change for rows in found for change in rows if change.freed_bytes > 0]
    return tuple(sorted(changes, key=lambda change: -change.freed_bytes))


def _smaller_microbatches(plan: Plan, activation_bytes: int) -> Iterator[LighterPlan]:
    size = plan.batch.microbatch_size
    smaller = next((n for n in range(size - 1, 0, -1) if size % n == 0), 0)
    if smaller and plan.schedule not in KEEP_ALL:
        freed = activation_bytes * (size - smaller) // size
        yield LighterPlan(freed, "activations", _command(plan, "microbatch_size", smaller))


def _recompute(plan: Plan, rank: int, activation_bytes: int) -> Iterator[LighterPlan]:
    """Yield full recompute, which keeps what a stage receives, and one micro-batch of a stage in its backward."""
    made = [mean(s.cost.activation_bytes) for s in plan.stages if rank in s.ranks and s.config.recompute != "full"]
    received = sum(edge.size_bytes for edge in plan.edges if rank in plan.stages[edge.target].ranks)
    if made and sum(made):
        freed = activation_bytes * (1 - received / sum(made)) - max(made)
        yield LighterPlan(round(freed), "activations", _command(plan, "recompute", "full"))


def _zero(plan: Plan, stages: Sequence[PlanStage]) -> Iterator[LighterPlan]:
    """Yield the stages of ZeRO that come next."""
    now = min((stage.config.zero for stage in stages if stage.config.data > 1), default=max(SHARDS))
    for zero in range(now + 1, max(SHARDS) + 1):
        divided = [SHARDS[step] for step in range(now + 1, zero + 1)]
        terms = {name for names in divided for name in names}
        freed = sum(
            size * (stage.config.data - 1) // stage.config.data
            for stage in stages
            for name, size in stage.cost.memory_terms
            if name in terms
        )
        yield LighterPlan(freed, " and ".join(names[0] for names in divided), _command(plan, "zero", zero))


def _command(plan: Plan, choice: str, value: object) -> str:
    """Return the command that a plan came from, as far as its file says, with one choice changed."""
    options = options_of(plan)
    fixed = options.get("fixed")
    choices = {
        "devices": plan.cluster.num_devices,
        "batch": plan.batch.global_size,
        "microbatch_size": plan.batch.microbatch_size,
        **(fixed if isinstance(fixed, dict) else {}),
        choice: value,
    }
    flags = [f"--{name.replace('_', '-')}" + ("" if each is True else f" {each}") for name, each in choices.items()]
    return f"penstock plan PROFILE {' '.join(flags)}"
