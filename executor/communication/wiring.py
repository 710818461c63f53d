"""What travels on each edge of a plan: tensors, shapes, which carry a gradient, in which units.

All of it follows from the plan, the capture and, where a step has shapes of its own, from those of its inputs, which
every rank is given: no rank ever sends a description. A unit is the range of micro-batches that one action of the
producer and one of the consumer share; it is named by its first. Leaves out who sends when: that is the plan's order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from costmodel.capture.lengths import ValueShapes
from costmodel.capture.shapes import Reach, TensorInfo
from costmodel.errors import DoesNotMatch
from executor.context import RankContext
from planner.plan import REPLICATE, PlanEdge
from simulator.dependencies import carries_gradient, overlapping
from simulator.schedule import StageEdge, StageGraph


class Direction(StrEnum):
    """Outputs go forward, gradients backward."""

    FORWARD = "F"
    BACKWARD = "B"


Key = tuple[Direction, int, int, int]
"""A message: direction, producer stage, consumer stage, first micro-batch; it holds all tensors of the edge."""

Template = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor that will arrive."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One edge of the stage graph.

    Attributes
    ----------
    index : int
        Position among the plan's edges.
    source, target : int
        Stages.
    names : tuple of str
        Tensors in the order in which they travel.
    flows_back : bool
        Whether the plan sends anything back.
    gradients : tuple of int
        Positions in `names` of those whose gradient flows back.
    batch_dimensions : tuple of (int or None)
        Dimension along which each tensor grows with the micro-batch; None for one that does not.
    units : mapping of int to int
        First micro-batch of each unit -> how many micro-batches it holds.
    templates : mapping of int to tuple of Template
        Micro-batches of a unit -> what `names` look like then.
    border : str
        How the plan has them on the lanes that send them.
    own : dict of int to tuple of Template
        First micro-batch of a unit -> the same for this step, where it has shapes of its own.
    """

    index: int
    source: int
    target: int
    names: tuple[str, ...]
    flows_back: bool
    gradients: tuple[int, ...]
    batch_dimensions: tuple[int | None, ...]
    units: Mapping[int, int]
    templates: Mapping[int, tuple[Template, ...]]
    border: str
    own: dict[int, tuple[Template, ...]] = field(default_factory=dict)

    def units_in(self, first: int, count: int) -> list[int]:
        """Return the units that lie in the micro-batches [first, first + count)."""
        return [unit for unit in range(first, first + count) if unit in self.units]

    def of_unit(self, first: int) -> tuple[Template, ...]:
        """Return what `names` look like in a unit of this step."""
        return self.own[first] if self.own else self.templates[self.units[first]]

    def expected(self, key: Key) -> tuple[Template, ...]:
        """Return what a message of this edge holds in this step."""
        templates = self.of_unit(key[3])
        if key[0] is Direction.FORWARD:
            return templates
        return tuple(templates[position] for position in self.gradients)


@dataclass(frozen=True)
class Wiring:
    """All edges of a plan, by their ends, and what gradients reach; `graph` has one rank a replica of a stage."""

    graph: StageGraph
    wires: Mapping[tuple[int, int], Wire]
    reach: Reach

    def incoming(self, stage: int) -> tuple[Wire, ...]:
        """Edges into a stage, by rising source."""
        return tuple(self.wires[source, stage] for source in self.graph.predecessors[stage])

    def outgoing(self, stage: int) -> tuple[Wire, ...]:
        """Edges out of a stage, by rising target."""
        return tuple(self.wires[stage, target] for target in self.graph.successors[stage])

    def take_shapes(self, shapes: ValueShapes, lengths: Callable[[int, int], tuple[int, ...]] | None) -> None:
        """Have messages of a step hold tensors of its own lengths, by unit; None for those of the capture."""
        for wire in self.wires.values():
            wire.own.clear()
            if lengths is None:
                continue
            for unit, count in wire.units.items():
                rows = zip(wire.names, wire.templates[count], strict=True)
                wire.own[unit] = tuple((shapes.of(name, lengths(unit, count)), dtype) for name, (_, dtype) in rows)


def wire_plan(context: RankContext) -> Wiring:
    """Return what travels on each edge of a plan.

    Raises
    ------
    DoesNotMatch
        When an edge names a tensor that the model does not have, or one that its lanes cannot divide.
    """
    plan, capture, lanes = context.plan, context.capture, context.lanes
    graph = lanes.graph
    units = [_units(graph, edge, plan.batch.num_microbatches) for edge in plan.edges]
    sizes = {size for row in units for size in row.values()} | {1}
    if any(multiple > 1 for multiple in graph.multiples):
        sizes.add(2)  # two sizes show which dimension is the batch
    found = {size: capture.describe_with_reach(size * plan.batch.microbatch_size) for size in sorted(sizes)}
    described = {size: {name: infos[name][0] for name in capture.flows} for size, (infos, _) in found.items()}
    _check_names(plan.edges, described[1])
    for edge in plan.edges:
        _check_parts(edge, len(lanes.blocks[edge.source][0]), described[1])
    wires = {}
    for index, edge in enumerate(plan.edges):
        back = carries_gradient(graph, StageEdge(edge.source, edge.target, edge.gradient))
        wires[edge.source, edge.target] = Wire(
            index,
            edge.source,
            edge.target,
            edge.tensors,
            back,
            tuple(i for i, name in enumerate(edge.tensors) if back and described[1][name].requires_grad),
            tuple(_batch_dimension(name, described) for name in edge.tensors),
            units[index],
            {
                size: tuple((described[size][name].shape, described[size][name].dtype) for name in edge.tensors)
                for size in set(units[index].values())
            },
            edge.border,
        )
    return Wiring(graph, wires, found[1][1])


def _check_parts(edge: PlanEdge, num_lanes: int, known: Mapping[str, TensorInfo]) -> None:
    """Refuse a border whose lanes would have parts of other lengths: modules take theirs for equal ones."""
    if edge.border == REPLICATE:
        return
    dimension = int(edge.border.removeprefix("shard(").removesuffix(")"))
    for name in edge.tensors:
        shape = known[name].shape
        if not known[name].requires_grad or len(shape) < 2:  # a scalar beside them, say, has no length
            continue
        if (length := shape[dimension]) % num_lanes:
            raise DoesNotMatch(
                f"the edge {edge.source} -> {edge.target} has {edge.border} as its border, and the {num_lanes} lanes "
                f"of stage {edge.source} do not divide the length {length} of {name!r}, {list(shape)}: take a length "
                f"that divides by {num_lanes}, or plan without --sequence-parallel"
            )


def _check_names(edges: Sequence[PlanEdge], known: Mapping[str, TensorInfo]) -> None:
    arrives: dict[tuple[str, int], int] = {}
    for edge in edges:
        for name in edge.tensors:
            other = arrives.setdefault((name, edge.target), edge.source)
            if other != edge.source:
                raise DoesNotMatch(
                    f"the tensor {name!r} reaches stage {edge.target} from the stages {other} and {edge.source}; "
                    "its gradient would count twice: send it over one edge"
                )
            if name not in known:
                raise DoesNotMatch(
                    f"the edge {edge.source} -> {edge.target} of the plan carries the tensor {name!r}, which the model "
                    "does not have; plan the model again"
                )


def _units(graph: StageGraph, edge: PlanEdge, num_microbatches: int) -> dict[int, int]:
    """Return first micro-batch -> length of each range shared by a source's and a target's action."""
    found = {}
    multiple = graph.multiples[edge.source]
    for first in range(0, num_microbatches, multiple):
        for group in overlapping(graph, edge.target, first, first + multiple):
            start = max(first, group)
            found[start] = min(first + multiple, group + graph.multiples[edge.target]) - start
    return found


def _batch_dimension(name: str, described: Mapping[int, Mapping[str, TensorInfo]]) -> int | None:
    """Return where a tensor differs between two micro-batch sizes; 0 when nothing is ever cut or joined."""
    if len(described) == 1:
        return 0
    small, large = (described[size][name].shape for size in (min(described), max(described)))
    return next((i for i, (a, b) in enumerate(zip(small, large, strict=True)) if a != b), None)


def join(
    wire: Wire, positions: Sequence[int], pieces: Sequence[Sequence[torch.Tensor]], *, gradients: bool
) -> list[torch.Tensor]:
    """Put the tensors of consecutive units together; gradients of a tensor without a batch add up."""
    if len(pieces) == 1:
        return list(pieces[0])
    joined = []
    for i, position in enumerate(positions):
        parts = [piece[i] for piece in pieces]
        dimension = wire.batch_dimensions[position]
        if dimension is not None:
            joined.append(torch.cat(parts, dimension))
        else:
            joined.append(torch.stack(parts).sum(0) if gradients else parts[0])
    return joined


def cut(
    wire: Wire, positions: Sequence[int], tensors: Sequence[torch.Tensor], units: Sequence[int], *, gradients: bool
) -> list[list[torch.Tensor]]:
    """Divide tensors of several units among them; the inverse of `join`.

    A tensor without a batch goes whole to every unit; its gradient goes to the first, zeros to the others.
    """
    if len(units) == 1:
        return [list(tensors)]
    cuts = []
    for number in range(len(units)):
        row = []
        for position, tensor in zip(positions, tensors, strict=True):
            dimension = wire.batch_dimensions[position]
            if dimension is not None:
                lengths = [wire.of_unit(u)[position][0][dimension] for u in units]
                row.append(tensor.narrow(dimension, sum(lengths[:number]), lengths[number]))
            else:
                row.append(torch.zeros_like(tensor) if gradients and number else tensor)
        cuts.append(row)
    return cuts
