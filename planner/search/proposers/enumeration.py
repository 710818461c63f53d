"""Graphs of so few atoms that every cut of a family can be simulated.

Leaves out what cuts are under other options, and under other schedules than the family's first.
"""

from collections.abc import Generator, Iterator, Mapping
from itertools import islice

from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.search.budget import Deadline
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import FamilySelector
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import Subsolver

MOST_NUMBERINGS, MOST_CUTS = 300_000, 1500
"""Ways to number the stages of atoms, and those of them that are cuts, up to which a family has few."""
MOST_TRIED = 2000
"""Cuts after which no other family is cut in every way."""


def enumerate_cuts(
    prepared: PreparedProblem, bounds_ns: Mapping[Family, int], prospects: FamilySelector, limits: Deadline
) -> Iterator[list[Evaluated]]:
    """Yield every cut of families that have few and may hold a better plan, those of the least bound first.

    Families of several stages a place, of which there are many, come last.
    """
    left = MOST_TRIED
    for family in sorted(bounds_ns, key=lambda family: (family.chunks > 1, bounds_ns[family])):
        cuts = prepared.cuts(family)
        if limits.expired or left <= 0 or not prospects.is_small(family):
            continue
        every = every_partition(cuts) if prospects.is_open(family) else []
        left -= len(every)
        for partition in every:
            if not limits.expired:
                yield cuts.evaluate_under(partition, cuts.schedules[:1])


def every_partition(cuts: FamilyPartitions) -> list[Partition]:
    """Return every cut, its stages numbered in every order in which they can run; nothing where there are many."""
    most = min(len(cuts.atoms), cuts.num_stages)
    if cuts.pinned.places or most ** len(cuts.atoms) > MOST_NUMBERINGS:
        return []
    found = list(islice(_after(cuts, most, ()), MOST_CUTS + 1))
    return found if len(found) <= MOST_CUTS else []


def _after(cuts: FamilyPartitions, most: int, row: Partition) -> Iterator[Partition]:
    """Yield the cuts that begin with the stages of the first atoms."""
    if len(row) == len(cuts.atoms):
        whole = set(row) == set(range(max(row) + 1)) and (max(row) + 1) % cuts.family.chunks == 0
        if whole and cuts.fixed_stages in (None, max(row) + 1):
            yield row
        return
    before = (row[source] for source, target in cuts.atoms.edges if target == len(row))
    for stage in range(max(before, default=0), most):
        yield from _after(cuts, most, (*row, stage))


class EveryCut(Subsolver):
    """Every cut of families that have few, once."""

    name = "every cut"
    _done = False

    def steps(self) -> Generator[None]:
        """Offer one cut after the other."""
        if not self._done:
            self._done = True
            state = self.state
            for each in enumerate_cuts(state.prepared, state.bounds.of, state.prospects, state.limits):
                state.pool.offer(each)
                yield
