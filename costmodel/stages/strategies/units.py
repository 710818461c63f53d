"""Units in which replicas gather divided parameters (ZeRO-2 and 3, FSDP).

A unit is a block that a stage holds whole, or what of the stage's parameters is outside of such blocks; its parameters
are gathered together, and their gradients summed together (Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2). Leaves
out when units are gathered within an action.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from costmodel.model.graph import Operator, OperatorGraph, Parameter
from costmodel.stages.strategies.division import ceil
from costmodel.stages.strategies.shared_sums import SharedSums


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters of a stage that are gathered together.

    Attributes
    ----------
    path : str
        The block's module; empty for what is outside of blocks.
    parameters : tuple of Parameter
    summed : tuple of Parameter
        Those that get a gradient.
    """

    path: str
    parameters: tuple[Parameter, ...]
    summed: tuple[Parameter, ...]


def units_of(graph: OperatorGraph, operators: Sequence[int], tensor: int = 1) -> tuple[Unit, ...]:
    """Return the units of a stage, blocks first; numbers by themselves (no dimension) cannot be divided.

    Parameters are as one of `tensor` lanes holds them. Blocks that share a parameter, with each other or with what is
    outside of them, are gathered with the stage.
    """
    inside, of = set(operators), graph.blocks
    beside = {block for i, block in enumerate(of) if i not in inside}
    homes: dict[str, set[str]] = {}
    readers: dict[str, Operator] = {}
    trains: set[str] = set()
    for i in operators:
        for name in graph.operators[i].parameters:
            homes.setdefault(name, set()).add(of[i])
            readers[name] = graph.operators[i]
            trains |= {name} if graph.operators[i].trainable else set()
    beside = beside.union(*(blocks for blocks in homes.values() if len(blocks) > 1))
    rows: dict[str, list[Parameter]] = {}
    for name, blocks in homes.items():
        (block,) = blocks - beside or {""}
        rows.setdefault(block, []).append(_on_lane(graph.parameter_index[name], readers[name], tensor))
    units = []
    for path in sorted(rows, key=lambda path: (not path, path)):
        divided = tuple(parameter for parameter in rows[path] if parameter.shape)
        summed = tuple(p for p in divided if p.trainable and p.name in trains)
        units += [Unit(path, divided, summed)] if divided else []
    return tuple(units)


def _on_lane(parameter: Parameter, reader: Operator, tensor: int) -> Parameter:
    """Return the part of a parameter that a lane holds: of columns along the first dimension, of rows the second."""
    dimension = {"column": 0, "row": 1}.get(reader.work.split if reader.work else "", len(parameter.shape))
    if tensor == 1 or dimension >= len(parameter.shape):
        return parameter
    shape = [ceil(n, tensor) if i == dimension else n for i, n in enumerate(parameter.shape)]
    return replace(
        parameter, shape=tuple(shape), size_bytes=parameter.size_bytes // prod(parameter.shape) * prod(shape)
    )


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Weights of a stage's units, bytes: of what is outside of blocks, of the largest block, and how many blocks."""

    beside: int
    largest: int
    count: int


class UnitWeights:
    """The sizes of units of any stage.

    Parameters
    ----------
    names : sequence of str
        Block of each operator; empty for those in none.
    weights : sequence of SharedSums
        Bytes of operators' weights.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[SharedSums]) -> None:
        self._weights = weights
        members: dict[str, list[int]] = {}
        for position, name in enumerate(names):
            members.setdefault(name, []).append(position)
        rows = [row for name, row in members.items() if name and len(members) > 1]
        self._blocks = [(row, frozenset(row), self._over(row)) for row in rows]

    def over(self, operators: Sequence[int]) -> UnitSizes:
        """Return the sizes of a stage's units; a block that it holds in part counts as outside of blocks."""
        first, last = operators[0], operators[-1]
        inside = None if isinstance(operators, range) else frozenset(operators)
        sizes = [
            size
            for row, members, size in self._blocks
            if size and first <= row[0] and row[-1] <= last and (inside is None or members <= inside)
        ]
        return UnitSizes(max(0, self._over(operators) - sum(sizes)), max(sizes, default=0), len(sizes))

    def _over(self, operators: Sequence[int]) -> int:
        return sum(each.over(operators) for each in self._weights)


def padded_bytes(parameters: Iterable[Parameter], num_copies: int) -> int:
    """Return what parameters take that are cut along their first dimension, each into equal parts."""
    return sum(p.size_bytes // max(1, prod(p.shape)) * prod(p.shape[1:]) * ceil(p.shape[0], num_copies) * num_copies
               for p in parameters)  # fmt: skip
