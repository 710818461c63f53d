"""Ways out where no plan fits: each that is named does fit when it is planned, and the cheapest comes first."""

import re
from dataclasses import replace

import pytest

from costmodel.errors import NoPlanFits
from planner import Effort, Problem, Space
from planner.answer.decide import plan
from planner.answer.feasibility_fixes import feasibility_fixes
from planner.plan import Plan
from planner.search.budget import Deadline
from planner.search.proposers.lowest_memory import lowest_memory_candidates
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import described
from tests.support.pipelines import pipelines
from tests.support.random_profiles import chain

GIB = 2**30


def refusal(problem: Problem) -> str:
    """Return what is said where nothing fits."""
    with pytest.raises(NoPlanFits) as caught:
        plan(problem)
    return str(caught.value)


def heavy(**options: object) -> Problem:
    """Six operators that keep 4 MiB a sample each, on two devices."""
    profile = chain(6, saved_bytes=4 << 20, parameter_bytes=1 << 20)
    return pipelines(profile, 2, 8, options.pop("size", 1), deterministic_limit=0.0, **options)  # type: ignore[arg-type]


def test_a_choice_to_drop_is_named_before_anything_that_costs() -> None:
    problem = replace(heavy(memory_limit_bytes=20 << 20), schedule="graph-1f1b")  # halves would fit
    text = refusal(problem)
    assert "verified by planning again, a plan fits without --recompute" in text
    assert "--devices" not in text.split("verified")[1]
    assert "--memory-limit" not in text.split("verified")[1]
    assert plan(replace(problem, space=replace(problem.space, recompute=None)))


def test_the_memory_named_is_enough_and_a_tenth_less_is_not() -> None:
    problem = heavy(memory_limit_bytes=1 << 20, space=Space())
    size = float(re.findall(r"--memory-limit ([\d.]+)", refusal(problem))[0])
    assert plan(replace(problem, memory_limit_bytes=round(size * GIB)))
    refusal(replace(problem, memory_limit_bytes=round(0.9 * (size - 0.01) * GIB)))


def test_devices_named_are_enough() -> None:
    problem = heavy(space=Space(), memory_limit_bytes=1)
    (_, least), *_ = lowest_memory_candidates(PreparedProblem(replace(problem, num_devices=4)), 5.0)
    problem = replace(problem, memory_limit_bytes=least.excess_bytes + least.excess_bytes // 50)
    (number,) = re.findall(r"with --devices (\d+)", refusal(problem))
    assert plan(replace(problem, num_devices=int(number)))


def test_more_memory_than_devices_have_is_said_to_be_another_device() -> None:
    problem = heavy(space=Space())
    small = replace(problem.profile, device=replace(problem.profile.device, memory_bytes=1 << 20))
    text = refusal(replace(problem, profile=small))
    assert re.search(r"on devices with [\d.]+ GiB", text)
    assert "--memory-limit" not in text


def test_a_search_that_finds_nothing_says_what_holds_least() -> None:
    problem = Problem(described("gpt2"), None, 4, 16, target="any", effort=Effort(0.5, 0.0))
    (_, least), *_ = lowest_memory_candidates(PreparedProblem(replace(problem, memory_limit_bytes=1)), 5.0)
    peak = int(re.findall(r"peaks at (\d+) bytes", refusal(replace(problem, memory_limit_bytes=1 << 10)))[0])
    assert peak <= 1.01 * (least.excess_bytes + 1)


def test_a_command_that_is_late_already_tries_no_ways_out() -> None:
    said = feasibility_fixes(
        heavy(memory_limit_bytes=1 << 20, space=Space()), lambda problem: pytest.fail("tried"), Deadline(-1)
    )
    assert said == "; no change that helps was verified in the time that there was"


def test_ways_out_get_no_more_time_than_the_command_has_left() -> None:
    given: list[float] = []

    def tried(problem: Problem) -> Plan:
        given.append(problem.effort.time_limit_s)
        return plan(replace(problem, effort=Effort(0.0)))

    feasibility_fixes(heavy(memory_limit_bytes=1 << 20, space=Space()), tried, Deadline(600.0))
    assert given
    assert max(given) < 600.0
