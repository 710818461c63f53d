"""Cuts that stand under other options: what runs again, what ZeRO divides, what hosts hold, samples a micro-batch.

Families that differ in these alone admit the same cuts, but each was cut by its own lights, and of those that differ in
what they keep alone only one with care. Leaves out cuts, and options that differ by stage.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.candidate.evaluate import Evaluated
from planner.search.bounders.family_bounds import FamilyBounds
from planner.search.budget import Deadline
from planner.search.space.family import Family
from planner.search.state.focus import FamilySelector

NUM_CUTS = 6
"""Best cuts that are tried under other options."""


def transfer_to_siblings(
    bounds: FamilyBounds, prospects: FamilySelector, limits: Deadline
) -> Iterator[list[Evaluated]]:
    """Yield the best cuts as each other family makes them that divides operators alike and may hold a better plan."""
    alike: dict[Family, list[Family]] = {}
    for family in bounds.of:
        alike.setdefault(_kind(family), []).append(family)
    tried: set[tuple[object, Family]] = set()
    for own, each in list(prospects.best_by_family().items())[:NUM_CUTS]:
        found = each.candidate
        for family in alike.get(_kind(own), ()):
            key = found.partition, family
            if limits.expired:
                return
            if family != own and key not in tried and found.num_stages > 1 and prospects.is_open(family):
                tried.add(key)
                yield bounds.setting.cuts(family).evaluate_under(found.partition, (found.schedule,), line=found.line)


def _kind(family: Family) -> Family:
    """Return what families share that admit the same cuts."""
    config = replace(family.config, zero=0, recompute="none", offload="none", sequence=1)
    return replace(family, config=config, microbatch_size=0)
