"""Annealed cuts of a family: the best of many thousand random changes, by a compiled value of a cut.

The value (`planner.search.solvers.annealing.kernels`) adds up what atoms take alone; the simulator ranks what comes
out. Effort is counted in changes, so that the result depends on inputs and seed alone. Where backwards are split
the closed form alone judges, for their orders take too long to make. Leaves out pinned stages.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from operator import le

import numpy as np

from costmodel.errors import UsageError
from costmodel.stages.costs import at
from planner.graph.atoms import Partition, numbered
from planner.question.problem import AUTO_SCHEDULES
from planner.search.solvers.annealing.data import LOOPED, RULES, Cut, Floats, Ints, Room, room_for
from planner.search.solvers.annealing.kernels import (
    DELAYED,
    DEPTH,
    FREE,
    IN_FLIGHT,
    LINE,
    NEVER,
    THERE,
    TWICE,
    anneal,
    value_of,
)
from planner.search.solvers.relaxation.transfers import least_host_ns
from planner.search.space.bottleneck_partition import bottleneck_partition
from planner.search.space.partitions import FamilyPartitions
from simulator.actions import Kind
from simulator.schedules.list_simulation import Numbers

CHANGES = 200
"""Simulated changes for each atom and stage, as far as the work allows."""
MOST_CLOSED, MOST_HALVED = 20_000, 200_000
"""Changes that the closed form judges before, and where it judges alone."""
WORK, FEWEST = 60_000_000, 1_000
"""Atoms, flows and actions that are gone through in the simulated changes, and how many are made however long."""
HOT, COLD = 0.05, 1e-4
"""Parts of a cut's value: the temperature at first, and in the end."""
LOOPED_HOT, LOOPED_CHANGES = 0.03, 2
"""At first where several stages share a place, of which the closed form says little; and how many more changes then."""
AGAIN = 0.02
"""The same at first where a good cut is annealed again."""
FILLED = 4
"""Micro-batches for each stage after which a pipeline is taken to run evenly."""


class Annealer:
    """Anneals the cuts of one family.

    Parameters
    ----------
    cuts : FamilyPartitions
    line : bool
        Whether stages form a line.
    effort : float
        Part of the changes of a whole annealing that are made.

    Attributes
    ----------
    cut : Cut
        What cuts of the family are valued by.
    """

    def __init__(self, cuts: FamilyPartitions, *, line: bool, effort: float = 1.0) -> None:
        self._cuts, self.cut = cuts, _cut(cuts, line)
        actions = 2 * cuts.num_stages * self.cut.num_simulated * max(1, len(self.cut.warmups))
        work = len(cuts.atoms) + len(self.cut.readers) + cuts.num_stages**2 + 2 * actions
        most = CHANGES * len(cuts.atoms) * cuts.num_stages
        looped = len(self.cut.orders) > 0
        self._hot, more = (LOOPED_HOT, LOOPED_CHANGES) if looped else (HOT, 1)
        self._num_closed = 0 if looped else max(1, round(effort * min(most, MOST_CLOSED)))
        self._num_changes = max(1, round(effort * more * min(most, max(FEWEST, WORK // work))))
        if self.cut.halved:
            self._num_closed = self._num_changes = max(1, round(effort * min(most, MOST_HALVED)))

    def annealed(self, start: Partition | None, seed: int) -> Iterator[tuple[Partition, Numbers]]:
        """Yield what annealing makes of a cut, or of an even one; then, where they are open, with numbers in flight."""
        stages = np.array(start if start is not None else self._even(), np.int64)
        numbers = np.zeros(self._cuts.num_stages, np.int64)
        room = room_for(self.cut, np.concatenate([stages, numbers]), seed)
        if start is None and self._num_closed:
            self._walk(room, self._num_closed, self._hot, simulated=False)
            room.stage[:] = room.best
        self._walk(room, self._num_changes, AGAIN if start else self._hot, simulated=not self.cut.halved)
        yield from self._numbered(room, open_numbers=False)
        if self._cuts.allows_custom_in_flight:
            room.stage[:] = room.best
            room.stage[len(stages) :] = self._in_flight(room)
            free = self.cut._replace(warmups=np.array([FREE]))
            anneal(free, room, self._num_changes, AGAIN, (COLD / AGAIN) ** (1 / self._num_changes), True)
            yield from self._numbered(room, open_numbers=True)

    def _walk(self, room: Room, num_changes: int, hot: float, *, simulated: bool) -> None:
        anneal(self.cut, room, num_changes, hot, (COLD / hot) ** (1 / num_changes), simulated)

    def _in_flight(self, room: Room) -> Ints:
        """Return the numbers in flight of the rule that is best for a cut."""
        found: list[tuple[float, list[int]]] = []
        for rule in self.cut.warmups:
            alone = self.cut._replace(warmups=np.array([rule]))
            value = value_of(alone, room.best, room.at, True, NEVER)
            found.append((value, room.at.numbers[IN_FLIGHT].tolist()))
        return np.array(min(found)[1], np.int64)

    def _numbered(self, room: Room, *, open_numbers: bool) -> Iterator[tuple[Partition, Numbers]]:
        """Yield the best cut with its stages numbered, and the numbers in flight of each."""
        size = len(self._cuts.atoms)
        named = room.best[:size].tolist()
        partition = numbered(self._cuts.atoms, named, as_named=True)
        if partition is not None:
            held = dict(zip(partition, named, strict=True))
            numbers = room.best[size:].tolist()
            yield partition, tuple(max(1, numbers[held[stage]]) for stage in sorted(held)) if open_numbers else ()

    def _even(self) -> Partition:
        """Return equal shares of the atoms in a topological order, as these are listed."""
        found = bottleneck_partition(self._cuts.at_places(self._cuts.shares_ns, self._cuts.num_stages))
        return tuple(found) if found else (0,) * len(self._cuts.atoms)


def _cut(cuts: FamilyPartitions, line: bool) -> Cut:
    """Return the arrays by which the cuts of a family are valued."""
    atoms, problem = cuts.atoms, cuts.evaluator.problem
    flows, stages, count = atoms.flows, cuts.num_stages, cuts.num_microbatches
    forward, backward = _times(cuts)
    orders = _orders(cuts)
    static, kept = _bytes(cuts) if cuts.memory_can_bind else ([0.0] * len(atoms), [0.0] * len(atoms))
    readers, first_reader = _rows([flow.consumers for flow in flows])
    after, first_after = _rows(atoms.successors)
    before, first_before = _rows(atoms.predecessors)
    sizes = [cuts.evaluator.pricer.message_bytes((flow.tensor,), cuts.family.config, 1) for flow in flows]
    gradients = [atoms.graph.tensors[flow.tensor].gradient for flow in flows]
    rows = [(f.producer, first, back) for f, first, back in zip(flows, first_reader, gradients, strict=False)]
    places, most = cuts.num_places, problem.memory_limits_bytes
    limits = [min(most[rank] for rank in place.ranks) or np.inf for place in cuts.places_in_loop(stages)]
    return Cut(
        np.array([forward, backward, cuts.closing_ns, static, kept], float).T.copy(),
        np.array([*rows, (0, len(readers), 0)], np.int64),
        np.array(sizes, float),
        readers,
        np.concatenate([after, before]),
        np.array([first_after, first_before + len(after)]),
        _links(cuts, max(sizes, default=0) or 1),
        np.array([[cuts.speeds[s % places] for s in range(stages)], limits], float),
        _warmups(cuts),
        orders,
        _alive(orders, cuts.family.chunks),
        float(least_host_ns(cuts)),
        count,
        count if len(orders) else min(count, FILLED * stages),
        line,
        cuts.fixed_stages is not None or len(orders) > 0,
        cuts.splits_backward,
    )


def _times(cuts: FamilyPartitions) -> tuple[Floats, Floats]:
    """Return F and B of each atom; B has the forward that is run again and the sum of gradients."""
    measured = cuts.families.models(cuts.family.microbatch_size)[0].measured
    parts = zip(measured.forward_ns, measured.backward_input_ns, measured.backward_weight_ns, strict=True)
    share = [f / max(1, f + i + w) for f, i, w in parts]
    each = cuts.families.works_ns(cuts.family)
    forward = np.array([sum(each[o] * share[o] for o in row) for row in cuts.atoms.members])
    again = forward if cuts.family.config.recompute == "full" else 0.0
    return forward, np.array(cuts.paces_ns, float) - forward + again


def _bytes(cuts: FamilyPartitions) -> tuple[list[float], list[float]]:
    """Return what each atom holds, once and for each micro-batch in flight: its part of what one stage of all holds.

    Atoms keep some storages together, which as stages of their own each would hold.
    """
    price, place = cuts.evaluator.pricer, cuts.places((0,))[0]
    every = [*((atom,) for atom in range(len(cuts.atoms))), tuple(range(len(cuts.atoms)))]
    stages = [price.stage(atoms, (), False, place) for atoms in every]
    return _parts([s.static_bytes for s in stages]), _parts([at(s.activation_bytes, 0) for s in stages])


def _parts(held: Sequence[int]) -> list[float]:
    """Return what the first ones hold of what the last one does, in proportion."""
    *each, whole = held
    return [size * whole / max(1, sum(each)) for size in each]


def _links(cuts: FamilyPartitions, size_bytes: int) -> Floats:
    """Return the time of an empty message between two places, and of each byte of a large one."""
    machines, stages = cuts.evaluator.problem.machines, cuts.num_stages
    placed = cuts.places_in_loop(stages)
    found = np.zeros((2, stages, stages))
    for p, q in combinations(range(stages), 2):
        a, b = placed[p].ranks[0], placed[q].ranks[0]
        delay = machines.p2p_ns(a, b, 1) if a != b else 0
        found[:, p, q] = delay, max(0.0, machines.p2p_ns(a, b, size_bytes) - delay) / size_bytes if a != b else 0.0
    return found


def _orders(cuts: FamilyPartitions) -> Ints:
    """Return what each place does in turn, where several stages share one: the same for all cuts; else nothing.

    Replicas of a pipeline do alike, each with micro-batches of its own: the first ones' are here, numbered anew.
    """
    places = cuts.num_places
    if cuts.family.chunks == 1:
        return np.zeros((0, 0, 3), np.int64)
    partition = bottleneck_partition(cuts.at_places(cuts.shares_ns, cuts.num_stages))
    run = cuts.evaluator.simulate(cuts.candidate(tuple(partition or ()), LOOPED, line=False))
    ways = {Kind.F: 0, Kind.B: 1}
    found: dict[int, list[tuple[int, int, int]]] = {}
    for order in run.times.structure.schedule.orders:
        actions = [a for a in order if a.kind in ways]
        number = {first: i for i, first in enumerate(sorted({a.microbatch for a in actions}))}
        if 0 in number:
            found[actions[0].stage % places] = [(a.stage, ways[a.kind], number[a.microbatch]) for a in actions]
    if any(len(row) < 2 * cuts.num_microbatches * cuts.family.chunks for row in found.values()):
        raise UsageError("a stage has no backward: what a place does in turn depends on the cut")
    return np.array([found[place] for place in range(places)], np.int64)


def _alive(orders: Ints, chunks: int) -> Ints:
    """Return the numbers of micro-batches in flight, by stage of a place, that no other time has all of and more."""
    found: list[list[tuple[int, ...]]] = []
    for place, order in enumerate(orders):
        now, seen = [0] * chunks, dict[tuple[int, ...], None]()
        for stage, way, _ in order:
            now[(stage - place) // len(orders)] += 1 if way == THERE else -1
            seen[tuple(now)] = None
        found.append([row for row in seen if not any(row != o and all(map(le, row, o)) for o in seen)])
    times = max(map(len, found), default=0)
    rows = [row + row[:1] * (times - len(row)) for row in found]
    return np.array(rows, np.int64).reshape(len(orders), times, chunks)


def _warmups(cuts: FamilyPartitions) -> Ints:
    """Return how micro-batches in flight are tried; where memory cannot bind, more of them are never worse."""
    names = AUTO_SCHEDULES if cuts.allows_custom_in_flight else cuts.schedules
    found = [RULES.index(name) for name in names if name in RULES]
    if not cuts.memory_can_bind:
        found = [rule for rule in found if {DEPTH: DELAYED, LINE: TWICE}.get(rule) not in found]
    return np.array(found, np.int64)


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return all rows one after the other, and where each begins."""
    first = np.cumsum([0, *map(len, rows)])
    return np.array(list(chain.from_iterable(rows)), np.int64), first.astype(np.int64)
