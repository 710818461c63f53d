"""Stages that pins fix: each is one atom that shares its stage with no other, on ranks and configured as it says.

What no ``[[stage]]`` names is cut freely among the ranks that are left. Leaves out the reading of pins
(`planner.question.pins`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.errors import InvalidInput, NoPlanFits
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import IN_FLIGHT, StagePlacement
from planner.graph.atoms import Atoms, Partition, numbered, prepare
from planner.question.problem import Problem


@dataclass(frozen=True)
class PinnedPlaces:
    """The places of pinned stages, and their micro-batches in flight if given, by the atom that each of them is."""

    num_devices: int
    places: dict[int, StagePlacement]
    in_flight: dict[int, int]

    @cached_property
    def _free(self) -> tuple[int, ...]:
        taken = {rank for place in self.places.values() for rank in place.ranks}
        return tuple(rank for rank in range(self.num_devices) if rank not in taken)

    @property
    def share_ranks(self) -> bool:
        """Whether two pinned stages run on one rank."""
        ranks = [rank for place in self.places.values() for rank in place.ranks]
        return len(set(ranks)) < len(ranks)

    def in_flight_of(self, partition: Partition) -> tuple[int, ...]:
        """Return the micro-batches in flight of each stage; empty where they are open."""
        held = {partition[atom]: number for atom, number in self.in_flight.items()}
        return tuple(held[stage] for stage in sorted(held))

    @property
    def num_free_ranks(self) -> int:
        """Ranks that no pinned stage takes."""
        return len(self._free)

    def around(self, partition: Partition, config: StageConfig) -> tuple[StagePlacement, ...]:
        """Return the place of each stage: what a pin says, else the next ranks that are left."""
        held = {partition[atom]: place for atom, place in self.places.items()}
        size, start = config.data * config.tensor * config.context, 0
        found = []
        for stage in range(max(partition) + 1):
            if stage in held:
                found.append(held[stage])
                continue
            ranks = self._free[start : start + size]
            start += size
            if len(ranks) < size:
                raise NoPlanFits(f"stages besides the pinned ones need more than the {len(self._free)} devices left")
            found.append(StagePlacement(config, ranks))
        used = {rank for place in found for rank in place.ranks}
        if used != set(range(len(used))):
            raise NoPlanFits(f"the stages use the ranks {sorted(used)}; ranks are numbered from 0 without a gap")
        return tuple(found)


def pinned_pairs(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield pairs of operators that pins put into one stage."""
    graph = problem.profile.graph
    if problem.pins is None:
        return
    yield from problem.pins.pairs(graph)
    for row in problem.pins.stage_rows(graph):
        yield from ((row[0], other) for other in row[1:])


def pinned_places(problem: Problem, atoms: Atoms) -> PinnedPlaces:
    """Return the pinned stages of a problem among its atoms.

    Raises
    ------
    InvalidInput
        When stages separate an in-place operator from its producer, wait on each other, or name ranks that there are
        not.
    """
    pins, graph = problem.pins, problem.profile.graph
    if pins is None or not pins.stages:
        return PinnedPlaces(problem.num_devices, {}, {})
    rows = pins.stage_rows(graph)
    _check_cut(problem, rows)
    named = {rank for pin in pins.stages for rank in pin.ranks}
    free = [rank for rank in range(problem.num_devices) if rank not in named]
    places: dict[int, StagePlacement] = {}
    for pin, row in zip(pins.stages, rows, strict=True):
        if not pin.ranks and not free:
            raise InvalidInput(
                f"{pin.group.place}: no ranks are given, and the {problem.num_devices} devices are all named by other "
                "stages; give ranks, or more --devices"
            )
        ranks = pin.ranks or (free.pop(0),)
        if max(ranks) >= problem.num_devices:
            raise InvalidInput(
                f"{pin.group.place}: rank {max(ranks)} is not one of the {problem.num_devices} devices, which are "
                "numbered from 0; change ranks, or --devices"
            )
        config = pin.config or StageConfig(data=len(ranks))
        places[atoms.atom_of[row[0]]] = StagePlacement(config, ranks, pin.microbatch_multiple)
    used = {rank for place in places.values() for rank in place.ranks}
    if len(places) == len(atoms) and used != set(range(len(used))):
        raise InvalidInput(f"the stages use the ranks {sorted(used)}; ranks are numbered from 0 without a gap")
    given = {atoms.atom_of[row[0]]: pin.in_flight for pin, row in zip(pins.stages, rows, strict=True) if pin.in_flight}
    if given and (len(given) < len(atoms) or problem.schedule != IN_FLIGHT):
        raise InvalidInput(
            f"{pins.stages[0].group.place}: in_flight goes with --schedule {IN_FLIGHT} and [[stage]] pins of all "
            f"operators, each with its own; {len(given)} of {len(atoms)} stages have it under {problem.schedule}; "
            "leave it out, or give it for all"
        )
    return PinnedPlaces(problem.num_devices, places, given)


def _check_cut(problem: Problem, rows: Sequence[Sequence[int]]) -> None:
    """Refuse stages that separate an in-place operator from its producer, or that wait on each other."""
    pins, graph = problem.pins, problem.profile.graph
    assert pins is not None  # noqa: S101 - asked by the caller
    atoms, stage_of = prepare(graph), {i: stage for stage, row in enumerate(rows) for i in row}
    for members in atoms.members:
        held = sorted({stage_of.get(i, -1) for i in members})
        if len(held) > 1:
            names = ", ".join(repr(graph.operators[i].name) for i in members[:5])
            found = [stage if stage >= 0 else "no pinned one" for stage in held]
            raise InvalidInput(
                f"{pins.stages[held[-1]].group.place}: {names} change one value in place and are in the stages "
                f"{found}; put them in one"
            )
    alone = len(rows)
    groups = [stage_of.get(members[0], alone + atom) for atom, members in enumerate(atoms.members)]
    if numbered(atoms, groups) is None:
        stuck = _in_cycle({(groups[a], groups[b]) for a, b in atoms.edges if groups[a] != groups[b]})
        held = [stage for stage in stuck if stage < alone]
        raise InvalidInput(
            f"{pins.stages[held[-1]].group.place}: the stages {held} each read an output of another of them; "
            "the graph of stages must have no cycle: move operators between them"
        )


def _in_cycle(edges: set[tuple[int, int]]) -> list[int]:
    """Return the stages left when those that read from none, or feed none, are taken away again and again."""
    left = {stage for ends in edges for stage in ends}
    while True:
        inside = [(a, b) for a, b in edges if a in left and b in left]
        kept = {a for a, _ in inside} & {b for _, b in inside}
        if kept == left:
            return sorted(left)
        left = kept
