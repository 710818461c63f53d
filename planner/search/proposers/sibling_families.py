"""Cuts that stand under other options: what runs again, what ZeRO divides, what hosts hold, samples a micro-batch.

Families that differ in these alone admit the same cuts, but each was cut by its own lights, and of those that differ in
what they keep alone only one with care. Leaves out cuts, and options that differ by stage.
"""

from collections.abc import Generator
from dataclasses import replace
from itertools import islice

from planner.search.space.family import Family
from planner.search.subsolver import SearchState, Subsolver

NUM_CUTS = 6
"""Best cuts that are tried under other options."""


class OtherOptions(Subsolver):
    """The best cuts as each other family makes them that divides operators alike and may hold a better plan."""

    name = "other options"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._alike: dict[Family, list[Family]] = {}
        self._num_known = 0

    def steps(self) -> Generator[None]:
        """Offer one cut in one family after the other."""
        prospects, pool = self.state.prospects, self.state.pool
        self._learn()
        for own, each in list(prospects.best_by_family().items())[:NUM_CUTS]:
            found = each.candidate
            for family in self._alike.get(_kind(own), ()):
                key = found.partition, family
                if family != own and key not in self.done and found.num_stages > 1 and prospects.is_open(family):
                    self.done.add(key)
                    cuts = self.state.prepared.cuts(family)
                    pool.offer(cuts.evaluate_under(found.partition, (found.schedule,), line=found.line))
                    yield

    def _learn(self) -> None:
        """Take families that became known since."""
        families = self.state.bounds.of
        for family in islice(families, self._num_known, None):
            self._alike.setdefault(_kind(family), []).append(family)
        self._num_known = len(families)


def _kind(family: Family) -> Family:
    """Return what families share that admit the same cuts."""
    config = replace(family.config, zero=0, recompute="none", offload="none", sequence=1)
    return replace(family, config=config, microbatch_size=0)
