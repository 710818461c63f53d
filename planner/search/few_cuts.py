"""Graphs of so few atoms that every cut of a family can be simulated.

Leaves out what cuts are under other options and schedules, and places other than those of the family.
"""

from collections.abc import Iterator
from itertools import islice

from planner.graph.atoms import Partition
from planner.search.cuts import Cuts

MOST_NUMBERINGS, MOST_CUTS = 100_000, 1000
"""Ways to number the stages of atoms, and those of them that are cuts, up to which a family has few."""


def every_partition(cuts: Cuts) -> list[Partition]:
    """Return every cut, its stages numbered in every order in which they can run; nothing where there are many."""
    most = min(len(cuts.atoms), cuts.num_stages)
    if cuts.pinned.places or most ** len(cuts.atoms) > MOST_NUMBERINGS:
        return []
    found = list(islice(_after(cuts, most, ()), MOST_CUTS + 1))
    return found if len(found) <= MOST_CUTS else []


def _after(cuts: Cuts, most: int, row: Partition) -> Iterator[Partition]:
    """Yield the cuts that begin with the stages of the first atoms."""
    if len(row) == len(cuts.atoms):
        if set(row) == set(range(max(row) + 1)) and cuts.fixed_stages in (None, max(row) + 1):
            yield row
        return
    before = (row[source] for source, target in cuts.atoms.edges if target == len(row))
    for stage in range(max(before, default=0), most):
        yield from _after(cuts, most, (*row, stage))
