"""Whose turn it is in a search: by gain per second, before and since; first plans alone; proofs by the same rule."""

import math
import time
from collections.abc import Generator
from dataclasses import replace

import pytest

from costmodel.errors import UsageError
from planner.question.problem import Effort, Problem
from planner.search.budget import Deadline
from planner.search.proposers.lowest_memory import LowestMemory, lowest_memory_candidates
from planner.search.state.prepared import PreparedProblem
from planner.search.state.record import Kind
from planner.search.subsolver import SearchState, Subsolver
from planner.search.turns import Prior, Scheduler
from tests.support.random_profiles import chain

LONG_S = 1000.0


class Noted(Subsolver):
    """Writes down its turns; its pieces bring nothing."""

    name = "noted"
    pieces = 100
    notes: list[str]

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        return True

    def steps(self) -> Generator[None]:
        for _ in range(self.pieces):
            self.notes.append(self.name)
            self.piece()
            yield

    def piece(self) -> None:
        """Do nothing."""


def part(name: str, notes: list[str], kind: Kind = "improve", *, pieces: int = 100) -> type[Noted]:
    """Return a subsolver of its own name that writes into `notes`."""
    return type(name, (Noted,), {"name": name, "kind": kind, "notes": notes, "pieces": pieces})


@pytest.fixture
def state() -> SearchState:
    """A search of counted work, in which a plan fits."""
    found = SearchState(Problem(chain(6), None, 2, 8, target="any", effort=Effort(LONG_S, 0.0)), None)
    family = next(iter(found.prepared.families.all))
    found.pool.offer(found.prepared.cuts(family).evaluate_under((0,) * 6, ("graph-1f1b",)))
    assert found.has_plan()
    return found


def turns(state: SearchState, rows: list[tuple[type[Subsolver], Prior]], most_s: float = LONG_S) -> Scheduler:
    """Give turns until nothing is left, or for some counted seconds."""
    scheduler = Scheduler(state, rows, lambda: None, most_s)
    scheduler.run(Deadline(LONG_S))
    return scheduler


def test_the_part_that_was_measured_to_bring_most_a_second_comes_first(state: SearchState) -> None:
    notes: list[str] = []
    rows = [(part("slow", notes), Prior(0.1, 10.0, 1.0)), (part("fast", notes), Prior(0.1, 1.0, 1.0))]
    turns(state, rows, most_s=1.0)
    assert notes == ["fast"]


def test_parts_that_bring_nothing_share_the_time_as_they_were_measured_to_bring_it(state: SearchState) -> None:
    """Rates fall to each other: after long the seconds are as the gains."""
    notes: list[str] = []
    rows = [
        (part("three", notes, pieces=10**6), Prior(0.3, 1.0, 1.0)),
        (part("one", notes, pieces=10**6), Prior(0.1, 1.0, 1.0)),
    ]
    turns(state, rows, most_s=400.0)
    assert 2.8 < notes.count("three") / notes.count("one") < 3.2


def test_while_nothing_fits_parts_that_make_first_plans_are_alone() -> None:
    empty = SearchState(Problem(chain(6), None, 2, 8, target="any", effort=Effort(LONG_S, 0.0)), None)
    notes: list[str] = []
    rows = [
        (part("better", notes), Prior(9.0, 1.0, 1.0)), (part("first", notes, "first", pieces=5), Prior(0.1, 1.0, 1.0)),
        (part("bounds", notes, "prove"), Prior(0.0, 1.0, 1.0)),
    ]  # fmt: skip
    turns(empty, rows, most_s=5.0)
    assert notes == ["first"] * 5


def test_parts_that_prove_share_the_time_by_the_same_rule(state: SearchState) -> None:
    notes: list[str] = []
    better, bounds = part("better", notes, pieces=10**6), part("bounds", notes, "prove", pieces=10**6)
    turns(state, [(better, Prior(0.4, 1.0, 1.0)), (bounds, Prior(0.1, 1.0, 1.0))], most_s=200.0)
    assert notes.count("bounds") == pytest.approx(0.2 * len(notes), abs=5)


def test_a_bound_that_rises_counts_as_a_step_that_falls(state: SearchState) -> None:
    notes: list[str] = []
    bounds = part("bounds", notes, "prove", pieces=2)
    bounds.piece = lambda each: setattr(each.state.pool, "lower_bound_ns", 2 * each.state.bounds.known_ns)  # type: ignore[method-assign]
    row, *_ = turns(state, [(bounds, Prior(0.1, 1.0, 1.0))]).rows
    assert row.gain == pytest.approx(2 * math.log(2))


def test_what_is_raised_in_a_turn_costs_that_turn_alone(state: SearchState) -> None:
    notes: list[str] = []

    def raises(_: Noted) -> None:
        raise UsageError("of no flag")

    broken = part("broken", notes)
    broken.piece = raises  # type: ignore[method-assign]
    turns(state, [(broken, Prior(9.0, 1.0, 1.0)), (part("other", notes, pieces=3), Prior(0.1, 1.0, 1.0))])
    assert notes == ["broken", "other", "other", "other"]
    assert state.prepared.dropped.bugs == {"bug: UsageError": 1}


def test_a_part_with_nothing_left_to_do_is_asked_again_when_a_candidate_is_new(state: SearchState) -> None:
    notes: list[str] = []
    scheduler = turns(state, [(part("once", notes, pieces=1), Prior(0.1, 1.0, 1.0))])
    scheduler.run(Deadline(LONG_S))
    assert notes == ["once"]
    state.pool.version += 1
    scheduler.run(Deadline(LONG_S))
    assert notes == ["once", "once"]


def test_what_follows_a_search_is_given_more_time_where_other_processes_use_the_core() -> None:
    """A process that waits for a fifth of a second has, for all that it knows, a part of a core."""
    limits = Deadline(10.0)
    assert limits.wall_per_cpu < 1.1
    time.sleep(0.2)
    assert limits.wall_per_cpu > 1.1


def test_the_search_for_what_holds_least_goes_on_where_its_turn_ended() -> None:
    """However short its turns are, it comes to the same candidate as in one piece."""
    profile, found = chain(8, saved_bytes=1000, parameter_bytes=1 << 16), dict[str, int]()
    problem = Problem(profile, None, 4, 16, target="any", effort=Effort(LONG_S, 0.0))
    least = lowest_memory_candidates(PreparedProblem(replace(problem, memory_limit_bytes=1)), LONG_S)[0][1]
    limit = least.excess_bytes + 1
    for name, seconds in (("short", 0.0), ("long", LONG_S)):
        state = SearchState(replace(problem, memory_limit_bytes=limit), None)
        family = next(iter(state.prepared.families.all))
        state.pool.offer(state.prepared.cuts(family).evaluate_under((0,) * 8, ("graph-1f1b",)))
        assert not state.has_plan()
        search = LowestMemory(state)
        search.slice = Deadline(seconds)
        for _ in range(1000):
            if not search.step():
                break
        assert state.has_plan()
        found[name] = state.pool.best.step_time_ns
    assert found["short"] == found["long"]
