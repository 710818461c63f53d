"""Equal towers of a graph: told, thinned alike, and few enough for a bound to go through their downsets."""

from dataclasses import replace
from itertools import pairwise

import pytest

from planner.graph.atoms import MOST_ATOMS, Atoms, prepare
from planner.graph.thinning import thin
from planner.graph.towers import Rows, num_downsets, towers
from planner.search.solvers.lattice.downsets import downsets
from planner.search.state.prepared import DOWNSETS_A_DEVICE, PreparedProblem
from tests.support.pipelines import pipelines
from tests.support.random_profiles import branches, chain, profile_of


def towers_of(atoms: Atoms, works: list[int] | None = None) -> list[Rows]:
    return towers(atoms, works or [len(row) for row in atoms.members], [1] * len(atoms.graph.tensors))


@pytest.mark.parametrize("most", [100, 60, 30, 14])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_equal_towers_stay_equal_however_few_cuts_are_left(count: int, most: int) -> None:
    atoms = prepare(branches(count, 60).graph)
    thinned = thin(atoms, [1000] * len(atoms), [1] * len(atoms.graph.tensors), most)
    assert len(thinned) <= most
    (rows,) = towers_of(thinned)
    places = [[[operator % 60 for operator in thinned.members[atom]] for atom in row] for row in rows]
    assert len(rows) == count
    assert all(row == places[0] for row in places)


def test_more_towers_than_atoms_are_asked_for_are_joined_after_all() -> None:
    atoms = prepare(branches(70, 2).graph)
    assert len(thin(atoms, [1000] * len(atoms), [1] * len(atoms.graph.tensors), 50)) <= 50


@pytest.mark.parametrize(("count", "length"), [(2, 5), (3, 4), (4, 3), (5, 1)])
def test_downsets_of_equal_towers_are_those_that_the_lattice_lists(count: int, length: int) -> None:
    atoms = prepare(branches(count, length, head=1).graph)
    groups = towers_of(atoms)
    precedence = [(a, b) for rows in groups for one, other in pairwise(rows) for a, b in zip(one, other, strict=True)]
    found = downsets(len(atoms), [*atoms.edges, *precedence])
    assert found
    assert num_downsets(groups) == len(found) - 1  # the head follows all towers


def test_measured_towers_may_differ_a_little_in_work_and_no_more() -> None:
    atoms = prepare(branches(3, 4).graph)
    works = [1000, 1100, 1200, 1000] * 3 + [100] * 2
    assert len(towers_of(atoms, [work + 90 * (i // 4) for i, work in enumerate(works)])[0]) == 3
    assert not towers_of(atoms, [work * (1 + i // 4) for i, work in enumerate(works)])


def test_short_branches_are_towers_only_where_they_are_many() -> None:
    for count in (2, 3, 4, 5):
        edges = [(0, 1 + b) for b in range(count)] + [(1 + b, 1 + count) for b in range(count)]
        atoms = prepare(profile_of([100_000, *[1] * count, 100_000], edges).graph)
        found = towers_of(atoms, [100_000, *[1] * count, 100_000])
        assert [len(rows) for rows in found] == ([count] if count >= 4 else [])


def test_a_search_takes_as_many_cuts_as_a_bound_can_tell_apart() -> None:
    problem = pipelines(branches(4, 60), 8, 16)
    atoms = PreparedProblem(problem).atoms
    assert len(atoms) < MOST_ATOMS / 2
    assert num_downsets(towers_of(atoms)) <= 8 * DOWNSETS_A_DEVICE
    assert len(PreparedProblem(replace(problem, num_devices=3)).atoms) == len(atoms)
    assert len(PreparedProblem(pipelines(chain(200), 8, 16)).atoms) == MOST_ATOMS
    assert len(PreparedProblem(replace(problem, exact=True)).atoms) > MOST_ATOMS / 2
