"""The first look at a family: balanced cuts into every number of places that could matter, simulated.

Equally many layers a stage where the model has such, and the best segments of two orders by work alone. A number of
places is left out when its work alone takes longer than what is known of its rung. Leaves out any local change.
"""

from collections.abc import Iterator, Sequence

from costmodel.errors import NoPlanFits, UsageError
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.plan.rung import strategy_of
from planner.search.balanced import balanced
from planner.search.cuts import Cuts
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting

NUM_ORDERS = 2


class Screen:
    """Looks at families one by one and tells the incumbent."""

    def __init__(self, setting: Setting, incumbent: Incumbent, limits: Limits) -> None:
        self.setting, self.incumbent, self.limits = setting, incumbent, limits

    def look(self, family: Family) -> None:
        """Offer the incumbent what balanced cuts of a family bring."""
        cuts = self.setting.cuts(family)
        for places in self._places(cuts):
            if self.limits.over and self.incumbent.found:
                return
            if not self._could_matter(cuts, places):
                return  # fewer places take longer still
            for partition in dict.fromkeys(self._partitions(cuts, places)):
                self.incumbent.offer(self._simulated(cuts, partition))

    def _places(self, cuts: Cuts) -> Sequence[int]:
        fixed = self.setting.problem.space.stages
        most = min(cuts.num_places, max(1, len(cuts.atoms) // cuts.family.chunks))
        if fixed:
            return (fixed,) if fixed <= most else ()
        return range(most, 1 if cuts.family.chunks > 1 else 0, -1)

    def _could_matter(self, cuts: Cuts, places: int) -> bool:
        """Whether the work of a micro-batch over so many places leaves room below what is known of the rung."""
        families, family = self.setting.families, cuts.family
        work = (families.least_work_ns(family) or 0) * cuts.num_microbatches
        least_ns = work / (places * max(self.setting.problem.speeds))
        strategy = strategy_of([family.config] * places, is_line=True)
        runs = self.incumbent.runs_config(family.config, pipelined=places > 1)
        known = self.incumbent.best_ns(strategy, runs=runs)
        return known is None or least_ns < known

    def _partitions(self, cuts: Cuts, places: int) -> Iterator[Partition]:
        if cuts.pinned.places:
            yield from self._around_pins(cuts, places)
            return
        num_stages = places * cuts.family.chunks
        if num_stages == 1:
            yield (0,) * len(cuts.atoms)
            return
        layers = self.setting.equal_layers(num_stages)
        if layers:
            yield layers
        for order in self.setting.orders(cuts)[:NUM_ORDERS]:
            rows = [[round(cuts.works_ns[atom] / speed) for atom in order] for speed in sorted(set(cuts.speeds))]
            by_speed = dict(zip(sorted(set(cuts.speeds)), rows, strict=True))
            stages = balanced([by_speed[cuts.speeds[stage % places]] for stage in range(num_stages)])
            if stages:
                found = dict(zip(order, stages, strict=True))
                yield tuple(found[atom] for atom in range(len(order)))

    def _around_pins(self, cuts: Cuts, places: int) -> Iterator[Partition]:
        """Cut what pins leave free: pieces of one order, which end where a pinned stage stands between."""
        if self.setting.pinned_partition:
            yield self.setting.pinned_partition
            return
        order, pinned = self.setting.orders(cuts)[0], cuts.pinned.places
        free = [atom for atom in order if atom not in pinned]
        num_pieces = places - len(pinned)
        stages = balanced([[cuts.works_ns[atom] for atom in free]] * num_pieces) if num_pieces > 0 else None
        if stages is None:
            return
        piece, groups, latest = dict(zip(free, stages, strict=True)), [0] * len(order), -1
        for place, atom in enumerate(order):
            follows = place and order[place - 1] not in pinned and piece.get(order[place - 1]) == piece.get(atom)
            latest += not follows
            groups[atom] = latest
        found = numbered(cuts.atoms, groups)
        if found and max(found) < cuts.num_places:
            yield found

    def _simulated(self, cuts: Cuts, partition: Partition) -> Iterator[Evaluated]:
        """Yield a cut under every schedule that runs on its places."""
        for name in cuts.schedules:
            try:
                found = cuts.evaluate(partition, name)
            except (UsageError, NoPlanFits) as error:
                self.incumbent.refused = str(error)
                continue
            yield found
            if found.candidate.num_stages == 1:
                return  # one stage has one order
