"""What ranks of a divided stage do together in a step: units, when gradients are summed, collectives.

Gradients are summed behind each backward, so that none stays whole: what ZeRO-2 and 3 are for. Lanes sum as torch's own
layers do: what a row makes, and for each column layer the gradient of what it reads. Leaves out times, sequences and
experts that are divided, and sums of gradients without ZeRO.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.division import WITHIN_TENSOR
from costmodel.stages.strategies.units import Unit, padded_bytes, units_of
from planner.plan import ALL_GATHER, ALL_REDUCE, MICROBATCH, REDUCE_SCATTER, Collective, PlanStage

Row = tuple[int, int]
"""How often something is sent, and its bytes."""


def with_gathering(
    stage: PlanStage, graph: OperatorGraph, operators: Sequence[int], num_actions: int, sizes: Sequence[int]
) -> PlanStage:
    """Return a stage with what its ranks gather and sum.

    Parameters
    ----------
    operators : sequence of int
        Positions of the stage's.
    num_actions : int
        Forwards of a replica in a step.
    sizes : sequence of int
        Bytes of each tensor of an action, whole; none where sums of lanes are not counted.
    """
    config, trains = stage.config, stage.cost.backward
    forwards = num_actions * (2 if trains and config.recompute == "full" else 1)
    backwards = num_actions * trains
    rows: dict[str, list[Row]] = {ALL_GATHER: [], REDUCE_SCATTER: [], ALL_REDUCE: []}
    if config.gathers:
        units = units_of(graph, operators, config.tensor)
        stage = replace(stage, units=tuple(unit.path for unit in units if unit.path), reduce=MICROBATCH)
        for unit in units:
            _add_unit(rows, unit, config, forwards, backwards)
    if config.tensor > 1 and sizes:
        rows[ALL_REDUCE] += _sums_of_lanes(graph, frozenset(operators), sizes, forwards, backwards)
    found = (Collective(kind, sum(n for n, _ in row), sum(n * size for n, size in row)) for kind, row in rows.items())
    return replace(stage, collectives=tuple(each for each in found if each.count))


def _add_unit(rows: dict[str, list[Row]], unit: Unit, config: StageConfig, forwards: int, backwards: int) -> None:
    """Add what a unit takes: ZeRO-2 gathers once a step, ZeRO-3 in each forward and backward.

    Shard groups sum the part of each rank once a step.
    """
    copies, sums = config.shard_group or config.data, backwards * bool(unit.summed)
    times = forwards + sums if config.zero > 2 else 1
    size = padded_bytes(unit.summed, copies)
    rows[ALL_GATHER].append((times, padded_bytes(unit.parameters, copies)))
    rows[REDUCE_SCATTER].append((sums, size))
    if config.shard_group:
        rows[ALL_REDUCE].append((bool(sums), size // copies))


def _sums_of_lanes(
    graph: OperatorGraph, operators: frozenset[int], sizes: Sequence[int], forwards: int, backwards: int
) -> Iterator[Row]:
    """Yield what lanes sum: forward what rows make, backward the gradients of what columns read."""
    split = [operator.work.split if operator.work else "" for operator in graph.operators]
    for tensor, size in zip(graph.tensors, sizes, strict=True):
        producer = graph.index[tensor.producer]
        if producer in operators and split[producer] == "row":
            yield forwards, size
        readers = {graph.index[name] for name in tensor.consumers} & operators
        if tensor.gradient and split[producer] not in WITHIN_TENSOR:
            yield backwards * sum(split[i] == "column" for i in readers), size
