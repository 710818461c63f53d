"""One restart of annealing: a cut of a family annealed, simulated under every schedule, and offered.

Leaves out which families get restarts (`planner.search.proposers.annealing`).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.candidate.candidate import IN_FLIGHT
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.graph.atoms import Partition
from planner.search.budget import Deadline
from planner.search.solvers.annealing.data import LOOPED, RULES
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.focus import is_near
from planner.search.state.pool import CandidatePool
from simulator.schedules.list_simulation import Numbers

Annealed = tuple[Partition, Numbers]


def can_anneal(cuts: FamilyPartitions) -> bool:
    """Whether annealing knows what runs there: whole backwards in known orders, or any split ones; nothing pinned."""
    known = cuts.allows_custom_in_flight or cuts.splits_backward or any(name in RULES for name in cuts.schedules)
    if cuts.family.chunks > 1:
        known = (
            cuts.schedules[0] in (LOOPED, WITHIN_LIMIT)
            and cuts.num_microbatches % cuts.num_places == 0
            and cuts.num_places > 1
        )
    return known and not cuts.pinned.places and 1 < cuts.num_stages <= len(cuts.atoms)


@dataclass
class AnnealingRun:
    """A restart.

    Attributes
    ----------
    cuts : FamilyPartitions
    line : bool
        Whether stages form a line.
    effort : float
        Part of a whole restart's changes.
    seconds : float
        What it took so far.
    """

    cuts: FamilyPartitions
    line: bool
    effort: float
    _walks: Iterator[Annealed]
    seconds: float = 0.0
    _annealed: list[Annealed] = field(default_factory=list)

    @classmethod
    def of(
        cls, cuts: FamilyPartitions, known: Evaluated | None, seed: int, *, line: bool, effort: float = 1.0
    ) -> "AnnealingRun | None":
        """Return a restart from a cut that is known, or from scratch; None where its cuts cannot be priced."""
        from planner.search.solvers.annealing.annealer import Annealer  # numba takes a third of a second to import

        with cuts.dropped.candidate():
            annealer = Annealer(cuts, line=line or cuts.always_line, effort=effort)
            return cls(cuts, line, effort, annealer.annealed(known.candidate.partition if known else None, seed))
        return None

    def run(self) -> None:
        """Anneal to the next cut; compiled code, which other threads need not wait for."""
        start = time.perf_counter()
        self._annealed += [each for each in (next(self._walks, None),) if each]
        self.seconds += time.perf_counter() - start

    def offer_to(self, pool: CandidatePool, limits: Deadline) -> list[Evaluated]:
        """Offer the cut under every schedule; where it comes near the best, also with micro-batches in flight open."""
        found: list[Evaluated] = []
        while self._annealed:
            found += self._simulated(*self._annealed.pop(), limits)
            if not limits.expired and any(is_near(each, pool) for each in found):
                self.run()
        pool.offer(found)
        return found

    def _simulated(self, partition: Partition, in_flight: Numbers, limits: Deadline) -> list[Evaluated]:
        cuts, found = self.cuts, list[Evaluated]()
        if cuts.fixed_stages in (None, max(partition) + 1):
            for name in (IN_FLIGHT,) if in_flight else cuts.schedules:
                if not (found and limits.expired):
                    found += cuts.evaluate_under(partition, (name,), line=self.line, in_flight=in_flight)
        return found
