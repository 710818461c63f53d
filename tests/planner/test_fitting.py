"""The words fits, may-not-fit and does-not-fit: what they mean, that they agree, and what the default prefers."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import UsageError
from planner.answer.decide import plan
from planner.answer.room import with_room_first
from planner.plan import Plan
from planner.plan.fitting import DOES_NOT_FIT, FITS, FITTING, MAY_NOT_FIT, fitting, fitting_of
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.summary.alarms import alarms
from planner.report.summary.answer import PlanAnswer
from planner.search.budget import Deadline
from planner.search.planners import PLANNERS
from tests.support.described_models import described

SIZES = st.integers(0, 1 << 40)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6), SIZES, SIZES, SIZES)
def test_more_memory_and_a_smaller_margin_never_make_a_word_worse(rows, limit, more, margin) -> None:
    peaks = [peak for peak, _ in rows]
    uppers = [peak + beyond for peak, beyond in rows]
    limit += 1  # 0 means that it is not known
    words = [fitting(peaks, uppers, [size] * len(rows), margin) for size in (limit, limit + more)]
    words.append(fitting(peaks, uppers, [limit + more] * len(rows)))
    ranks = [FITTING.index(word) for word in words]
    assert all(later <= earlier for earlier, later in pairwise(ranks))


def test_each_word_says_what_is_within_the_device() -> None:
    assert fitting([10], [12], [12]) == FITS
    assert fitting([10], [12], [12], 1) == MAY_NOT_FIT
    assert fitting([10], [12], [10]) == MAY_NOT_FIT
    assert fitting([10], [12], [9]) == DOES_NOT_FIT
    assert fitting([10, 10], [12, 12], [0, 9]) == DOES_NOT_FIT
    assert fitting([10], [12], [0], 99) == FITS, "of a device whose memory is not known"


def chosen(found: Plan) -> str:
    return next(rung.strategy for rung in found.rungs if rung.why.startswith("chosen"))


def asked(**options: object) -> Problem:
    known = {"effort": Effort(300.0, 0.0), "target": "any", "space": Space(stages=1, tensor=1, context=1), **options}
    return Problem(described("gpt2"), None, 2, 16, **known)


def test_the_default_prefers_what_fits_for_sure_and_says_what_that_costs() -> None:
    free = plan(asked())
    tight = asked(memory_limit_bytes=max(free.prediction.peak_memory_upper_bytes) - 1)
    assert fitting_of(free) == FITS
    fast, sure = plan(replace(tight, allow_tight=True)), plan(tight)
    assert fitting_of(fast) == MAY_NOT_FIT
    assert fitting_of(sure) == FITS
    assert sure.prediction.step_time_ns >= fast.search.best_step_time_ns
    assert sure.search.best_step_time_ns == fast.search.best_step_time_ns, "the search itself goes by the estimate"
    if sure.prediction.step_time_ns > sure.search.best_step_time_ns:
        assert "--allow-tight" in str(sure.extra["choice"])


def test_the_simplest_wins_among_what_fits_for_sure_as_well() -> None:
    """A faster plan that may not fit does not hide the rule: of two about as fast the simpler is returned."""
    question = Problem(
        described("wide llama", sequence=4096), None, 8, 32, effort=Effort(300.0, 0.0), target="any",
        space=Space(stages=1, context=1), memory_limit_bytes=40 << 30,
    )  # fmt: skip
    fastest, simplest = plan(replace(question, simplicity=0.0)), plan(question)
    assert fastest.search.best_step_time_ns * 1.01 < fastest.prediction.step_time_ns, "what is faster may not fit"
    assert (chosen(fastest), chosen(simplest)) == ("zero-1+tensor", "zero-2")
    assert simplest.prediction.step_time_ns <= fastest.prediction.step_time_ns * 1.01


def test_past_the_time_limit_no_rung_fits_for_sure_where_the_first_choice_may_not() -> None:
    question = Problem(
        described("wide llama", sequence=4096), None, 8, 32, effort=Effort(300.0, 0.0), target="any",
        space=Space(stages=1, context=1), memory_limit_bytes=40 << 30,
    )  # fmt: skip
    outcome = PLANNERS["ours"](question, None)
    sure = [each for each in outcome.pool.rungs() if outcome.prepared.fits_for_sure(each)]
    assert sure
    assert not outcome.prepared.fits_for_sure(outcome.pool.choices()[0])
    first = with_room_first(outcome, outcome.pool.choices(), Deadline(0.0))[0]
    assert outcome.prepared.fits_for_sure(first)
    assert first.step_time_ns <= min(each.step_time_ns for each in sure) * question.near


@pytest.mark.parametrize("gib", [16, 20])
def test_no_flags_find_a_faster_plan_that_fits_than_the_default(gib: int) -> None:
    """Those that fit for sure are looked for, however much faster those are that may not fit."""
    question = Problem(
        described("wide llama", sequence=4096), None, 8, 32, effort=Effort(300.0, 0.0), target="any",
        space=Space(stages=1, context=1), memory_limit_bytes=gib << 30,
    )  # fmt: skip
    default = plan(question)
    assert fitting_of(default) == FITS
    for zero, size in ((2, 1), (3, 1), (3, 2)):
        fixed = plan(
            replace(question, space=Space(stages=1, data=4, tensor=2, context=1, zero=zero), microbatch_size=size)
        )
        if fitting_of(fixed) == FITS:
            assert default.prediction.step_time_ns <= fixed.prediction.step_time_ns * (1 + question.simplicity)


def test_where_nothing_is_known_to_fit_for_sure_a_plan_is_returned_and_named() -> None:
    found = plan(asked(memory_margin_bytes=1 << 50))
    assert fitting_of(found) == MAY_NOT_FIT
    assert [alarm.kind for alarm in alarms(asked(memory_margin_bytes=1 << 50), found, {})].count(MAY_NOT_FIT) == 1


def test_words_agree_between_plan_ladder_and_comparison() -> None:
    problem = asked()
    found = plan(problem)
    answer = PlanAnswer(found, problem, 0.0).to_json()
    (row,) = Comparison((ComparedPlan("found", found),)).rows()
    chosen = [rung for rung in found.rungs if rung.why.startswith("chosen")]
    assert {answer["fits"], row["fits"], *(rung.fits for rung in chosen)} == {FITS}
    assert all(rung.fits in FITTING for rung in found.rungs)
    assert all((rung.fits == DOES_NOT_FIT) == (rung.over_memory_bytes > 0) for rung in found.rungs)


def test_a_limit_above_the_device_is_said_and_does_not_count() -> None:
    problem = asked(memory_limit_bytes=1 << 50)
    answer = PlanAnswer(plan(problem), problem, 0.0)
    assert "is above the device's" in str(answer)


def test_a_margin_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="memory margin of -1"):
        asked(memory_margin_bytes=-1)


def test_what_is_faster_and_may_not_fit_is_said_so_and_ties_are_among_what_fits() -> None:
    free = plan(asked())
    tight = asked(memory_limit_bytes=max(free.prediction.peak_memory_upper_bytes) - 1)
    found = plan(tight)
    faster = [each for each in found.rungs if each.fits == MAY_NOT_FIT and each.runs_on
              and each.step_time_ns < found.prediction.step_time_ns]  # fmt: skip
    assert faster
    assert all("faster, and may not fit" in each.why for each in faster)
    tie = PlanAnswer(found, tight, 0.0).tie
    assert tie
    words = {each.strategy: each.fits for each in found.rungs}
    assert all(words[name] == FITS for name in tie)
