"""A small model of one piece of each kind, from whose prices those of a whole repeated model follow.

A piece is a block, or an operator outside of blocks. Pieces are of one kind where their operators do and take the same
and read from the same kinds of operators. A language model of two thousand operators has some fifty in the pieces of
its kinds, whatever its depth. A tensor that enters a block that is left out enters the block that represents it from
the operator that represents its producer. Leaves out what differs by place: prices of the whole are sums of pieces.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

from costmodel.model.graph import Operator, OperatorGraph, Tensor
from costmodel.model.profile import Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.stages.strategies.blocks import block_names


@dataclass(frozen=True)
class Quotient:
    """A profile of one piece of each kind.

    Attributes
    ----------
    profile : Profile
        Of the pieces that represent all others; `whole` holds their part by trainable bytes.
    standing_for : tuple of int
        For each operator of the whole graph the position, in `profile`, of the operator that represents it.
    """

    profile: Profile
    standing_for: tuple[int, ...]


def quotient_of(profile: Profile) -> Quotient:
    """Return one piece of each kind of a profile."""
    graph = profile.graph
    made: list[list[int]] = [[] for _ in graph.operators]
    for position, tensor in enumerate(graph.tensors):
        made[graph.index[tensor.producer]].append(position)
    first: dict[object, list[int]] = {}
    stands: dict[int, int] = {}
    for kind, row in _pieces(profile, made):
        stands.update(zip(row, first.setdefault(kind, row), strict=True))
    kept = sorted(position for row in first.values() for position in row)
    number = {position: i for i, position in enumerate(kept)}
    standing_for = tuple(number[stands[i]] for i in range(len(graph.operators)))
    return Quotient(_restricted(profile, kept, standing_for, made), standing_for)


def _pieces(profile: Profile, made: Sequence[Sequence[int]]) -> list[tuple[object, list[int]]]:
    """Return each piece with its kind."""
    graph = profile.graph
    names = block_names(graph.operators)
    if set(names) == {"all"}:
        rows = [[i] for i in range(len(names))]
    else:
        rows = []
        for name, members in groupby(range(len(names)), key=names.__getitem__):
            row = list(members)
            rows += [row] if name else [[i] for i in row]
    reads: list[list[int]] = [[] for _ in names]
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            reads[graph.index[consumer]].append(graph.index[tensor.producer])
    numbers: dict[object, int] = {}
    alike = [numbers.setdefault(_equivalence_key(profile, i, made[i]), len(numbers)) for i in range(len(names))]
    found: list[tuple[object, list[int]]] = []
    for row in rows:
        own = set(row)
        kind = tuple((alike[i], tuple(sorted((alike[p], p in own) for p in reads[i]))) for i in row)
        found.append((kind, row))
    return found


def _equivalence_key(profile: Profile, position: int, made: Sequence[int]) -> object:
    """Return all of an operator that its price depends on."""
    graph = profile.graph
    operator: Operator = graph.operators[position]
    parameters = tuple(
        (p.shape, p.size_bytes, p.trainable) for p in map(graph.parameter_index.get, operator.parameters) if p
    )
    saved = tuple((each.size_bytes, each.fixed) for each in operator.saved)
    tensors = tuple((graph.tensors[t].size_bytes, graph.tensors[t].gradient) for t in made)
    readers = len(graph.successors[position])
    return operator.work, operator.trainable, profile.times[position], parameters, saved, tensors, readers


def _restricted(
    profile: Profile, kept: Sequence[int], standing_for: Sequence[int], made: Sequence[Sequence[int]]
) -> Profile:
    """Return the profile of these operators alone."""
    graph = profile.graph
    slot = {position: (standing_for[i], j) for i, row in enumerate(made) for j, position in enumerate(row)}
    standing = {slot[t]: t for i in kept for t in made[i]}
    consumers: dict[tuple[int, int], set[int]] = {key: set() for key in standing}
    number = {position: i for i, position in enumerate(kept)}
    for position, tensor in enumerate(graph.tensors):
        readers = {number[graph.index[name]] for name in tensor.consumers if graph.index[name] in number}
        consumers[slot[position]] |= {reader for reader in readers if reader > slot[position][0]}
    storages = {t.storage: graph.tensors[standing[slot[i]]].storage for i, t in enumerate(graph.tensors)}
    names = [graph.operators[i].name for i in kept]
    tensors: list[Tensor] = [
        replace(graph.tensors[position], consumers=tuple(names[i] for i in sorted(consumers[key])))
        for key, position in sorted(standing.items(), key=lambda row: row[1])
    ]
    operators = tuple(_with_storages(graph.operators[i], storages) for i in kept)
    read = {name for operator in operators for name in operator.parameters}
    parameters = tuple(p for p in graph.parameters if p.name in read)
    return replace(
        profile,
        graph=OperatorGraph(graph.name, operators, tuple(tensors), parameters),
        times=tuple(profile.times[i] for i in kept),
        whole=_part_of_whole(profile, read),
        accumulate_of={name: ns for name, ns in profile.accumulate_of.items() if name in read},
    )


def _with_storages(operator: Operator, storages: Mapping[int, int]) -> Operator:
    saved = tuple(replace(each, storage=storages.get(each.storage, each.storage)) for each in operator.saved)
    return replace(operator, saved=saved)


def _part_of_whole(profile: Profile, read: Collection[str]) -> WholeModelMeasurements:
    """Return what was measured on the whole model, as far as these parameters have part in it."""
    graph, whole = profile.graph, profile.whole
    every = {name for operator in graph.operators for name in operator.parameters}
    trained = {p.name: profile.accumulate_of.get(p.name, p.size_bytes) for p in graph.parameters if p.trainable}
    part = sum(size for name, size in trained.items() if name in read)
    share = Fraction(part, max(1, sum(size for name, size in trained.items() if name in every)))
    return replace(
        whole, accumulate_ns=round(whole.accumulate_ns * share), optimizer_ns=round(whole.optimizer_ns * share)
    )
