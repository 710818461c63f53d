"""Moves of the local search: an atom, with its descendants (or its ancestors) within its stage, to another stage.

Or to a new one; the stage graph must stay without cycles. Where several stages share a place, two of them may change
numbers, and so places, and two may be joined while another is split: each place keeps as many. A step is the longest of
all ways through it: on the way that is the longest, work saves nothing where it moves to a stage that this passes as
often as the one it leaves. So moves to stages that the critical path passes less often come first. Leaves out messages,
which simulation sees.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product, starmap
from random import Random

from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Atoms, Partition, numbered
from planner.search.space.partitions import FamilyPartitions, by_stage

NUM_RENUMBERED = 2
"""Pairs of stages exchanged, and as many joined, among the first random moves."""


def moves(cuts: FamilyPartitions, candidate: Evaluated, rng: Random | None = None) -> Iterator[Partition]:
    """Yield the partitions one move away, the most promising first, or in random order.

    A move that fills a place beyond the candidate's step time is left out: no order could make up for it.
    """
    near, partition = _Neighbours(cuts, candidate), candidate.candidate.partition
    order, targets = list(range(len(cuts.atoms))), list(near.targets)
    if rng:
        rng.shuffle(order)
        rng.shuffle(targets)
        for pairs, changed in ((list(near.exchanges()), near.exchanged), (list(near.joins()), near.joined)):
            yield from starmap(changed, rng.sample(pairs, min(len(pairs), NUM_RENUMBERED)))
        yield from near.moves(order, targets, lambda own, target: True)
        return
    passes = _passes(cuts, candidate)
    load = by_stage(near.places, cuts.shares_ns)
    order.sort(key=lambda atom: (-passes[partition[atom]], -load[near.places[atom]], atom))
    targets.sort(key=passes.__getitem__)
    yield from near.moves(order, targets, lambda own, target: passes[target] < passes[own])
    yield from near.moves(order, targets, lambda own, target: passes[target] >= passes[own])
    yield from starmap(near.exchanged, near.exchanges())
    yield from starmap(near.joined, near.joins())


def _passes(cuts: FamilyPartitions, candidate: Evaluated) -> list[float]:
    """Return how often the critical path passes each stage, in whole micro-batches, and 0 for a new stage.

    What does not fit has to get smaller first: there nothing is said.
    """
    num_stages = candidate.candidate.num_stages
    if not candidate.fits:
        return [0.0] * (num_stages + 1)
    times = cuts.evaluator.shortest(candidate.candidate).times
    work = by_stage(candidate.candidate.partition, cuts.paces_ns)
    return [ns / max(1, one) for ns, one in zip(times.on_path_ns, work, strict=True)] + [0.0]


class _Neighbours:
    """The moves of one candidate.

    Attributes
    ----------
    places : tuple of int
        Place of each atom.
    targets : range
        Stages to which something may move, a new one among them.
    """

    def __init__(self, cuts: FamilyPartitions, candidate: Evaluated) -> None:
        self._cuts, self._partition = cuts, candidate.candidate.partition
        self._stages = _Stages(cuts.atoms, self._partition)
        self._num_places = cuts.places_of(self._partition)
        self.places = tuple(stage % self._num_places for stage in self._partition)
        most_ns = candidate.step_time_ns * max(cuts.speeds) / cuts.num_microbatches
        self._room_ns = [most_ns - work for work in by_stage(self.places, cuts.works_ns)] if candidate.fits else None
        self.targets = range(min(self._stages.count + (cuts.fixed_stages is None), cuts.num_stages))

    def moves(
        self, order: Sequence[int], targets: Sequence[int], wanted: Callable[[int, int], bool]
    ) -> Iterator[Partition]:
        """Yield the partitions after wanted moves (from stage, to stage) of these atoms, each set of atoms once."""
        atoms, seen = self._cuts.atoms, set[int]()
        for atom in order:
            own = self._partition[atom]
            towards = [target for target in targets if target != own and wanted(own, target)]
            for related in (atoms.descendants[atom], atoms.ancestors[atom]) if towards else ():
                moved = (related & self._stages.masks[own]) | 1 << atom
                if moved not in seen:
                    seen.add(moved)
                    yield from self._to(own, moved, towards)

    def exchanges(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of stages that may change numbers, where the number of a stage says its place."""
        if self._cuts.family.chunks > 1:
            pairs = combinations(range(self._stages.count), 2)
            yield from (pair for pair in pairs if self._stages.may_change(*pair))

    def exchanged(self, one: int, other: int) -> Partition:
        """Return the partition with two stages exchanged."""
        number = {one: other, other: one}
        return tuple(number.get(stage, stage) for stage in self._partition)

    def joins(self) -> Iterator[tuple[int, int, int]]:
        """Yield what may be joined while another stage is split, so that as many remain: see `joined`."""
        if self._cuts.family.chunks == 1:
            return
        atoms, stages = self._cuts.atoms, self._stages
        for stage, mask in enumerate(stages.masks):
            tails = {atoms.descendants[atom] & mask | 1 << atom for atom in stages.members[stage]} - {mask}
            for tail, first in product(sorted(tails), range(stages.count - 1)):
                if stage not in (first, first + 1):
                    yield stage, tail, first

    def joined(self, stage: int, tail: int, first: int) -> Partition:
        """Return the partition with the tail of a stage behind it, and the stage `first` joined to the next."""
        split = (each + (each > stage or tail >> atom & 1) for atom, each in enumerate(self._partition))
        after = first + (first > stage)
        return tuple(each - (each > after) for each in split)

    def _to(self, own: int, moved: int, targets: Sequence[int]) -> Iterator[Partition]:
        """Yield the partitions in which these atoms of a stage stand in others."""
        rows = [atom for atom in self._stages.members[own] if moved >> atom & 1]
        more_ns, closed = sum(self._cuts.works_ns[atom] for atom in rows), self._stages.closed(rows)
        for target in targets:
            if closed >> target & 1 or not self._has_room(own, target, more_ns):
                continue
            groups = [target if moved >> atom & 1 else stage for atom, stage in enumerate(self._partition)]
            after = numbered(self._cuts.atoms, groups)
            if after not in (None, self._partition) and self._cuts.fixed_stages in (None, max(after) + 1):
                yield after

    def _has_room(self, own: int, target: int, more_ns: int) -> bool:
        """Whether the place of a stage may take on so much work; a new stage may stand anywhere."""
        there, here = target % self._num_places, own % self._num_places
        return self._room_ns is None or target == self._stages.count or there == here or more_ns <= self._room_ns[there]


class _Stages:
    """The stage graph of a partition, as far as it tells moves that close a cycle."""

    def __init__(self, atoms: Atoms, partition: Partition) -> None:
        self.partition, self.count = partition, max(partition) + 1
        self.members: list[list[int]] = [[] for _ in range(self.count)]
        self.masks, self._after = [0] * self.count, [0] * self.count
        self._inputs, self._outputs = [0] * len(atoms), [0] * len(atoms)
        for atom, stage in enumerate(partition):
            self.members[stage].append(atom)
            self.masks[stage] |= 1 << atom
            for successor in atoms.successors[atom]:
                if partition[successor] != stage:
                    self._after[stage] |= 1 << partition[successor]
                    self._outputs[atom] |= 1 << partition[successor]
                    self._inputs[successor] |= 1 << stage
        self._reached: dict[int, list[int]] = {}

    def may_change(self, one: int, other: int) -> bool:
        """Return whether the stages would stay in a topological order if a stage and a later one changed numbers."""
        between = range(one, other)
        return not self._after[one] >> one + 1 & (1 << len(between)) - 1 and not any(
            self._after[stage] >> other & 1 for stage in between
        )

    def closed(self, moved: Sequence[int]) -> int:
        """Return the stages to which some atoms of one stage cannot move without a cycle, by ways past that stage."""
        own = self.partition[moved[0]]
        if own not in self._reached:
            self._reached[own] = self._reach_without(own)
        reached, inputs, outputs = self._reached[own], 0, 0
        for atom in moved:
            inputs |= self._inputs[atom]
            outputs |= self._outputs[atom]
        found = 0
        for stage, mask in enumerate(reached):
            found |= (1 << stage) * bool(mask & inputs)  # it leads to what the atoms read
            found |= mask * (outputs >> stage & 1)  # what reads the atoms leads to it
        return found

    def _reach_without(self, left_out: int) -> list[int]:
        """Return the stages that each other stage leads to; stages are numbered in a topological order."""
        reached = [0] * self.count
        for stage in reversed(range(self.count)):
            after = self._after[stage] & ~(1 << left_out)
            reached[stage] = after
            for other in range(stage + 1, self.count):
                if after >> other & 1:
                    reached[stage] |= reached[other]
        reached[left_out] = 0
        return reached
