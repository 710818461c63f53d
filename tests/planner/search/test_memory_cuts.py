"""Cuts that know memory, and the bound that does: against all cuts with all that may run again by stage."""

from dataclasses import replace
from itertools import combinations, pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig, recomputed
from planner.candidate.evaluate import Evaluated
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.bounders.held_chain import held_chain_ns
from planner.search.proposers.memory_cuts import MemoryCuts, rows_to_cut
from planner.search.solvers.depth_dp import cuts_by_depth
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState
from tests.support.described_models import described
from tests.support.pipelines import PIPELINES, pipelines
from tests.support.random_profiles import profile_of

LONG = 32768
"""Tokens of a sample with which activations are most of what a rank holds."""
SCHEDULES = ("1f1b", "eager-1f1b", "gpipe")


def every_plan(prepared: PreparedProblem, family: Family, schedules: tuple[str, ...]) -> list[Evaluated]:
    """Every cut of a chain whose stages each run their first operators again, none to all."""
    cuts, found = prepared.cuts(family), []
    names, size = [operator.name for operator in cuts.atoms.graph.operators], len(cuts.atoms)
    for stages in range(1, cuts.num_stages + 1):
        for inner in combinations(range(1, size), stages - 1):
            begins = (0, *inner, size)
            partition = tuple(sum(i >= begin for begin in inner) for i in range(size))
            rows = [range(end - begin + 1) for begin, end in pairwise(begins)]
            for again, schedule in product(product(*rows), schedules):
                plain = cuts.candidate(partition, schedule, line=True)
                configs = [
                    recomputed(place.config, tuple(names[begin : begin + count]))
                    for place, begin, count in zip(plain.places, begins, again, strict=False)
                ]
                places = tuple(replace(p, config=c) for p, c in zip(plain.places, configs, strict=True))
                found += prepared.evaluated(replace(plain, places=places))
    return found


def chain_of(seed: int) -> Problem:
    """A chain of uneven operators that keep unlike bytes, on two or three devices with tight memory or room."""
    rng = Random(seed)
    size = rng.randint(3, 5)
    works = [rng.randint(200, 3000) for _ in range(size)]
    profile = profile_of(
        works, [(i, i + 1) for i in range(size - 1)], latency_ns=rng.choice((0, 400)),
        saved_bytes=rng.choice((2000, 9000)), tensor_bytes=rng.choice((100, 1500)), parameter_bytes=20_000,
    )  # fmt: skip
    space = replace(PIPELINES, recompute=None)
    return pipelines(profile, rng.choice((2, 3)), rng.choice((3, 6)), schedule="1f1b", space=space)


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_that_fits_is_quicker_than_the_bound_with_memory_in_it(seed: int) -> None:
    free, rng = chain_of(seed), Random(seed)
    family = Family(StageConfig(recompute="full"), 1)
    plans = every_plan(PreparedProblem(free), Family(StageConfig(), 1), SCHEDULES)
    memory = free.memory_limits_bytes[0] or 0
    peaks = {each: memory - each.spare_bytes for each in plans}
    for part in (0.0, 0.1, 0.5, rng.random()):
        limit = sorted(peaks.values())[int(part * (len(plans) - 1))]
        known = min(each.step_time_ns for each, peak in peaks.items() if peak <= limit)
        prepared = PreparedProblem(replace(free, memory_limit_bytes=limit))
        bound_ns = held_chain_ns(prepared, family, 4 * known)
        assert 0 < bound_ns <= known


@pytest.mark.parametrize("seed", range(12))
def test_the_best_cut_by_depth_is_that_of_all_cuts(seed: int) -> None:
    rng, stages, size = np.random.default_rng(seed), 3, 7
    works = rng.uniform(1, 9, (stages, size, size))
    works[(rng.random(works.shape) < 0.3) | np.tril(np.ones((size, size), bool))] = np.inf
    closing, messages = rng.uniform(0, 3, works.shape), rng.uniform(0, 2, (stages - 1, size))
    values = []
    for inner in combinations(range(1, size - 1), stages - 1):
        ends = (0, *inner, size - 1)
        rows = [(works[s, ends[s], ends[s + 1]], closing[s, ends[s], ends[s + 1]]) for s in range(stages)]
        sent = sum(messages[s, ends[s + 1]] for s in range(stages - 1))
        values.append(max(5 * work + end for work, end in rows) + sum(work for work, _ in rows) + sent)
    found = cuts_by_depth(works, closing, messages, 6, np.inf, 1)
    best = min(values)
    assert (found[0][0] if found else np.inf) == pytest.approx(best)


def llama(gib: float, sequence: int = 128, **choices: object) -> Problem:
    space = Space(stages=4, data=1, tensor=1, zero=0, chunks=1, **choices)  # type: ignore[arg-type]
    effort = Effort(deterministic_limit=1.0)
    profile = described("llama", sequence=sequence)
    return Problem(
        profile, None, 4, 16, 1, memory_limit_bytes=int(gib * 2**30), target="any", space=space, schedule="1f1b",
        effort=effort,
    )  # fmt: skip


def test_where_memory_binds_some_layers_of_some_stages_run_again_and_that_is_faster_than_all() -> None:
    free = PreparedProblem(llama(4))
    family = next(each for each in free.families.all if each.config.recompute == "none")
    even = free.equal_layers(4)
    assert even
    peak = 4 * 2**30 - free.cuts(family).evaluate(even).spare_bytes
    tight = PreparedProblem(llama(0.9 * peak / 2**30))
    table = tight.table
    assert table
    found = [
        e
        for row in rows_to_cut(tight, table, np.inf)
        for e in MemoryCuts(tight, table, row, tight.layer_spans).found(np.inf, for_sure=False)
    ]
    best = min(found, key=lambda each: each.sort_key)
    full = tight.cuts(replace(family, config=replace(family.config, recompute="full"))).evaluate(even)
    assert best.fits
    assert full.fits
    assert best.step_time_ns < full.step_time_ns
    assert {place.config.recompute for place in best.candidate.places} > {"none"}


def test_cuts_for_sure_are_within_the_memory_by_its_upper_bound_and_the_pool_keeps_them_beside_faster_ones() -> None:
    free = PreparedProblem(llama(64, LONG))
    even = free.equal_layers(4)
    assert even
    plain = free.cuts(next(each for each in free.families.all if each.config.recompute == "none")).evaluate(even)
    problem = llama(64 - plain.spare_bytes / 2**30, LONG)
    state = SearchState(problem, None)
    prepared, table = state.prepared, state.prepared.table
    assert table
    row = next(rows_to_cut(prepared, table, np.inf))
    for for_sure in (False, True):
        state.pool.offer(MemoryCuts(prepared, table, row, prepared.layer_spans).found(np.inf, for_sure=for_sure))
    sure = [each for each in state.pool.found.values() if prepared.fits_for_sure(each)]
    assert state.pool.best.fits
    assert not prepared.fits_for_sure(state.pool.best)
    assert sure


def test_layers_that_are_fixed_run_again_in_every_stage_and_nothing_else_does() -> None:
    prepared = PreparedProblem(llama(4, recompute="full", recompute_layers=1))
    graph, even = prepared.problem.profile.graph, prepared.equal_layers(4)
    assert even
    found = prepared.cuts(prepared.families.all[0]).evaluate(even)
    for stage, place in enumerate(found.candidate.places):
        row = [i for members, s in zip(prepared.atoms.members, even, strict=True) if s == stage for i in members]
        blocks = [graph.blocks[i] for i in sorted(row)]
        first = next(block for block in blocks if block)
        again = tuple(graph.operators[i].name for i in sorted(row) if graph.blocks[i] == first)
        assert place.config.recomputed_operators == again


@pytest.mark.parametrize("choice", [{"target": "torchtitan"}, {"planner": "piper"}, {"exact": True}])
def test_recompute_of_some_layers_is_refused_by_name_where_nobody_knows_it(choice: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--recompute-layers and --"):
        replace(llama(4, recompute="full", recompute_layers=1), **choice)
