"""The micro-batches in flight of each stage, sought for plans whose stages stand (`simulator.schedules.graph_auto`).

Cuts and numbers are annealed together (`planner.search.solvers.annealing`); here the numbers alone are changed, one
stage at a time, as simulated. Leaves out stages that share a place, and trainers that run schedules by name.
"""

from dataclasses import replace
from operator import attrgetter

from planner.candidate.candidate import IN_FLIGHT
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.upper_memory import most_in_flight
from planner.question.problem import AUTO
from planner.search.budget import Deadline
from simulator.schedules.graph_auto import neighbours

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
        for tried in neighbours(best.candidate.in_flight):
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
