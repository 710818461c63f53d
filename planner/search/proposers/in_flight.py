"""The micro-batches in flight of each stage, sought for plans whose stages stand.

Cuts and numbers are annealed together (`planner.search.solvers.annealing`); here the numbers alone are changed, one
stage at a time, as simulated. Leaves out stages that share a place, and trainers that run schedules by name.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from operator import attrgetter

from planner.candidate.candidate import IN_FLIGHT
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.order import WITHIN_LIMIT
from planner.candidate.upper_memory import most_in_flight
from planner.question.problem import AUTO
from planner.search.budget import Deadline
from planner.search.space.open_choices import allows_custom_in_flight
from planner.search.subsolver import SearchState, Subsolver
from simulator.schedules.list_simulation import Numbers

NUM_TUNED = 3
"""Plans whose micro-batches in flight are changed, the best."""
CHANGES = (1, -1, 2, -2)
"""What is tried of the number of a stage."""
MOST_ACTIONS = 400_000
"""Actions that are simulated for one plan."""


def tuned(evaluator: Evaluator, each: Evaluated, limits: Deadline) -> list[Evaluated]:
    """Return what other numbers in flight, or all forwards first, make of a plan of one stage a rank, where better."""
    held = [rank for place in each.candidate.places for rank in place.ranks]
    if len(held) > len(set(held)) or each.candidate.num_stages == 1 or limits.expired:
        return []
    schedule = evaluator.shortest(each.candidate).times.structure.schedule
    orders, ranks = schedule.orders, schedule.graph.ranks
    numbers = tuple(max(1, most_in_flight(orders[row[0]], stage)) for stage, row in enumerate(ranks))
    left = MOST_ACTIONS // sum(map(len, orders))
    start = evaluator.evaluate(replace(each.candidate, schedule=IN_FLIGHT, in_flight=numbers))
    best, found = start, True
    while found and left > 0:
        found = False
        for tried in _neighbours(best.candidate.in_flight):
            if left <= 0 or limits.expired:
                break
            left -= 1
            other = evaluator.evaluate(replace(best.candidate, in_flight=tried))
            if other.sort_key < best.sort_key:
                best, found = other, True
                break
    if evaluator.problem.schedule == AUTO:  # the one fixed order that no numbers in flight give
        best = min(best, evaluator.evaluate(replace(each.candidate, schedule="gpipe", in_flight=())), key=_sort_key)
    return [best] if best.sort_key < each.sort_key else []


_sort_key = attrgetter("sort_key")


def _neighbours(numbers: Numbers) -> Iterator[Numbers]:
    """Yield the numbers with that of one stage changed."""
    for change in CHANGES:
        for stage, number in enumerate(numbers):
            if number + change > 0:
                yield (*numbers[:stage], number + change, *numbers[stage + 1 :])


class MicrobatchesInFlight(Subsolver):
    """Other numbers of micro-batches in flight of the best plans."""

    name = "micro-batches in flight"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether these numbers are open."""
        return not state.prepared.pinned.in_flight and allows_custom_in_flight(state.problem)

    def steps(self) -> Generator[None]:
        """Change one plan after the other, the best first."""
        state = self.state
        whole = (each for each in state.pool.found.values() if each.candidate.schedule != WITHIN_LIMIT)
        best = sorted(filter(state.pool.runs, whole), key=_sort_key)[:NUM_TUNED]
        for each in best:
            if each.candidate not in self.done:
                self._tune(each)
                yield

    def _tune(self, each: Evaluated) -> None:
        state = self.state
        evaluator, family = state.prepared.evaluator(each.candidate.microbatch_size), state.prospects.family_of(each)
        self.done.add(each.candidate)
        with state.prepared.dropped.candidate():
            for found in tuned(evaluator, each, state.limits):
                if family:
                    state.prepared.family_of[found.candidate] = family
                self.done.add(found.candidate)
                state.pool.offer([found])
