"""The bound by the lattice of downsets: never above a cut, close to the best, and copies that are not told apart."""

from dataclasses import replace

import pytest

from costmodel.model.profile import Profile
from planner.answer.decide import plan
from planner.search.solvers.lattice.bound import LatticeBound
from planner.search.solvers.lattice.copies import least_of_copies, pattern_of
from planner.search.solvers.lattice.downsets import downsets, of_cuts
from planner.search.solvers.relaxation.build import cut_data
from planner.search.solvers.relaxation.data import CutData
from planner.search.state.prepared import PreparedProblem
from tests.properties.lattice_promises import problem_failures, random_lattice
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, chain


@pytest.mark.parametrize("seed", range(9))
def test_no_cut_is_quicker_than_the_bound_of_its_family(seed: int) -> None:
    assert problem_failures(random_lattice(seed)) == []


def data_of(num_branches: int, length: int) -> CutData:
    prepared = PreparedProblem(pipelines(branches(num_branches, length), 3, 6))
    return cut_data(prepared.cuts(prepared.families.all[0]), 0, binding=False)


def test_equal_branches_are_copies_and_their_downsets_multisets() -> None:
    data = data_of(4, 3)
    pattern = pattern_of(data)
    assert [len(copies) for copies in pattern.copies] == [4]
    merged, every = of_cuts(data, pattern), downsets(data.num_atoms, data.precedence)
    assert merged
    assert every
    assert len(merged) == 35 + 2  # four of 0 to 3 atoms each, in no order; then the two of the head
    assert len(every) == 4**4 + 2


def test_branches_that_differ_are_not_copies() -> None:
    data = data_of(3, 2)
    forward = list(data.forward)
    forward[0] += 1
    uneven = pattern_of(CutData(**{name: getattr(data, name) for name in data.__slots__} | {"forward": tuple(forward)}))
    assert [len(copies) for copies in uneven.copies] == [2]


def test_measured_branches_that_nearly_agree_count_as_the_least_of_them() -> None:
    """Their bound is that of the least branch, no better than where all are told apart."""
    data = data_of(3, 3)
    forward = tuple(value + 7 * atom for atom, value in enumerate(data.forward))
    noisy = replace(data, forward=forward)
    assert [len(copies) for copies in pattern_of(noisy).copies] == []
    pattern = pattern_of(noisy, nearly=True)
    assert [len(copies) for copies in pattern.copies] == [3]
    least = least_of_copies(noisy, pattern)
    assert least.forward[:9] == forward[:3] * 3
    step_ns = 2 * noisy.unit_ns * noisy.num_microbatches * (sum(forward) + sum(noisy.backward))
    told_apart, merged = (max(each.bound_ns for each in LatticeBound(each).rise(step_ns)) for each in (noisy, least))
    assert 0.9 * told_apart <= merged <= told_apart


def test_too_many_downsets_are_not_listed() -> None:
    data = data_of(4, 3)
    assert of_cuts(data, pattern_of(data), most=36) is None


@pytest.mark.parametrize("profile", [chain(40), branches(4, 6)])
def test_the_default_search_proves_more_than_closed_forms(profile: Profile) -> None:
    problem = pipelines(profile, 6, 24, schedule="graph-auto", deterministic_limit=1.0)
    prepared = PreparedProblem(problem)
    found = plan(problem).search
    assert found.lower_bound_ns is not None
    left_ns = found.best_step_time_ns - prepared.free_bounds.closed_form_ns(prepared.families.all[0])
    assert found.best_step_time_ns - found.lower_bound_ns <= left_ns / 2
