"""Megatron-LM's own layout (Narayanan et al., SC 2021): equally many layers a stage on a grid of devices.

Modelled: data x tensor x context x pipeline degrees alike for all stages, V chunks a place, distributed optimizer
(ZeRO-1), recompute; layers are divided evenly, or so that embedding and loss count as a layer each, or one of them
(`--account-for-embedding-in-pipeline-split`, `--account-for-loss-in-pipeline-split`). Every grid is simulated, the best
counts. Left out: layouts written by hand (`--pipeline-model-parallel-layout`), and models without repeated layers,
which are refused.
"""

from collections.abc import Iterator

from costmodel.errors import NoPlanFits
from planner.graph.atoms import Partition
from planner.plan.limited_by import LimitedBy
from planner.question.problem import Problem, Report
from planner.question.targets import default_target
from planner.search.budget import Deadline, clock_s
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import NO_BOUND, SearchOutcome

COUNTED = ((0, 0), (1, 1), (1, 0), (0, 1))
"""Whether the embedding counts as a layer, and the loss."""


def megatron_uniform(problem: Problem, report: Report | None) -> SearchOutcome:
    """Return the best grid.

    Raises
    ------
    NoPlanFits
        For a model without repeated layers.
    """
    prepared, limits = PreparedProblem(problem), Deadline(clock_s(problem))
    if len(prepared.layers) < 2:
        raise NoPlanFits(
            f"--planner megatron-uniform divides repeated layers, and {problem.profile.graph.name} has none that its "
            "operators' modules tell; take --planner uniform"
        )
    pool = CandidatePool(problem, problem.target or default_target(problem)[0], prepared.layer_alignment, report)
    for family in prepared.families.all:
        if limits.expired and pool.best_fits:
            break
        cuts = prepared.cuts(family)
        for places in range(1, cuts.num_places + 1):
            stages = places * family.chunks
            if places * family.devices_per_stage != problem.num_devices or cuts.fixed_stages not in (None, stages):
                continue
            for partition in _partitions(prepared, stages):
                pool.offer(cuts.evaluate_under(partition, cuts.schedules, line=True))
        if pool.found:
            pool.say("grid")
    if not pool.found:
        raise NoPlanFits(
            "--planner megatron-uniform finds no grid of data x tensor x context x stages that uses all "
            f"{problem.num_devices} devices, divides a batch of {problem.global_batch} and gives every stage whole "
            "layers; change one of these, or take --planner ours"
        )
    limited_by = LimitedBy.TIME_LIMIT if limits.hit else LimitedBy.EXHAUSTED
    return SearchOutcome(prepared, pool, NO_BOUND, {}, limited_by, not limits.hit)


def _partitions(prepared: PreparedProblem, num_stages: int) -> Iterator[Partition]:
    """Yield the cuts into whole layers that the four ways to count give."""
    for embedding, loss in COUNTED if num_stages > 1 else COUNTED[:1]:
        found = prepared.equal_layers(num_stages, embedding, loss)
        if found is not None:
            yield found
