"""Moves of the local search: all that keep the stage graph without cycles, those promising most first."""

from itertools import combinations, islice
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.stages.config import StageConfig
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.search.proposers.moves import NUM_RENUMBERED, moves
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.support.pipelines import cuts_of, pipelines
from tests.support.random_profiles import profile_of, random_profile

seeds = st.integers(0, 1 << 40)


def start(cuts: FamilyPartitions, rng: Random) -> Evaluated:
    """Some partition without cycles."""
    while True:
        found = numbered(cuts.atoms, [rng.randrange(cuts.num_stages) for _ in range(len(cuts.atoms))])
        if found:
            return cuts.evaluate(found)


def every_move(cuts: FamilyPartitions, partition: Partition) -> set[Partition]:
    """By trial: each atom with those behind (or before) it in its stage, to each stage and a new one."""
    atoms, found = cuts.atoms, set()
    for atom, own in enumerate(partition):
        for related in (atoms.descendants[atom], atoms.ancestors[atom]):
            rows = {a for a in range(len(atoms)) if a == atom or (related >> a & 1 and partition[a] == own)}
            for target in set(range(min(max(partition) + 2, cuts.num_stages))) - {own}:
                after = numbered(atoms, [target if a in rows else stage for a, stage in enumerate(partition)])
                found |= {after} if after else set()
    return found - {partition}


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_every_move_that_makes_no_cycle_is_there_but_for_places_that_it_overfills(seed: int) -> None:
    rng = Random(seed)
    cuts = cuts_of(pipelines(random_profile(rng, 9), 4, 4, 1))
    each = start(cuts, rng)
    found, every = set(moves(cuts, each)), every_move(cuts, each.candidate.partition)
    assert found <= every
    assert set(moves(cuts, each, rng)) == found
    for partition in every - found:
        assert cuts.evaluate(partition).step_time_ns > each.step_time_ns


def test_work_leaves_the_stage_that_the_critical_path_passes_most_for_those_that_it_passes_less() -> None:
    cuts = cuts_of(pipelines(profile_of([500] * 6, [(i, i + 1) for i in range(5)]), 3, 12, 1))
    each = cuts.evaluate((0, 1, 1, 1, 1, 2))
    first = next(moves(cuts, each))
    assert sum(stage == 1 for stage in first) < sum(stage == 1 for stage in each.candidate.partition)
    assert cuts.evaluate(first).step_time_ns < each.step_time_ns


def several_a_place(rng: Random) -> tuple[FamilyPartitions, Evaluated]:
    cuts = PreparedProblem(pipelines(random_profile(rng, 9), 2, 4, 1)).cuts(Family(StageConfig(), 1, chunks=3))
    return cuts, start(cuts, rng)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_of_several_stages_a_place_all_pairs_change_numbers_that_the_graph_lets_change(seed: int) -> None:
    rng = Random(seed)
    cuts, each = several_a_place(rng)
    partition = each.candidate.partition
    pairs = combinations(range(max(partition) + 1), 2)
    every = {tuple({a: b, b: a}.get(stage, stage) for stage in partition) for a, b in pairs}
    runnable = {one for one in every if all(one[source] <= one[target] for source, target in cuts.atoms.edges)}
    assert runnable <= set(moves(cuts, each))
    assert set(islice(moves(cuts, each, rng), min(NUM_RENUMBERED, len(runnable)))) <= runnable


def joined_and_split(cuts: FamilyPartitions, partition: Partition) -> set[Partition]:
    """By trial: a stage's atom with those behind it to a stage of their own, two other neighbours to one."""
    atoms, found, stages = cuts.atoms, set(), range(max(partition) + 1)
    for atom, own in enumerate(partition):
        rows = {a for a in range(len(atoms)) if a == atom or (atoms.descendants[atom] >> a & 1 and partition[a] == own)}
        if len(rows) == partition.count(own):
            continue
        for first in set(stages[:-1]) - {own - 1, own}:
            halves = [2 * stage + (a in rows) for a, stage in enumerate(partition)]
            groups = [2 * first + 2 if half == 2 * first else half for half in halves]
            found.add(tuple(sorted(set(groups)).index(group) for group in groups))
    return found


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_of_several_stages_a_place_neighbours_are_joined_and_another_split(seed: int) -> None:
    cuts, each = several_a_place(Random(seed))
    every = joined_and_split(cuts, each.candidate.partition)
    assert every <= set(moves(cuts, each))
    for partition in every:
        assert max(partition) == max(each.candidate.partition)
        assert all(partition[source] <= partition[target] for source, target in cuts.atoms.edges)
