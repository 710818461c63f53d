"""Replicas that wait for each other within actions: what that asks of a plan, and of one still to be made.

Under ZeRO-2 and 3 each gathers when all do, under expert parallelism each has experts that all need; an action of
divided stages takes one micro-batch. Leaves out parameters that several stages share.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from costmodel.stages.config import StageConfig
from planner.plan.whole import Plan


class Placed(Protocol):
    """A stage with its ranks."""

    @property
    def config(self) -> StageConfig:
        """How it is divided."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Where it runs."""

    @property
    def microbatch_multiple(self) -> int:
        """Micro-batches an action."""


def gathering_problem(plan: Plan) -> str:
    """Return why replicas of a plan would wait for each other for ever; nothing where none do."""
    problem = why_out_of_step(plan.stages, plan.batch.num_microbatches)
    if problem:
        return problem
    for index, stage in enumerate(plan.stages):
        if not stage.config.in_step:
            continue
        if len({_MICROBATCH.sub("", " ".join(plan.orders[rank])) for rank in stage.ranks}) > 1:
            return (
                f"the replicas of stage {index} {_together(stage.config)}, and their orders of actions differ: plan "
                "with another --schedule"
            )
    return ""


def _together(config: StageConfig) -> str:
    how = f"gather parameters together (ZeRO-{config.zero})" if config.gathers else ""
    return how or f"have experts of each other's (expert = {config.expert})"


_MICROBATCH = re.compile(r"(?<=[A-Z])\d+")


def why_out_of_step(stages: Sequence[Placed], num_microbatches: int) -> str:
    """Return why replicas that work in step would wait for ever, with the way out; nothing where none do.

    Stages with another number of replicas may send to one only after another has gone on, which waits for it.
    """
    several = [i for i, stage in enumerate(stages) if stage.microbatch_multiple > 1]
    if several and any(stage.config.divides for stage in stages):
        return f"stage {several[0]} takes several micro-batches in an action, and some divide: plan with multiples of 1"
    index = next((i for i, stage in enumerate(stages) if stage.config.in_step), None)
    if index is None:
        return ""
    first = stages[index]
    data = first.config.data
    text = f"stage {index} has {data} replicas that {_together(first.config)}, and "
    if num_microbatches % data:
        return f"{text}{num_microbatches} micro-batches do not divide by that: plan with another batch or --data"
    for i, other in enumerate(stages):
        if other.config.data != data:
            return f"{text}stage {i} has {other.config.data} replicas: plan with as many, or ZeRO-1"
        for later in stages[i + 1 :]:
            if other.ranks != later.ranks and set(other.ranks) & set(later.ranks):
                return f"{text}stages share some of their ranks and not all: pin them to the same ones"
    return ""
