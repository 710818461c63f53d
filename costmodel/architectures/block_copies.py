"""Blocks that were left out of a capture because they compute what another does: their operators put back.

A copy's operators, tensors, parameters and storages are those of the block that it is like; it reads what the block
before it hands on, and the next block reads what it does. All have the names that a capture of all blocks gives them
(`costmodel.capture.node_names`). Leaves out which blocks are alike (`costmodel.capture.repeated_blocks`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from costmodel.model.blocks import block_of
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, Tensor


class SeveralTensors(Exception):
    """A block's operators do not show what it hands on."""


class Names(Protocol):
    """What operators and tensors are called in the whole graph."""

    def whole(self, name: str) -> str:
        """Return what one of the graph is called."""

    def copied(self, name: str, like: str, path: str) -> str:
        """Return what a block's is called that is `name`, in the whole graph, in the block that it is like."""


def copy_blocks(
    graph: OperatorGraph, lists: Iterable[Sequence[str]], like: Mapping[str, str], order: Sequence[str], names: Names
) -> OperatorGraph:
    """Return a graph with the operators of the blocks that it lacks.

    Parameters
    ----------
    graph : OperatorGraph
    lists : iterable of sequence of str
        Paths of blocks, in order; the first and last of each are in the graph.
    like : mapping of str to str
        Of each block that the graph lacks, the one whose operators it has.
    order : sequence of str
        Names of all parameters as the model lists them.
    names : Names

    Raises
    ------
    SeveralTensors
        When a block next to one that is lacking hands on more than one tensor.
    """
    graph = _renamed(graph, names.whole)
    for blocks in lists:
        graph = _Blocks(graph, blocks, like, names).copied()
    place = {name: i for i, name in enumerate(order)}
    return replace(graph, parameters=tuple(sorted(graph.parameters, key=lambda p: place.get(p.name, len(place)))))


def _renamed(graph: OperatorGraph, name: Callable[[str], str]) -> OperatorGraph:
    operators = (o if o.kind == LOSS else replace(o, name=name(o.name)) for o in graph.operators)
    tensors = (
        replace(
            tensor, name=name(tensor.name), producer=name(tensor.producer),
            consumers=tuple(LOSS if reader == LOSS else name(reader) for reader in tensor.consumers),
        )
        for tensor in graph.tensors
    )  # fmt: skip
    return replace(graph, operators=tuple(operators), tensors=tuple(tensors))


@dataclass(slots=True)
class _Block:
    """A block of the whole graph: the one whose operators it has, and the tensor of the block before that this reads.

    `storages` are those of the other block that have another number here.
    """

    path: str
    like: str
    names: Names
    given: Tensor | None = None
    storages: dict[int, int] = field(default_factory=dict)

    def name(self, name: str) -> str:
        """Return what an operator, or a tensor, of the other block is called here."""
        return name if self.path == self.like else self.names.copied(name, self.like, self.path)

    def path_of(self, path: str) -> str:
        """Return a module's or parameter's path here."""
        inside = path == self.like or path.startswith(f"{self.like}.")
        return f"{self.path}{path[len(self.like) :]}" if inside else path

    def storage(self, storage: int) -> int:
        """Return a storage's number here."""
        return self.storages.get(storage, storage)

    def operator(self, operator: Operator) -> Operator:
        """Return an operator of the other block as it is here."""
        return replace(
            operator, name=self.name(operator.name), module=self.path_of(operator.module),
            parameters=tuple(map(self.path_of, operator.parameters)),
            saved=tuple(replace(saved, storage=self.storage(saved.storage)) for saved in operator.saved),
        )  # fmt: skip


class _Blocks:
    """One list of blocks of a graph."""

    def __init__(self, graph: OperatorGraph, paths: Sequence[str], like: Mapping[str, str], names: Names) -> None:
        self._graph = graph
        self._block = {o.name: block_of(o.module) for o in graph.operators}
        self._all = [_Block(path, like.get(path, path), names) for path in paths]
        self._before = {one.path: other for one, other in zip(self._all[1:], self._all, strict=False)}
        self._here = {path: [b for b in self._all if b.like == path] for path in paths if path not in like}
        there = list(self._here)
        self._previous = dict(zip(there[1:], there, strict=False))
        self._number()

    def copied(self) -> OperatorGraph:
        """Return the graph with all blocks."""
        operators = tuple(self._operators())
        place = {operator.name: i for i, operator in enumerate(operators)}
        tensors = sorted(self._tensors(place), key=lambda tensor: place[tensor.producer])
        parameters = {parameter.name: parameter for parameter in self._parameters()}
        return replace(self._graph, operators=operators, tensors=tuple(tensors), parameters=tuple(parameters.values()))

    def _number(self) -> None:
        """Give each block what it reads of the block before, and the numbers of its storages."""
        first = self._first_seen()
        free = max(first, default=-1) + 1
        for block in self._all[1:]:
            before = self._before[block.path]
            if block.path == block.like and before.path == before.like:
                continue
            block.given = self._handed_on(self._previous[block.like])
            if block.path != block.like:
                own = [storage for storage, path in first.items() if path == block.like]
                block.storages = {storage: free + i for i, storage in enumerate(own)}
                free += len(own)
            block.storages[block.given.storage] = before.storage(self._handed_on(before.like).storage)

    def _first_seen(self) -> dict[int, str]:
        """Return the block in which each storage is seen first: what it shares with earlier ones is not its own."""
        made: dict[str, list[int]] = {}
        for tensor in self._graph.tensors:
            made.setdefault(tensor.producer, []).append(tensor.storage)
        first: dict[int, str] = {}
        for operator in self._graph.operators:
            for storage in (*made.get(operator.name, ()), *(saved.storage for saved in operator.saved)):
                first.setdefault(storage, self._block[operator.name])
        first.pop(-1, None)
        return first

    def _handed_on(self, path: str) -> Tensor:
        """Return the one tensor that a block of the graph hands on."""
        found = [
            t for t in self._graph.tensors
            if self._block[t.producer] == path and any(self._block[name] != path for name in t.consumers)
        ]  # fmt: skip
        if len(found) != 1:
            raise SeveralTensors(f"{path} hands on {len(found)} tensors")
        return found[0]

    def _operators(self) -> Iterator[Operator]:
        """Yield all operators, those of copies after the ones of the block before."""
        own = {path: [o for o in self._graph.operators if self._block[o.name] == path] for path in self._here}
        last = {operators[-1].name for operators in own.values() if operators}
        number = {block.path: i for i, block in enumerate(self._all)}
        for operator in self._graph.operators:
            path = self._block[operator.name]
            yield self._all[number[path]].operator(operator) if path in own else operator
            if operator.name in last:
                for block in self._all[number[path] + 1 :]:
                    if block.path == block.like:
                        break
                    yield from map(block.operator, own[block.like])

    def _tensors(self, place: Mapping[str, int]) -> Iterator[Tensor]:
        """Yield all tensors with all that read them."""
        readers: dict[str, list[str]] = {}
        made: list[Tensor] = []
        for tensor in self._graph.tensors:
            at = self._block[tensor.producer]
            made += [self._made(tensor, block) for block in self._here[at]] if at in self._here else [tensor]
            for name in tensor.consumers:
                for block in self._here.get(self._block[name], (None,)):
                    if block is None:
                        readers.setdefault(tensor.name, []).append(name)
                    else:
                        readers.setdefault(self._read(tensor, block, at), []).append(block.name(name))
        for tensor in made:
            yield replace(tensor, consumers=tuple(sorted(readers.get(tensor.name, ()), key=place.__getitem__)))

    def _made(self, tensor: Tensor, block: _Block) -> Tensor:
        return replace(
            tensor, name=block.name(tensor.name), producer=block.name(tensor.producer),
            storage=block.storage(tensor.storage),
        )  # fmt: skip

    def _read(self, tensor: Tensor, block: _Block, producer: str) -> str:
        """Return the name of what a block reads in place of a tensor that the block that it is like reads."""
        if producer == block.like:
            return block.name(tensor.name)
        if block.given is None or tensor.name != block.given.name:
            return tensor.name
        before = self._before[block.path]
        return before.name(self._handed_on(before.like).name)

    def _parameters(self) -> Iterator[Parameter]:
        for parameter in self._graph.parameters:
            yield parameter
            for block in self._here.get(block_of(parameter.name), ()):
                yield replace(parameter, name=block.path_of(parameter.name))
