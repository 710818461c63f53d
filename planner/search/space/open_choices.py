"""Which choices besides cuts and configurations a search may make: split backward, custom in-flight, ways by stage.

Each depends on the question alone. Leaves out who makes them, and whether that gains anything.
"""

from dataclasses import replace

from planner.candidate.candidate import IN_FLIGHT
from planner.candidate.order import WITHIN_LIMIT
from planner.question.problem import AUTO, Problem
from planner.question.targets import LINE_TARGETS
from planner.search.space.family import Family
from planner.search.space.pinned import PinnedPlaces

REPLICA_SCHEDULES = ("graph-1f1b", "graph-eager-1f1b")
"""Schedules of the catalogue for stages with replicas of their own number, in the order of `auto`."""


def allows_split_backward(problem: Problem) -> bool:
    """Whether backwards may be split: rivals run schedules by name, and a proof ranges over whole backwards."""
    searches = problem.schedule == AUTO and problem.planner in ("ours", "chain") and not problem.exact
    return searches and problem.target not in LINE_TARGETS and problem.num_devices > 1


def with_split_backward(family: Family) -> Family:
    """Return the family of the same cuts with split backwards."""
    return replace(family, split=True)


def allows_custom_in_flight(problem: Problem) -> bool:
    """Whether a search may choose micro-batches in flight: proofs and other trainers know named schedules alone."""
    named = problem.target in LINE_TARGETS or problem.exact
    return problem.schedule in (AUTO, IN_FLIGHT) and not named


def allows_per_stage_replicas(problem: Problem, pinned: PinnedPlaces) -> bool:
    """Whether replicas may differ by stage: nothing fixes them, and the target takes stages configured differently.

    A proof leaves them out.
    """
    fixed = problem.space.data is not None or problem.space.stages or problem.space.rank_order or pinned.places
    fixed = fixed or problem.num_devices == 1
    run = problem.schedule in (AUTO, IN_FLIGHT, WITHIN_LIMIT, *REPLICA_SCHEDULES)
    run = run and problem.target in ("", "any", "executor")
    return run and not fixed and problem.planner == "ours" and not problem.exact


def allows_recompute_by_stage(problem: Problem) -> bool:
    """Whether recompute may differ by stage and layer: nothing fixes it, and the target takes stages that differ.

    A proof leaves that out.
    """
    open_ones = problem.space.recompute is None and problem.planner == "ours" and not problem.exact
    return open_ones and problem.target not in LINE_TARGETS and any(problem.memory_limits_bytes)


def allows_options_by_stage(problem: Problem, pinned: PinnedPlaces) -> bool:
    """Whether options may differ by stage: the target takes stages that differ, and no pins place any.

    A proof leaves that out.
    """
    whole = problem.exact or bool(pinned.places) or problem.num_devices == 1
    return problem.planner == "ours" and not whole and problem.target in ("", "any", "executor")


def of_least_work(problem: Problem, family: Family) -> Family:
    """Return a family that takes no longer: full stands for some layers, or for all recompute that differs by stage."""
    some = problem.space.recompute_layers or allows_recompute_by_stage(problem)
    if family.config.recompute != "full" or not some:
        return family
    return replace(family, config=replace(family.config, recompute="none"))
