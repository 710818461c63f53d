"""The first look at a family: balanced cuts into every number of places that could matter, simulated.

A cut is left out when a bound that needs no simulation says that it is no better than what is known of its rung, or
that it cannot fit. Leaves out any local change.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

from costmodel.errors import UsageError
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.plan.rung import strategy_of
from planner.search.bounders.priced_cut import could_hold, least_step_ns
from planner.search.budget import Deadline, WriteReserve, too_long
from planner.search.proposers.balanced_partitions import balanced_partitions
from planner.search.space.dropped import TOO_LONG
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions, by_stage
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState, Subsolver

FEW_FAMILIES = 500
"""Families that are looked at where work is counted."""
FAR, WORTH = 1.1, 0.9
"""From this part of the best time on a rung is far from it; there a plan is worth looking for that takes this part."""


class BalancedSweep:
    """Looks at families one by one and tells the pool."""

    def __init__(self, prepared: PreparedProblem, pool: CandidatePool, limits: Deadline, writing: WriteReserve) -> None:
        self.prepared, self.pool, self.limits, self.writing = prepared, pool, limits, writing
        self.left_out: dict[tuple[Family, int], int] = {}
        """Families, into how many places, whose plans would take too long to be written, and about how many actions."""
        self._fit: list[bool] = []
        """Whether each that was simulated here fits: an old plan that the search starts from says nothing of others."""
        self._branched = 1.0
        """How many actions plans have at most for one that stages in a line would."""
        self._settled: set[tuple[Family, int] | None] = set()
        self._too_slow: list[Partition] = []
        self._most_bytes = max(prepared.problem.memory_limits_bytes)
        if not all(prepared.problem.memory_limits_bytes):
            self._most_bytes = 0

    def sweep(self, family: Family) -> None:
        """Offer the pool what balanced cuts of a family bring."""
        bound_ns = self.prepared.free_bounds.bound_ns(family)
        if bound_ns is None or not any(self._could_matter(family, bound_ns, places) for places in (1, 2)):
            return
        cuts, least = self.prepared.cuts(family), 0
        for places in self._places(cuts):
            if self.limits.expired and self.pool.best_fits:
                return
            if 1 < places < least:
                continue
            least_ns = self._fullest_ns(family, places)
            if not self._could_matter(family, least_ns, places) or not self._could_fit(family, places):
                least = places  # fewer places take longer still, and hold more; one alone is another rung
                continue
            if self._without_savings(family, places) in self._settled:
                continue
            if not self._could_matter(family, self._least_ns(family, places), places):
                self._settled.add((family, places))
                continue
            num_actions = round(cuts.about_actions(places) * self._branched)
            why = too_long(num_actions, family.config.data)
            if why:
                self.prepared.dropped.refuse(UsageError(why), TOO_LONG)
            elif self.writing.fits(num_actions, family.config.data):
                self._look(cuts, places)
            else:
                self.left_out[family, places] = num_actions

    def sweep_long(self) -> None:
        """Where nothing else was found, or fits, offer what takes long to be written, the shortest first."""
        for family, places in sorted(self.left_out, key=self.left_out.__getitem__):
            if self.pool.best_fits:
                return
            self._look(self.prepared.cuts(family), places)

    def _look(self, cuts: FamilyPartitions, places: int) -> None:
        open_before = len(self._too_slow)
        partitions = list(dict.fromkeys(balanced_partitions(self.prepared, cuts, places)))
        found = [each for partition in partitions for each in self._offered(cuts, partition)]
        self._branched = max([self._branched, *(each.num_actions / cuts.about_actions(places) for each in found)])
        if any(each.fits for each in found) or len(self._too_slow) - open_before == len(partitions):
            self._settled.add((cuts.family, places))

    @staticmethod
    def _without_savings(family: Family, places: int) -> tuple[Family, int] | None:
        """Return what a family is without recompute, which only costs time under fixed orders; None for one without it.

        Where that fits, or is too slow already, there is nothing to save. What is offloaded may save time elsewhere.
        """
        config = replace(family.config, recompute="none")
        return (replace(family, config=config), places) if config != family.config else None

    def _fullest_ns(self, family: Family, places: int) -> int:
        """Return a bound on all cuts into a number of places that save no memory; 0 where pins bound them."""
        if self.prepared.pinned.places:
            return self.prepared.free_bounds.bound_ns(family) or 0
        return self.prepared.families.fullest_ns(family, places)

    def _least_ns(self, family: Family, places: int) -> int:
        """Return a bound on all cuts into a number of places."""
        return max(self._fullest_ns(family, places), self.prepared.free_bounds.bound_ns(family, places) or 0)

    def _places(self, cuts: FamilyPartitions) -> Sequence[int]:
        fixed = self.prepared.problem.space.stages
        most = min(cuts.num_places, max(1, len(cuts.atoms) // cuts.family.chunks))
        if fixed and fixed > most:
            return ()
        rows = [fixed] if fixed else list(range(most, 1 if cuts.family.chunks > 1 else 0, -1))
        if self.prepared.problem.target == "megatron" and cuts.family.chunks > 1:
            rows = [places for places in rows if cuts.num_microbatches % places == 0]
        # halves first: what these reach spares most of the numbers between
        halves = [places for places in rows if places in {most >> i for i in range(most.bit_length())}]
        return halves + [places for places in rows if places not in halves]

    def _could_matter(self, family: Family, least_ns: int, places: int) -> bool:
        """Whether a bound leaves room below what is known of its rung; for mixtures and several stages a place, of any.

        A rung that is far from the best is not searched to the last per cent.
        """
        strategy = strategy_of([family.config] * min(places, 2), is_line=True)
        runs = self.pool.runs_config(family.config, pipelined=places > 1)
        known = self.pool.best_ns(strategy, runs=runs)
        if not self.pool.best_fits:
            return known is None or least_ns < known
        best_ns = self.pool.best.step_time_ns
        if "+" in strategy or family.chunks > 1:
            return least_ns < min(best_ns, known or best_ns)
        return known is None or least_ns < (known if least_ns < FAR * best_ns else WORTH * known)

    def _could_fit(self, family: Family, places: int) -> bool:
        """Whether states, and one micro-batch in flight, fit where all is spread evenly over the places.

        One misfit is looked at, so that it can be told.
        """
        if not self._most_bytes or not self._fit or self.prepared.pinned.places:
            return True
        return self._held_bytes(family) <= self._most_bytes * places

    def _held_bytes(self, family: Family) -> int:
        """Return what all places of a family hold together at least, one micro-batch in flight."""
        config, families = family.config, self.prepared.families
        kept = families.kept_bytes(family) if config.recompute == config.offload == "none" else 0
        return families.states_bytes(family) + kept

    def _offered(self, cuts: FamilyPartitions, partition: Partition) -> list[Evaluated]:
        """Simulate a cut and tell the pool, unless its largest place alone is too slow."""
        if not cuts.pinned.places and self._is_too_large(cuts, partition):
            self._too_slow.append(partition)
            return []
        found = list(self._simulated(cuts, partition))
        self.pool.offer(found)
        self._fit += [each.fits and self.pool.runs(each) for each in found]
        return found

    def _is_too_large(self, cuts: FamilyPartitions, partition: Partition) -> bool:
        """Whether the work of the largest place alone is too much; known before a cut is priced.

        Operators that are divided take no more together than each for itself: what they gather counts once.
        """
        family, num_places = cuts.family, cuts.places_of(partition)

        def too_much(loads: Sequence[int]) -> bool:
            largest = max(sum(loads[place::num_places]) for place in range(num_places)) * cuts.num_microbatches
            return not self._could_matter(family, int(largest / max(cuts.speeds)), num_places)

        if not too_much(by_stage(partition, cuts.paces_ns)):
            return False
        if family.config.whole_operators:
            return True
        rows: list[list[int]] = [[] for _ in range(max(partition) + 1)]
        for stage, members in zip(partition, cuts.atoms.members, strict=True):
            rows[stage] += members
        return too_much([self.prepared.families.least_work_ns(family, tuple(sorted(row))) or 0 for row in rows])

    def _simulated(self, cuts: FamilyPartitions, partition: Partition) -> Iterator[Evaluated]:
        """Yield a cut under the first and the last schedule that run on its places, if it could matter."""
        names = dict.fromkeys((cuts.schedules[0], cuts.schedules[-1])) if max(partition) else cuts.schedules[:1]
        for name in names:
            priced = None
            with cuts.dropped.candidate():
                candidate = cuts.candidate(partition, name, line=cuts.always_line)
                priced = cuts.evaluator.pricer.price(partition, candidate.places, candidate.line)
            if priced is None:
                continue
            least_ns = cuts.dropped.bound(partial(least_step_ns, priced, cuts)) or 0
            if not self._could_matter(cuts.family, least_ns, len(set(candidate.places))):
                self._too_slow.append(partition)
                return
            holds = True
            with cuts.dropped.candidate():
                holds = not self._fit or could_hold(priced, cuts, self._most_bytes)
            if holds:
                yield from cuts.evaluate_under(partition, (name,))


class FirstLook(Subsolver):
    """Balanced cuts of every family: those that are estimated to fit, the fastest first, then others."""

    name, kind = "first look", "first"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._screen = BalancedSweep(state.prepared, state.pool, state.limits, state.writing)
        self._families = self._in_turn()

    def steps(self) -> Generator[None]:
        """Look at one family after the other; in the end, where nothing fits, at plans that take long to be written."""
        state = self.state
        while not (state.counted and state.has_plan() and len(state.looked) >= FEW_FAMILIES):
            family = next(self._families, None)
            if family is None:
                state.bounds.seen_all = True
                break
            self._look(family)
            yield
        self._screen.sweep_long()
        state.left_out = bool(self._screen.left_out)

    def _look(self, family: Family) -> None:
        state = self.state
        state.look_at(family)
        with state.prepared.dropped.candidate():
            self._screen.sweep(family)
        bound_ns = state.prepared.free_bounds.bound_ns(family)
        if bound_ns is not None:
            state.bounds.of[family] = max(bound_ns, state.bounds.of.get(family, 0))

    def _in_turn(self) -> Iterator[Family]:
        prepared, seen = self.state.prepared, set[Family]()
        if table := prepared.table:
            for row in table.by_estimate(prepared.most_bytes):
                family = table.family(row)
                if family not in seen:
                    seen.add(family)
                    yield family
        yield from (family for family in prepared.families.every() if family not in seen)
