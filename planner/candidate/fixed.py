"""The one candidate of a problem whose choices are all fixed, in stages of whole layers as trainers cut them.

Leaves out layouts that divide layers (`planner.question.pins`).
"""

from collections.abc import Sequence

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.blocks import block_names, block_spans
from planner.candidate.candidate import Candidate, in_loop
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import prepare
from planner.graph.layers import trainer_layers
from planner.question.problem import Problem


def fixed_evaluator(problem: Problem) -> Evaluator:
    """Return what prices the problem's one candidate; its pieces are whole layers."""
    graph = problem.profile.graph
    spans = block_spans(block_names(graph.operators))
    together = [(span.start, other) for span in spans for other in span[1:]]
    return Evaluator(problem, prepare(graph, together), problem.microbatch_sizes[0])


def fixed_candidate(evaluator: Evaluator, layers: Sequence[int] = ()) -> Candidate:
    """Return the candidate with these layers of each stage, or equally many; a choice left open is its simplest.

    Raises
    ------
    UsageError
        When the model has other layers, or experts do not spread over the ranks of a stage.
    NoPlanFits
        For more stages than layers.
    """
    problem, space = evaluator.problem, evaluator.problem.space
    places = space.stages or 1
    stages = places * (space.chunks or 1)
    tensor, context, expert = space.tensor or 1, space.context or 1, space.expert or 1
    data = space.data or max(1, problem.num_devices // (places * tensor * context))
    config = StageConfig(
        data,
        tensor,
        tensor if space.sequence_parallel else 1,
        context,
        expert,
        space.zero or 0,
        space.recompute or "none",
        space.offload or "none",
        shard_group=space.shard_group or 0,
        expert_tensor=space.expert_tensor or (1 if data * context % expert else tensor),
    )
    if config.num_ranks % config.num_expert_parts:
        raise UsageError(
            f"{expert} ranks of experts in {config.expert_tensor} parts each do not divide the "
            f"{config.num_ranks} ranks of a stage, data x context x tensor"
        )
    rows = trainer_layers(evaluator.atoms.graph, stages, layers)
    stage_of = {operator: stage for stage, row in enumerate(rows) for operator in row}
    partition = tuple(stage_of[members[0]] for members in evaluator.atoms.members)
    schedule = problem.schedules[0]
    placed = in_loop(config, stages, places, rank_order=space.ranks)
    return Candidate(partition, placed, evaluator.microbatch_size, schedule, line=True)
