"""The one candidate of a problem whose choices are all fixed: equally many layers a stage, as trainers cut them.

Layers are divided evenly, or else as evenly as may be with what comes before and behind them counted as a layer each
(Megatron-LM's `--account-for-embedding-in-pipeline-split` and its sister). Leaves out uneven layouts written by hand
(`planner.question.pins`).
"""

from itertools import pairwise

from costmodel.errors import NoPlanFits
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.blocks import block_names, block_spans
from planner.candidate.candidate import Candidate, in_loop
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms, prepare
from planner.graph.layers import equal_layers
from planner.question.problem import Problem


def fixed_evaluator(problem: Problem) -> Evaluator:
    """Return what prices the problem's one candidate; its pieces are whole layers."""
    graph = problem.profile.graph
    spans = block_spans(block_names(graph.operators))
    together = [(span.start, other) for span in spans for other in span[1:]]
    return Evaluator(problem, prepare(graph, together), problem.microbatch_sizes[0])


def fixed_candidate(evaluator: Evaluator) -> Candidate:
    """Return the candidate; a choice that is left open is its simplest.

    Raises
    ------
    NoPlanFits
        For more stages than layers.
    """
    problem, space = evaluator.problem, evaluator.problem.space
    places = space.stages or 1
    stages = places * (space.chunks or 1)
    tensor, context = space.tensor or 1, space.context or 1
    config = StageConfig(
        space.data or max(1, problem.num_devices // (places * tensor * context)),
        tensor,
        tensor if space.sequence_parallel else 1,
        context,
        space.expert or 1,
        space.zero or 0,
        space.recompute or "none",
        space.offload or "none",
    )
    partition = _cut(evaluator.atoms, stages)
    schedule = problem.schedules[0]
    return Candidate(partition, in_loop(config, stages, places), evaluator.microbatch_size, schedule, line=True)


def _cut(atoms: Atoms, num_stages: int) -> tuple[int, ...]:
    graph = atoms.graph
    rows = equal_layers(graph, num_stages) or nearly_equal(graph, num_stages)
    stage_of = {operator: stage for stage, row in enumerate(rows) for operator in row}
    return tuple(stage_of[members[0]] for members in atoms.members)


def nearly_equal(graph: OperatorGraph, num_stages: int) -> tuple[tuple[int, ...], ...]:
    """Return the operators of each stage, as evenly as may be; what comes before and behind layers counts as one each.

    Raises
    ------
    NoPlanFits
        For more stages than such pieces.
    """
    spans = block_spans(block_names(graph.operators))
    starts = sorted({0, *(span.start for span in spans), spans[-1].stop} - {len(graph.operators)})
    if len(starts) < num_stages:
        raise NoPlanFits(f"{num_stages} stages, and {graph.name} has {len(starts)} layers and ends; take fewer stages")
    bounds = [starts[i * len(starts) // num_stages] for i in range(num_stages)]
    return tuple(tuple(range(start, stop)) for start, stop in pairwise((*bounds, len(graph.operators))))
