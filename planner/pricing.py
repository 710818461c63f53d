"""What a partition of the atoms costs: its stages, what flows between them, both priced.

As a graph, a stage sends each tensor straight to every stage that reads it. As a chain (stages in one
line), a tensor passes through every stage on its way, which receives, holds and sends it on. Stage i runs
on rank i. All tensors of an edge travel as one message, which takes host time at both ends: from F the outputs,
from I the gradients. Leaves out orders and time.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.machines.collectives import all_reduce_ns
from costmodel.model.graph import Tensor
from costmodel.stages.costs import Amount, Costs, EdgeCost, StageCost
from costmodel.stages.measured import CostModel
from planner.prepare import Atoms

Partition = tuple[int, ...]
"""Stage of each atom; stages are numbered from 0 in a topological order of the stage graph."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A priced partition.

    Attributes
    ----------
    operators : tuple of tuple of int
        Positions of each stage's operators.
    tensors : tuple of tuple of int
        Positions of the tensors that each edge of `costs` carries.
    costs : Costs
    reduces : tuple of bool
        Whether each stage sums gradients with others, however little time that takes.
    """

    operators: tuple[tuple[int, ...], ...]
    tensors: tuple[tuple[int, ...], ...]
    costs: Costs
    reduces: tuple[bool, ...]


class Pricing:
    """Prices partitions of one set of atoms at one micro-batch size; remembers stages it has priced."""

    def __init__(self, model: CostModel, atoms: Atoms) -> None:
        self.model, self.atoms = model, atoms
        self._tensors = model.profile.graph.tensors
        self._known: dict[tuple[int, tuple[int, ...], bool], StageCost] = {}
        self._known_host_ns: dict[tuple[int, ...], tuple[int, int]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._shared = _shared_parameters(atoms)

    def graph(self, partition: Partition) -> Layout:
        """Price a partition as a graph of stages."""
        carried: dict[tuple[int, int], list[int]] = {}
        for flow in self.atoms.flows:
            source = partition[flow.producer]
            for target in sorted({partition[c] for c in flow.consumers} - {source}):
                carried.setdefault((source, target), []).append(flow.tensor)
        return self._layout(partition, carried)

    def chain(self, partition: Partition) -> Layout:
        """Price a partition as stages in one line, each tensor relayed up to its last reader."""
        carried: dict[tuple[int, int], list[int]] = {(i, i + 1): [] for i in range(max(partition))}
        for flow in self.atoms.flows:
            for stage in range(partition[flow.producer], max(partition[c] for c in flow.consumers)):
                carried[stage, stage + 1].append(flow.tensor)
        return self._layout(partition, {ends: row for ends, row in carried.items() if row})

    def _layout(self, partition: Partition, carried: dict[tuple[int, int], list[int]]) -> Layout:
        edges = tuple(sorted(carried))
        masks = [0] * (max(partition) + 1)
        for atom, stage in enumerate(partition):
            masks[stage] |= 1 << atom
        received: list[list[int]] = [[] for _ in masks]
        returns = [False] * len(masks)
        for source, target in edges:
            received[target] += carried[source, target]
            if any(self._tensors[t].gradient for t in carried[source, target]):
                returns[source] = returns[target] = True
        stages = [
            self._stage(mask, tuple(sorted(row)), back)
            for mask, row, back in zip(masks, received, returns, strict=True)
        ]
        priced, tied = self._with_reductions(partition, self._with_host_time(stages, carried))
        return Layout(
            tuple(self._operators(mask) for mask in masks),
            tuple(tuple(carried[ends]) for ends in edges),
            Costs(
                tuple(priced),
                tuple(self._edge(ends, [self._tensors[t] for t in carried[ends]]) for ends in edges),
            ),
            tuple(stage in tied for stage in range(len(stages))),
        )

    def _operators(self, mask: int) -> tuple[int, ...]:
        if mask not in self._members:
            rows = (self.atoms.members[atom] for atom in range(len(self.atoms)) if mask >> atom & 1)
            self._members[mask] = tuple(sorted(operator for row in rows for operator in row))
        return self._members[mask]

    def _stage(self, mask: int, received: tuple[int, ...], returns: bool) -> StageCost:
        """Price one stage; it has a backward also when it only passes gradients on."""
        key = (mask, received, returns)
        if key not in self._known:
            cost = self.model.stage(self._operators(mask), (self._tensors[t] for t in received))
            self._known[key] = replace(cost, backward=cost.backward or returns)
        return self._known[key]

    def _edge(self, ends: tuple[int, int], tensors: Sequence[Tensor]) -> EdgeCost:
        size = sum(self.model.tensor_bytes(tensor) for tensor in tensors)
        gradient = any(tensor.gradient for tensor in tensors)
        return EdgeCost(*ends, self.model.p2p_ns(*ends, size), size, gradient)

    def _with_host_time(
        self, stages: Sequence[StageCost], carried: Mapping[tuple[int, int], Sequence[int]]
    ) -> list[StageCost]:
        """Add what its messages take from each stage: the outputs from F, the gradients from I."""
        forward, backward = [0] * len(stages), [0] * len(stages)
        for ends, row in carried.items():
            there_ns, back_ns = self._host_ns(tuple(row))
            for stage in ends:
                forward[stage] += there_ns
                backward[stage] += back_ns
        return [
            with_host_time(stage, [there_ns], [back_ns])
            for stage, there_ns, back_ns in zip(stages, forward, backward, strict=True)
        ]

    def _host_ns(self, tensors: tuple[int, ...]) -> tuple[int, int]:
        """Return what one end loses to the message of these tensors, and to that of their gradients."""
        if tensors not in self._known_host_ns:
            row = [self._tensors[t] for t in tensors]
            back = [tensor for tensor in row if tensor.gradient]
            host_ns = self.model.host_ns
            self._known_host_ns[tensors] = host_ns(0, 1, row), host_ns(0, 1, back) if back else 0
        return self._known_host_ns[tensors]

    def _with_reductions(
        self, partition: Partition, stages: Iterable[StageCost]
    ) -> tuple[list[StageCost], Container[int]]:
        """Add the time in which stages that share trainable parameters sum their gradients; return those stages too."""
        priced = list(stages)
        tied: dict[int, int] = {}
        most: dict[int, int] = {}
        for size, readers in self._shared:
            owners = {partition[atom] for atom in readers}
            if len(owners) > 1:
                for stage in owners:
                    tied[stage] = tied.get(stage, 0) + size
                    most[stage] = max(most.get(stage, 0), len(owners))
        for stage, size in tied.items():
            ranks = tuple(range(most[stage]))  # where stages will stand is not known here
            priced[stage] = replace(priced[stage], reduce_ns=all_reduce_ns(self.model.cluster, ranks, size))
        return priced, tied


def with_host_time(stage: StageCost, forward: Sequence[int], backward: Sequence[int]) -> StageCost:
    """Add host times to the F and I of a stage, one value each or one an action."""
    return replace(
        stage,
        forward_ns=_plus(stage.forward_ns, forward),
        backward_input_ns=_plus(stage.backward_input_ns, backward),
    )


def _plus(amount: Amount, more: Sequence[int]) -> Amount:
    base = (amount,) * len(more) if isinstance(amount, int) else amount
    found = [a + b for a, b in zip(base, more, strict=True)]
    return found[0] if len(set(found)) == 1 else tuple(found)


def _shared_parameters(atoms: Atoms) -> list[tuple[int, tuple[int, ...]]]:
    """Bytes of each trainable parameter that several atoms read, with those atoms."""
    readers: dict[str, set[int]] = {}
    for position, operator in enumerate(atoms.graph.operators):
        for name in operator.parameters:
            readers.setdefault(name, set()).add(atoms.atom_of[position])
    known = atoms.graph.parameter_index
    return [
        (known[name].size_bytes, tuple(sorted(row)))
        for name, row in readers.items()
        if len(row) > 1 and known[name].trainable
    ]


def numbered(atoms: Atoms, groups: Sequence[int]) -> Partition | None:
    """Return the groups of a partition numbered from 0 in a topological order, or None when they form a cycle.

    Among groups that are ready, the one with the lowest atom comes first.
    """
    names = dict.fromkeys(groups)
    place = {group: 1 << i for i, group in enumerate(names)}  # groups in order of their lowest atom
    reads = dict.fromkeys(names, 0)
    for source, target in atoms.edges:
        if groups[source] != groups[target]:
            reads[groups[target]] |= place[groups[source]]
    number: dict[int, int] = {}
    done, left = 0, list(names)
    while left:
        chosen = next((group for group in left if not reads[group] & ~done), None)
        if chosen is None:
            return None
        number[chosen] = len(number)
        done |= place[chosen]
        left.remove(chosen)
    return tuple([number[group] for group in groups])
