"""Problems of pipelines alone: one device a stage, one stage a place, nothing run again, no optimizer."""

from dataclasses import replace

from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from planner.candidate.price import Priced
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem

PIPELINES = Space(chunks=1, data=1, tensor=1, context=1, expert=1, recompute="none", offload="none")


def pipelines(profile: Profile, num_devices: int, batch: int, size: int | None = 1, **options: object) -> Problem:
    """Return a problem whose cut, number of stages and schedule are free, at one micro-batch size."""
    given: dict[str, object] = {"optimizer": "none", "space": PIPELINES, "cluster": None, **options}
    effort = Effort(given.pop("time_limit_s", 10.0), given.pop("deterministic_limit", None))  # type: ignore[arg-type]
    cluster = given.pop("cluster")
    return Problem(profile, cluster, num_devices, batch, size, effort=effort, **given)  # type: ignore[arg-type]


def cuts_of(problem: Problem, microbatch_size: int = 1) -> FamilyPartitions:
    """Return the cuts of single devices at one micro-batch size."""
    return PreparedProblem(problem).cuts(Family(StageConfig(), microbatch_size))


def priced(cuts: FamilyPartitions, partition: tuple[int, ...], *, line: bool = False) -> Priced:
    """Price a partition whose stages stand on ranks of their own."""
    return cuts.evaluator.pricer.price(partition, cuts.places(partition), line)


def with_limit(problem: Problem, limit_bytes: int) -> Problem:
    return replace(problem, memory_limit_bytes=limit_bytes)
