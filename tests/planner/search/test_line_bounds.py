"""Bounds of pipelines along a chain of bottlenecks: below every plan of their family, by brute force, worth having."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.stages.config import StageConfig
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.bounders.pipeline_fill import in_line_ns, most_of_stretches
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from tests.properties.exact_promises import random_plans
from tests.support.described_models import described
from tests.support.pipelines import pipelines
from tests.support.random_profiles import chain


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_no_plan_that_fits_is_quicker_than_the_bound_of_its_family(start: int) -> None:
    for seed in range(start, start + 10):
        problem, _, plans, limit = random_plans(seed)
        prepared = PreparedProblem(replace(problem, memory_limit_bytes=limit))
        best: dict[tuple[StageConfig, int], int] = {}
        for each in plans:
            if limit is None or each.excess_bytes + 1 <= limit:
                key = each.candidate.places[0].config, each.candidate.microbatch_size
                best[key] = min(each.step_time_ns, best.get(key, each.step_time_ns))
        for family in prepared.families.all:
            known = best.get((family.config, family.microbatch_size))
            assert known is None or in_line_ns(prepared, family) <= known


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("gib", [0.035, 0.045, 0.06])
def test_no_even_cut_of_a_language_model_is_quicker_than_its_bound(recompute: str, gib: float) -> None:
    problem = Problem(described("llama"), None, 4, 16, memory_limit_bytes=int(gib * 2**30), target="any")
    prepared, fitting = PreparedProblem(problem), 0
    for size in (1, 2):
        family = Family(StageConfig(recompute=recompute), size)
        for stages in (2, 4):
            cuts, partition = prepared.cuts(family), prepared.equal_layers(stages)
            assert partition
            for each in cuts.evaluate_under(partition, cuts.schedules):
                fitting += each.fits
                assert not each.fits or in_line_ns(prepared, family) <= each.step_time_ns
    assert fitting or gib < 0.06


def test_a_line_of_equal_operators_fills_one_after_the_other() -> None:
    """Four stages of eight equal operators, two micro-batches: the fourth starts after three of five quarters."""
    prepared = PreparedProblem(pipelines(chain(8), 4, 2, size=1, schedule="1f1b"))
    family = next(each for each in prepared.families.all if each.config == StageConfig())
    work = prepared.families.least_work_ns(family) or 0
    assert in_line_ns(prepared, family) == int(work / (1 - 0.5**4))


def test_memory_for_one_micro_batch_makes_stages_wait_for_each_other() -> None:
    """Room for little more than one micro-batch a stage: a pipeline is as slow as its micro-batches in turn."""
    free = Problem(described("llama"), None, 4, 32, 1, target="any", space=Space(data=1, recompute="none"))
    prepared = PreparedProblem(free)
    family = Family(StageConfig(), 1)
    states, kept = prepared.families.states_bytes(family), prepared.families.kept_bytes(family)
    tight = PreparedProblem(replace(free, memory_limit_bytes=(states + kept) // 4))
    even_ns = tight.families.even_ns(family) or 0
    assert in_line_ns(tight, family) > 1.3 * even_ns
    assert in_line_ns(prepared, family) < 1.2 * even_ns


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=7), st.integers(1, 4))
def test_the_most_of_stretches_is_that_of_brute_force(amounts: list[int], number: int) -> None:
    ends = range(len(amounts) + 1)
    stretches = [(a, b) for a in ends for b in ends if a < b]
    sets = [()] + [each for k in range(1, number + 1) for each in combinations(stretches, k)]
    apart = [each for each in sets if all(a[1] <= b[0] or b[1] <= a[0] for a, b in combinations(each, 2))]
    expected = max(sum(sum(amounts[a:b]) for a, b in each) for each in apart)
    assert most_of_stretches(np.array([amounts], float), number)[0] == expected
