"""Annealing: what its compiled value says of a cut, that all cuts it meets can be run, and that it repeats itself."""

import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.stages.config import StageConfig
from planner.graph.atoms import numbered
from planner.search.proposers.annealing_run import can_anneal
from planner.search.solvers.annealing import kernels
from planner.search.solvers.annealing.annealer import Annealer
from planner.search.solvers.annealing.data import RULES, room_for
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from tests.support.pipelines import PIPELINES, cuts_of, pipelines
from tests.support.random_profiles import random_profile

seeds = st.integers(0, 1 << 40)


def random_cuts(rng: Random) -> FamilyPartitions:
    return cuts_of(pipelines(random_profile(rng, 9, latency_ns=2000), 4, 6, 1))


@given(seeds, st.sampled_from(RULES[:2]))
@settings(max_examples=40, deadline=None)
def test_a_simulated_value_is_the_step_that_the_simulator_says(seed: int, schedule: str) -> None:
    rng = Random(seed)
    cuts = random_cuts(rng)
    partition = None
    while partition is None:
        partition = numbered(cuts.atoms, [rng.randrange(4) for _ in range(len(cuts.atoms))])
    annealer = Annealer(cuts, line=False)
    cut = annealer.cut._replace(warmups=np.array([RULES.index(schedule)]))
    room = room_for(cut, np.array((*partition, 1, 1, 1, 1)), 0)
    value = kernels.value_of(cut, room.stage, room.at, True, kernels.NEVER)
    assert value == pytest.approx(cuts.evaluate(partition, schedule).step_time_ns, rel=0.03)


def interleaved_cuts(rng: Random, data: int) -> FamilyPartitions:
    """Cuts of two places with two stages each, in so many replicas."""
    space = replace(PIPELINES, chunks=2, data=data)
    problem = pipelines(random_profile(rng, 9, latency_ns=2000), 2 * data, 6 * data, 1, space=space)
    return PreparedProblem(problem).cuts(Family(StageConfig(data=data), 1, 2))


@given(seeds, st.sampled_from((1, 2)))
@settings(max_examples=20, deadline=None)
def test_a_simulated_value_of_interleaved_stages_is_the_step_that_the_simulator_says(seed: int, data: int) -> None:
    cuts = interleaved_cuts(Random(seed), data)
    assert can_anneal(cuts)
    annealer = Annealer(cuts, line=False)
    assert annealer.cut.orders.shape == (2, 24, 3)
    assert annealer.cut.orders.max(axis=(0, 1)).tolist() == [3, 1, 5]
    ((found, _),) = annealer.annealed(None, seed)
    room = room_for(annealer.cut, np.array((*found, 1, 1, 1, 1)), 0)
    value = kernels.value_of(annealer.cut, room.stage, room.at, True, kernels.NEVER)
    assert value == pytest.approx(cuts.evaluate(found).step_time_ns, rel=0.05 if data == 1 else 0.15)  # sums overlap


def test_annealing_stays_within_its_arrays() -> None:
    # Compiled it would read and write past their ends in silence; without numba Python looks.
    steps = "from tests.planner.search.test_annealing import *; list(map(anneal_briefly, range(4)))"
    without = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", steps], env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def anneal_briefly(seed: int) -> None:
    rng = Random(seed)
    for cuts in (random_cuts(rng), interleaved_cuts(rng, 1), interleaved_cuts(rng, 2)):
        for start in (None, next(Annealer(cuts, line=False, effort=0.02).annealed(None, seed))[0]):
            assert list(Annealer(cuts, line=False, effort=0.02).annealed(start, seed))


@given(seeds, st.booleans())
@settings(max_examples=20, deadline=None)
def test_an_annealed_cut_can_be_run_is_the_same_again_and_is_no_worse_than_its_start(seed: int, line: bool) -> None:
    cuts = random_cuts(Random(seed))
    assert can_anneal(cuts)
    ways = list(Annealer(cuts, line=line).annealed(None, seed))
    assert ways == list(Annealer(cuts, line=line).annealed(None, seed))
    for found, _ in ways:
        assert all(found[a] <= found[b] for a, b in cuts.atoms.edges)
    again = next(Annealer(cuts, line=line).annealed(ways[0][0], seed + 1))
    values = []
    for partition, _ in (ways[0], again):
        annealer = Annealer(cuts, line=line)
        room = room_for(annealer.cut, np.array((*partition, *[1] * cuts.num_stages)), 0)
        values.append(kernels.value_of(annealer.cut, room.stage, room.at, True, kernels.NEVER))
    assert values[1] <= values[0]


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_a_line_passes_by_a_stage_without_atoms(seed: int) -> None:
    """Its value is that of the line of the other stages; links are all alike here."""
    cuts = random_cuts(Random(seed))
    annealer = Annealer(cuts, line=True)
    partition = tuple(sorted(Random(seed).choices(range(3), k=len(cuts.atoms))))
    values = []
    for row in (partition, tuple(stage + (stage > 0) for stage in partition)):
        room = room_for(annealer.cut, np.array((*row, 1, 1, 1, 1)), 0)
        values.append(kernels.value_of(annealer.cut, room.stage, room.at, True, kernels.NEVER))
    assert values[0] == pytest.approx(values[1])


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_numbers_in_flight_of_their_own_are_valued_as_the_simulator_does_and_no_worse(seed: int) -> None:
    cuts = random_cuts(Random(seed))
    annealer = Annealer(cuts, line=False)
    named, free = annealer.annealed(None, seed)
    best = min(each.step_time_ns for each in cuts.evaluate_under(named[0], cuts.schedules))
    found = cuts.evaluate(free[0], "graph-auto", in_flight=free[1])
    assert found.step_time_ns <= best * 1.03
    cut = annealer.cut._replace(warmups=np.array([kernels.FREE]))
    numbers = found.candidate.in_flight
    room = room_for(cut, np.array((*free[0], *numbers, *[1] * (cuts.num_stages - len(numbers)))), 0)
    value = kernels.value_of(cut, room.stage, room.at, True, kernels.NEVER)
    assert value == pytest.approx(found.step_time_ns, rel=0.03)
