"""What stages that divide parameters among replicas do in a step: units, when gradients are summed, collectives.

Gradients are summed behind each backward, so that none stays whole: what ZeRO-2 and 3 are for. Leaves out times.
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.model.graph import OperatorGraph
from costmodel.stages.strategies.units import Unit, padded_bytes, units_of
from planner.plan import ALL_GATHER, MICROBATCH, REDUCE_SCATTER, Collective, PlanStage


def with_gathering(stage: PlanStage, graph: OperatorGraph, operators: Sequence[int], num_actions: int) -> PlanStage:
    """Return a stage with what its replicas gather and sum, each of which has so many forwards in a step."""
    if not stage.config.gathers:
        return stage
    units, trains = units_of(graph, operators), stage.cost.backward
    remade = trains and stage.config.recompute == "full"
    forwards, backwards = num_actions * (2 if remade else 1), num_actions * trains
    return replace(
        stage,
        units=tuple(unit.path for unit in units if unit.path),
        reduce=MICROBATCH,
        collectives=_collectives(units, stage.config.data, stage.config.zero, forwards, backwards),
    )


def _collectives(
    units: Sequence[Unit], num_copies: int, zero: int, forwards: int, backwards: int
) -> tuple[Collective, ...]:
    """Return what each rank takes part in; ZeRO-2 gathers once a step, ZeRO-3 in each forward and backward."""
    gathered, summed = [], []
    for unit in units:
        times = forwards + backwards * bool(unit.summed) if zero > 2 else 1
        gathered.append((times, padded_bytes(unit.parameters, num_copies)))
        summed.append((backwards * bool(unit.summed), padded_bytes(unit.summed, num_copies)))
    found = (
        Collective(kind, sum(times for times, _ in rows), sum(times * size for times, size in rows))
        for kind, rows in ((ALL_GATHER, gathered), (REDUCE_SCATTER, summed))
    )
    return tuple(each for each in found if each.count)
