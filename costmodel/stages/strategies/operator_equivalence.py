"""Operators that are alike in all that their prices depend on, so that a whole model is priced by one of each kind.

A language model of two thousand operators has about twenty kinds. Tensors are alike when what makes and what reads
them is. Leaves out stages: which of them share a tensor depends on the cut.
"""

from collections.abc import Iterable, Sequence

from costmodel.model.graph import OperatorGraph
from costmodel.stages.strategies.shared_sums import Item
from costmodel.stages.strategies.traffic import OF_TENSORS, Reads


class OperatorEquivalence:
    """The kinds of operators and tensors of one graph.

    Parameters
    ----------
    graph : OperatorGraph
    reads : Reads
    sizes : sequence of int
        Bytes of each tensor.
    alike : sequence of int
        For each operator a number that those share which do and take the same.

    Attributes
    ----------
    operators, tensors : dict of int to int
        The first of each kind, and how many there are.
    looked_at : tuple of int
        Operators that tell what all take: the first of each kind, and all that read the first tensor of each kind.
    """

    def __init__(self, graph: OperatorGraph, reads: Reads, sizes: Sequence[int], alike: Sequence[int]) -> None:
        makers = [graph.index[tensor.producer] for tensor in graph.tensors]
        what = [
            (size, tensor.gradient, alike[maker])
            for size, tensor, maker in zip(sizes, graph.tensors, makers, strict=True)
        ]
        kinds = [
            (alike[i], operator.trainable, tuple(what[t] for t in reads.read[i]), tuple(what[t] for t in reads.made[i]))
            for i, operator in enumerate(graph.operators)
        ]
        number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        readers: list[list[tuple[int, int]]] = [[] for _ in graph.tensors]
        for i, row in enumerate(reads.read):
            for slot, tensor_index in enumerate(row):
                readers[tensor_index].append((number[kinds[i]], slot))
        self.operators = _first_of_each(kinds)
        self.tensors = _first_of_each([(what[t], tuple(sorted(set(row)))) for t, row in enumerate(readers)])
        reading = {i for i, row in enumerate(reads.read) if not self.tensors.keys().isdisjoint(row)}
        self.looked_at = tuple(sorted(reading.union(self.operators)))

    def sum(self, items: Iterable[Item]) -> int:
        """Return the sum over all operators of what those looked at need; what several share counts once."""
        largest: dict[tuple[str, int], int] = {}
        for _, key, size in items:
            assert isinstance(key, tuple)  # noqa: S101 - `Traffic.items` names them
            largest[key] = max(size, largest.get(key, 0))
        return sum(
            size * (self.tensors if name in OF_TENSORS else self.operators).get(index, 0)
            for (name, index), size in largest.items()
        )


def _first_of_each(kinds: Sequence[object]) -> dict[int, int]:
    """Return the first position of each kind, and how often it occurs."""
    first: dict[object, int] = {}
    found: dict[int, int] = {}
    for i, kind in enumerate(kinds):
        position = first.setdefault(kind, i)
        found[position] = found.get(position, 0) + 1
    return found
