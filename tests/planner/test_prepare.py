"""What may be cut, and what may not."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.model.graph import OperatorGraph
from planner.graph.atoms import Atoms, group, prepare
from planner.graph.thinning import thin
from planner.graph.topological_orders import orders
from tests.support.random_profiles import branches, chain, profile_of, random_profile, u_net


def groups(atoms: Atoms) -> list[tuple[int, ...]]:
    return list(atoms.members)


def is_topological(atoms: Atoms, order: tuple[int, ...]) -> bool:
    place = {atom: i for i, atom in enumerate(order)}
    return sorted(order) == list(range(len(atoms))) and all(place[u] < place[v] for u, v in atoms.edges)


def test_nothing_is_contracted_without_need() -> None:
    assert groups(prepare(u_net(3).graph)) == [(0,), (1,), (2,), (3,), (4,), (5,)]


def test_an_in_place_operator_shares_its_producers_stage() -> None:
    graph = profile_of([1] * 4, [(0, 1), (1, 2), (2, 3)], in_place=frozenset({2})).graph
    assert groups(prepare(graph)) == [(0,), (1, 2), (3,)]


def shares_storage(graph: OperatorGraph, first: str, second: str) -> OperatorGraph:
    tensors = tuple(replace(t, storage=7) if t.name in (first, second) else t for t in graph.tensors)
    return replace(graph, tensors=tensors)


def test_an_in_place_operator_is_glued_to_what_it_changes_only() -> None:
    """Operator 3 adds the output of 1 to that of 2 in place; storages tell which one it changes."""
    profile = profile_of([1] * 5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)], in_place=frozenset({3}))
    graph = shares_storage(profile.graph, "t2", "t3")
    assert groups(prepare(graph)) == [(0,), (1,), (2, 3), (4,)]


def test_a_cycle_that_contraction_makes_is_merged() -> None:
    """Operators 0 and 2 must stay together and 1 lies between them."""
    graph = profile_of([1] * 4, [(0, 1), (1, 2), (0, 2), (2, 3)]).graph
    assert groups(group(graph, [(0, 2)])) == [(0, 1, 2), (3,)]


def test_long_skips_vanish_from_the_transitive_reduction() -> None:
    atoms = prepare(u_net(3).graph)
    assert atoms.successors[0] == (1, 5)
    assert atoms.reduction == ((1,), (2,), (3,), (4,), (5,), ())


def test_bottlenecks_are_atoms_that_all_others_lead_to_or_come_from() -> None:
    """Two branches of two operators meet in 4; 5 follows."""
    atoms = prepare(branches(2, 2).graph)
    assert atoms.bottlenecks == atoms.gradient_bottlenecks == (4, 5)
    assert prepare(chain(3).graph).bottlenecks == (0, 1, 2)


def test_a_bottleneck_that_a_frozen_branch_leads_to_is_none_for_gradients() -> None:
    graph = profile_of([1] * 3, [(0, 2), (1, 2)], frozen=frozenset({0})).graph
    assert prepare(graph).bottlenecks == (2,)
    assert prepare(graph).gradient_bottlenecks == ()


@pytest.mark.parametrize("seed", range(5))
def test_every_order_is_topological(seed: int) -> None:
    atoms = prepare(random_profile(Random(seed), 30).graph)
    found = orders(atoms, [1] * len(atoms), 6, seed)
    assert len(found) > 4
    assert all(is_topological(atoms, order) for order in found)


def test_orders_keep_branches_whole() -> None:
    atoms = prepare(branches(3, 4).graph)
    for order in orders(atoms, [1] * len(atoms), 4, 0):
        branch = [atom // 4 for atom in order if atom < 12]
        assert all(branch[i : i + 4] == [branch[i]] * 4 for i in (0, 4, 8))


@pytest.mark.parametrize("profile", [branches(4, 60), chain(300), random_profile(Random(3), 250)])
def test_thinning_leaves_the_number_of_atoms_asked_for_and_loses_no_operator(profile) -> None:  # type: ignore[no-untyped-def]
    atoms = prepare(profile.graph)
    thinned = thin(atoms, [1] * len(atoms), [1] * len(profile.graph.tensors), 50)
    assert len(thinned) <= 50
    assert sorted(o for row in thinned.members for o in row) == list(range(len(profile.graph.operators)))
    assert is_topological(thinned, tuple(range(len(thinned))))


def test_thinning_joins_no_two_branches() -> None:
    profile = branches(4, 60)
    atoms = prepare(profile.graph)
    work = [3 * 1000] * len(atoms)
    thinned = thin(atoms, work, [1] * len(profile.graph.tensors), 40)
    for row in thinned.members:
        assert len({operator // 60 for operator in row} - {4}) <= 1  # 4 is the head, which follows all branches


def test_small_graphs_keep_all_cuts() -> None:
    atoms = prepare(chain(160).graph)
    assert thin(atoms, [1] * 160, [1] * 159) is atoms
