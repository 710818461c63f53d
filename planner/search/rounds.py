"""Annealing of several families: each once and briefly, then the best in rounds, the better a family the more often.

Restarts are from scratch and from the best that is known of a family in turn. Effort is counted; the clock ends rounds,
and shortens the last restart. Leaves out what a restart does (`planner.search.heuristic.restart`).
"""

from collections.abc import Callable, Sequence

from planner.candidate.evaluate import Evaluated
from planner.search.annealing.readiness import Kernels
from planner.search.family import Family
from planner.search.heuristic import can_anneal, restart
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.prospects import Prospects, is_near
from planner.search.setting import Setting

BRIEF = 0.2
"""Part of the changes of a whole restart with which a family is annealed first."""
SHORTEST = 0.1
"""The least part that the clock leaves of a restart."""
NUM_BEST = 6
"""Families that rounds may come to."""


class Rounds:
    """Restarts of annealing, shared out among the families of one search.

    Parameters
    ----------
    setting : Setting
    incumbent : Incumbent
    prospects : Prospects
    kernels : Kernels
    heard : function
        Called between restarts.
    """

    def __init__(
        self, setting: Setting, incumbent: Incumbent, prospects: Prospects, kernels: Kernels, heard: Callable[[], None]
    ) -> None:
        self._setting, self._incumbent, self._prospects = setting, incumbent, prospects
        self._kernels, self._heard = kernels, heard
        self._counted = setting.problem.effort.deterministic_limit is not None
        self._seed = setting.problem.effort.seed
        self._seconds: dict[Family, float] = {}

    def briefly(self, families: Sequence[Family], limits: Limits) -> None:
        """Anneal each family once, from scratch."""
        for family in families:
            self._restart(family, None, BRIEF, limits)

    def run(self, num_rounds: int, limits: Limits) -> None:
        """Anneal families near the best: the best one every round, the second every other, the third every third."""
        for number in range(1, num_rounds + 1):
            for place, (family, known) in enumerate(self._near(), 1):
                if number % place == 0:
                    self._restart(family, known if number // place % 2 == 0 else None, 1.0, limits)
            self._incumbent.say("annealed")

    def _near(self) -> list[tuple[Family, Evaluated]]:
        """Return the best families near the best plan that can be annealed, with what is known of them."""
        rows = list(self._prospects.reached().items())
        return [row for row in rows if is_near(row[1], self._incumbent) and self._can(row[0])][:NUM_BEST]

    def _can(self, family: Family) -> bool:
        small = self._prospects.is_small(family) and can_anneal(self._setting.cuts(family))
        return small and self._prospects.is_open(family)

    def _restart(self, family: Family, known: Evaluated | None, effort: float, limits: Limits) -> None:
        """Anneal a family with so much effort, or with what the clock allows of it."""
        if limits.over or not self._kernels.ready(0.0) or not self._can(family):
            return
        before_s, allowed = limits.left_s, effort
        if not self._counted:
            allowed = min(effort, before_s / max(self._seconds.get(family, 0.0), 1e-3))
        if allowed < SHORTEST:
            limits.hit = True
            return
        self._seed += 1
        restart(self._setting.cuts(family), known, self._incumbent, self._seed, limits, line=False, effort=allowed)
        self._seconds[family] = (before_s - limits.left_s) / allowed
        self._heard()
