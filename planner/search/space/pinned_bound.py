"""What a step takes at least where pins place stages, which are configured as they say and not as families are.

Leaves out stages that pins give whole (`FamilyBounds.take_orders_of_pinned`), what ranks hold, and what pipelines fill.
"""

from collections.abc import Callable
from functools import cache, cached_property

from costmodel.errors import NoPlanFits, UsageError
from planner.candidate.evaluate import Evaluator
from planner.graph.atoms import Atoms
from planner.search.space.family import Family
from planner.search.space.family_work import Families
from planner.search.space.pinned import PinnedPlaces


class PinnedBound:
    """The bounds of one problem's families around its pinned stages.

    Parameters
    ----------
    atoms : Atoms
    pinned : PinnedPlaces
    families : Families
    evaluator : callable
        Gives the evaluator of a micro-batch size.
    """

    def __init__(
        self, atoms: Atoms, pinned: PinnedPlaces, families: Families, evaluator: Callable[[int], Evaluator]
    ) -> None:
        self._atoms, self._pinned, self._families, self._evaluator = atoms, pinned, families, evaluator
        self._pinned_ns = cache(self._most_of_pinned_ns)

    def bound_ns(self, family: Family) -> int | None:
        """Return the most that a rank of pinned stages works, or what is left divided evenly over the ranks left.

        None where operators do not divide as the family, or the pins, have them.
        """
        pinned_ns = self._pinned_ns(family.microbatch_size)
        work_ns = self._families.least_work_ns(family, self._free)
        if pinned_ns is None or work_ns is None:
            return None
        places = max(1, self._pinned.num_free_ranks // family.devices_per_stage)
        free_ns = self._families.microbatches_per_replica(family) * work_ns / places
        return int(max(free_ns, pinned_ns) / max(self._families.problem.speeds))

    def _most_of_pinned_ns(self, microbatch_size: int) -> int | None:
        pricer = self._evaluator(microbatch_size).pricer
        of_rank: dict[int, int] = {}
        for atom, place in self._pinned.places.items():
            try:
                load_ns = pricer.least_load_ns((atom,), place)
            except (UsageError, NoPlanFits) as error:
                self._families.dropped.refuse(error)
                return None
            for rank in place.ranks:
                of_rank[rank] = of_rank.get(rank, 0) + load_ns
        return max(of_rank.values())

    @cached_property
    def _free(self) -> tuple[int, ...]:
        """Operators that no pin places."""
        free = (members for atom, members in enumerate(self._atoms.members) if atom not in self._pinned.places)
        return tuple(sorted(operator for members in free for operator in members))
