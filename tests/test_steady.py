"""Steps of many micro-batches told from runs of few: equal to the whole run to the nanosecond and byte."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.stages.config import StageConfig
from planner.graph.atoms import numbered
from planner.search.family import Family
from planner.search.setting import Setting
from tests.pipelines import PIPELINES, cuts_of, pipelines
from tests.random_profiles import chain, random_profile

SCHEDULES = ("graph-1f1b", "1f1b", "eager-1f1b", "graph-eager-1f1b")


@given(st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_a_short_run_tells_the_step_the_memory_and_the_actions_of_the_whole_one(seed: int) -> None:
    rng = Random(seed)
    data = rng.choice((1, 1, 2))
    space = replace(PIPELINES, data=data)
    problem = pipelines(random_profile(rng, 9), 4 * data, data * rng.randint(40, 400), 1, space=space)
    cuts = Setting(problem).cuts(Family(StageConfig(data), 1))
    groups = None
    while groups is None:
        groups = numbered(cuts.atoms, [rng.randrange(4) for _ in range(len(cuts.atoms))])
    candidate = replace(cuts.candidate(groups, "graph-1f1b", line=rng.random() < 0.3), schedule=rng.choice(SCHEDULES))
    short, whole = cuts.evaluator.shortest(candidate), cuts.evaluator.simulate(candidate)
    assert short.step_time_ns == whole.step_time_ns
    assert short.times.peak_memory_bytes == whole.times.peak_memory_bytes
    assert short.num_actions == whole.num_actions


def test_a_settled_chain_is_run_for_few_micro_batches() -> None:
    cuts = cuts_of(pipelines(chain(6), 3, 10_000, 1))
    run = cuts.evaluator.shortest(cuts.candidate((0, 0, 1, 1, 2, 2), "1f1b", line=False))
    assert run.times.structure.schedule.num_microbatches + run.left == 10_000
    assert run.left > 9_900


def test_stages_without_backward_run_ahead_and_are_simulated_whole() -> None:
    """Their forwards follow each other faster than the slots of the others."""
    profile = chain(6)
    graph = replace(profile.graph, parameters=tuple(replace(p, trainable=False) for p in profile.graph.parameters))
    cuts = cuts_of(pipelines(replace(profile, graph=graph), 3, 400, 1))
    candidate = cuts.candidate((0, 0, 1, 1, 2, 2), "1f1b", line=False)
    assert cuts.evaluator.shortest(candidate).step_time_ns == cuts.evaluator.simulate(candidate).step_time_ns
