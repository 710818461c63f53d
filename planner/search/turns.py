"""In which order families are looked at first: where memory is tight, plain ones, then the quickest that likely fit.

Plain are replicas of the whole model, which are few, and quick to look at.
Leaves out the order in which a space lists its families, which stands where the first of them fits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from planner.search.family import Family
from planner.search.family_work import Families
from planner.search.limits import Limits

INPUTS = 1 / 16
"""About the part of what a layer keeps that its inputs are, which stay where its forward runs again."""
CAUTIOUS, BOLD = 0.8, 1.1
"""Part of the memory that even stages may fill and be likely to fit, before anything does and then: real stages are not
even, and what holds less takes longer."""


@dataclass(frozen=True)
class Turns:
    """The turns of a space's families.

    Attributes
    ----------
    families : Families
    limits : Limits
        After which turns are as listed.
    fit : sequence of bool
        Whether each plan that was looked at fits; others may add to it between two turns.
    most_bytes : int
        What a rank may hold at most; 0 where it is not known.
    """

    families: Families
    limits: Limits
    fit: Sequence[bool]
    most_bytes: int

    def in_turn(self) -> Iterator[Family]:
        """Yield all families; where the first does not fit, plain ones first, then the quickest that are likely to."""
        first, rest = self.families.all[:1], self.families.all[1:]
        yield from first
        if any(self.fit) or not self.fit:
            yield from rest
            return
        plain = [family for family in rest if self._is_plain(family)]
        yield from plain
        left = set(rest).difference(plain)
        for cautious in (True, False):
            for family in self._quickest_first([family for family in rest if family in left], cautious=cautious):
                if cautious and any(self.fit):
                    break
                left.remove(family)
                yield family

    def _is_plain(self, family: Family) -> bool:
        """Whether replicas of the whole model are all that a family has: what people try first."""
        config = family.config
        alone = config.tensor == config.context == 1 and config.offload == "none"
        return alone and self.families.most_places(family) == 1

    def _quickest_first(self, rest: Sequence[Family], *, cautious: bool) -> Iterator[Family]:
        """Yield families by their turns, which are dear: only those whose turn may be next are asked for theirs."""
        turns = [(self._earliest_turn(family), number, False) for number, family in enumerate(rest)]
        heapify(turns)
        while turns:
            _, number, known = turns[0]
            if known or self.limits.over:
                heappop(turns)
                yield rest[number]
            else:
                heapreplace(turns, (self._turn(rest[number], CAUTIOUS if cautious else BOLD), number, True))

    def _earliest_turn(self, family: Family) -> tuple[float, ...]:
        offloads, talks, _ = self.families.kind(family)
        work_ns = 0 if offloads or talks else self.families.work_ns(family)
        return offloads, 0, talks, self._filled_ns(family, work_ns or 0)

    def _turn(self, family: Family, part: float) -> tuple[float, ...]:
        """Return when a family is looked at: of those that are likely to fit and talk little the quickest first."""
        offloads, talks, _ = self.families.kind(family)
        likely = self._is_likely_to_fit(family, part)
        even_ns = self.families.fullest_ns(family, self.families.most_places(family)) if likely else 0
        return offloads, not likely, talks, self._filled_ns(family, even_ns)

    def _filled_ns(self, family: Family, even_ns: int) -> float:
        """Return about what even stages in a line take, or their messages, filling and draining them too."""
        rounds, places = self.families.rounds(family) * family.chunks, self.families.most_places(family)
        return max(even_ns / rounds, self.families.messages_ns(family, places)) * (rounds + places - 1)

    def _is_likely_to_fit(self, family: Family, part: float) -> bool:
        """Whether that part of the memory holds what first stages keep of 1F1B or interleaved stages, all even."""
        families, places = self.families, self.families.most_places(family)
        if not self.most_bytes:
            return True
        config = family.config
        in_flight: float = min(families.rounds(family), places)
        if family.chunks > 1:
            in_flight += (places - 1) / family.chunks
        if config.recompute == "full":
            in_flight = in_flight * INPUTS + 1 / family.chunks
        in_flight *= config.offload != "activations"
        kept = in_flight * families.kept_estimate(family)
        return families.states_bytes(family) + kept <= part * self.most_bytes * places
