"""Parts of a search that start from its best plans: other schedules, cuts into graphs, local search, random changes.

Leaves out what each does to one cut (`planner.search.proposers.order_segments`).
"""

from collections.abc import Generator

from planner.candidate.candidate import Candidate
from planner.search.proposers.annealing_run import can_anneal
from planner.search.proposers.order_segments import NUM_RANDOM_ORDERS, cut, perturb_best, polish
from planner.search.space.family import Family
from planner.search.state.focus import NUM_CAREFUL, PROMISING, is_near
from planner.search.subsolver import SearchState, Subsolver

NUM_SHAKES = 18
"""Random changes of a plan that are improved again."""


class OtherSchedules(Subsolver):
    """The best cuts under every schedule of their families."""

    name = "other schedules"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Return True: pins and lines leave schedules open."""
        return True

    def steps(self) -> Generator[None]:
        """Simulate one cut after the other."""
        state, best = self.state, self.state.pool.best
        for each in sorted(state.pool.found.values(), key=lambda each: each.sort_key)[:NUM_CAREFUL]:
            family = state.prospects.family_of(each)
            if not family or each.step_time_ns > best.step_time_ns * PROMISING or each.candidate.num_stages == 1:
                continue
            cuts, partition = state.prepared.cuts(family), each.candidate.partition
            for name in cuts.schedules:
                if (partition, family, name) not in self.done:
                    self.done.add((partition, family, name))
                    state.pool.offer(cuts.evaluate_under(partition, (name,)))
                    yield


class Graphs(Subsolver):
    """Families that annealing does not know, cut into graphs of stages along some orders of their atoms."""

    name = "graphs"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._cut: dict[Family, int] = {}

    def steps(self) -> Generator[None]:
        """Cut one family after the other; those near the best along more orders."""
        state = self.state
        for number in (0, NUM_RANDOM_ORDERS):
            for family in state.prospects.top():
                cuts = state.prepared.cuts(family)
                if cuts.always_line or (can_anneal(cuts) and state.kernels.ready(0.0)):
                    continue
                best = state.prospects.best_by_family().get(family)
                near = number == 0 or (family.chunks == 1 and best is not None and is_near(best, state.pool))
                if near and self._cut.get(family, -1) < number and state.prospects.is_open(family):
                    self._cut[family] = number
                    found = cut(cuts, number, state.pool, state.limits, line=False)
                    if number:
                        polish(cuts, found, state.pool, state.limits)
                    yield


class LocalSearch(Subsolver):
    """The best plan of each family near the best, improved on the simulator itself."""

    name = "local search"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether there are cuts to move; those of lines stay lines."""
        return not state.prepared.pinned_partition

    def steps(self) -> Generator[None]:
        """Improve one plan after the other."""
        state = self.state
        for family, best in state.prospects.near_best():
            open_ones = not family.split and state.prospects.is_small(
                family
            )  # those with split backwards where they are made
            if open_ones and best.candidate not in self.done and is_near(best, state.pool):
                polish(state.prepared.cuts(family), [best], state.pool, self.slice)
                if not self.slice.expired:
                    self.done.add(best.candidate)
                yield


class RandomChanges(Subsolver):
    """Random changes of the best plan, each improved, where it cannot be annealed."""

    name = "shaken and improved"

    def __init__(self, state: SearchState) -> None:
        super().__init__(state)
        self._num_shaken = 0
        self._best: Candidate | None = None

    def steps(self) -> Generator[None]:
        """Change the best plan a number of times, and as often again where it is another."""
        state, seed = self.state, self.state.problem.effort.seed
        best = state.pool.best
        family = state.prospects.family_of(best)
        if not family or can_anneal(state.prepared.cuts(family)) or not state.prospects.is_small(family):
            return
        if best.candidate != self._best:
            self._num_shaken, self._best = 0, best.candidate
        while self._num_shaken < NUM_SHAKES and state.pool.best is best:
            self._num_shaken += 1
            effort = (1, seed + self._num_shaken)
            perturb_best(state.prepared.cuts(family), best, state.pool, effort, state.limits)
            yield
