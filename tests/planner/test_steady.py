"""Steps of many micro-batches told from runs of few: equal to the whole run to the nanosecond and byte."""

from dataclasses import replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.candidate.candidate import Candidate
from planner.candidate.steady import regime
from planner.graph.atoms import numbered
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.prepared import PreparedProblem
from simulator.engine import Structure, Times
from simulator.lowering import close_step
from simulator.schedules import build_schedule
from simulator.transformations import with_recompute
from tests.support.pipelines import PIPELINES, cuts_of, pipelines
from tests.support.random_profiles import chain, random_profile

SCHEDULES = ("graph-1f1b", "1f1b", "eager-1f1b", "graph-eager-1f1b")
MOST_RUNS = 100
"""Random pipelines whose runs are compared."""


@given(st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_a_short_run_tells_the_step_the_memory_and_the_actions_of_the_whole_one(seed: int) -> None:
    rng = Random(seed)
    data = rng.choice((1, 1, 2))
    space = replace(PIPELINES, data=data)
    problem = pipelines(random_profile(rng, 9), 4 * data, data * rng.randint(40, 400), 1, space=space)
    cuts = PreparedProblem(problem).cuts(Family(StageConfig(data), 1))
    groups = None
    while groups is None:
        groups = numbered(cuts.atoms, [rng.randrange(4) for _ in range(len(cuts.atoms))])
    candidate = replace(cuts.candidate(groups, "graph-1f1b", line=rng.random() < 0.3), schedule=rng.choice(SCHEDULES))
    assert_told_alike(cuts, candidate)


def assert_told_alike(cuts: FamilyPartitions, candidate: Candidate) -> None:
    short, whole = cuts.evaluator.shortest(candidate), cuts.evaluator.simulate(candidate)
    assert short.step_time_ns == whole.step_time_ns
    assert short.times.peak_memory_bytes == whole.times.peak_memory_bytes
    assert short.num_actions == whole.num_actions


@given(st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_a_short_run_of_interleaved_stages_tells_the_same_as_the_whole_one(seed: int) -> None:
    rng = Random(seed)
    data, places, chunks = rng.choice((1, 1, 2)), rng.randint(1, 4), rng.randint(2, 3)
    recompute, optimizer = rng.choice(("none", "full")), rng.choice(("none", "adam"))
    space = replace(PIPELINES, data=data, chunks=chunks, recompute=recompute)
    batch = data * (places * rng.randint(3, 30) + rng.choice((0, 0, 0, 1)))
    profile = random_profile(rng, 16)
    problem = pipelines(profile, places * data, batch, 1, space=space, optimizer=optimizer)
    cuts = PreparedProblem(problem).cuts(Family(StageConfig(data, recompute=recompute), 1, chunks))
    stages = range(places * chunks)
    assume(len(cuts.atoms) >= len(stages))
    partition = sorted([*stages, *rng.choices(stages, k=len(cuts.atoms) - len(stages))])
    assert_told_alike(cuts, cuts.candidate(tuple(partition), "interleaved-1f1b", line=True))


@given(st.integers(0, 1 << 40))
@settings(max_examples=MOST_RUNS, deadline=None)
def test_a_run_at_its_pace_tells_the_step_and_the_memory_of_every_longer_one(seed: int) -> None:
    """Also where latencies are longer than actions, all stages are nearly equal, or messages skip stages."""
    rng = Random(seed)
    ranks, chunks = rng.randint(1, 6), rng.randint(1, 3)
    name = "interleaved-1f1b" if chunks > 1 else rng.choice(SCHEDULES)
    costs = random_pipeline(rng, ranks, chunks)
    again = [stage for stage, cost in enumerate(costs.stages) if cost.recompute_ns and rng.random() < 0.7]
    reduces, optimizer = [rng.random() < 0.5 for _ in costs.stages], rng.random() < 0.7

    def run(count: int) -> Times:
        schedule = with_recompute(build_schedule(name, costs, count), again)
        return Structure(close_step(schedule, reduces, optimizer)).times(costs)

    count = ranks * rng.randint(2, 6)
    short = run(count)
    found = regime(short, ranks if chunks > 1 else 1)
    assume(found)
    assert found is not None
    for periods in (1, 2, 4):
        longer = run(count + periods * found.microbatches)
        assert longer.step_time_ns == short.step_time_ns + periods * found.time_ns
        assert longer.peak_memory_bytes == short.peak_memory_bytes


def random_pipeline(rng: Random, ranks: int, chunks: int) -> Costs:
    """Return the costs of stages in a loop: all alike, nearly so, or not at all."""
    base = rng.randint(50, 1000)
    low, high = rng.choice(((base, base), (base, base + base // 20), (0, 2 * base)))
    stages = tuple(
        StageCost(
            rng.randint(low, high),
            rng.randint(low, high),
            rng.randint(low, high),
            recompute_ns=rng.choice((0, rng.randint(low, high))),
            activation_bytes=rng.randint(0, 50),
            static_bytes=rng.randint(0, 9),
            reduce_ns=rng.choice((0, rng.randint(0, 3000))),
            optimizer_ns=rng.randint(0, 500),
        )
        for _ in range(ranks * chunks)
    )
    latency = rng.choice((0, base // 10, 2 * base, 8 * base))
    ends = {(stage, stage + 1) for stage in range(len(stages) - 1)}
    for _ in range(rng.randrange(3) if len(stages) > 2 else 0):
        source, target = sorted(rng.sample(range(len(stages)), 2))
        ends.add((source, target))
    edges = (
        EdgeCost(*pair, rng.randint(latency, latency + latency // 4), rng.choice((0, 3, 40))) for pair in sorted(ends)
    )
    return Costs(stages, tuple(edges), tuple((stage % ranks,) for stage in range(len(stages))))


def test_interleaved_stages_that_are_alike_are_run_for_few_micro_batches() -> None:
    cuts = PreparedProblem(pipelines(chain(8), 4, 4_000, 1, space=replace(PIPELINES, chunks=2))).cuts(
        Family(StageConfig(), 1, 2)
    )
    run = cuts.evaluator.shortest(cuts.candidate(tuple(range(8)), "interleaved-1f1b", line=True))
    assert run.times.structure.schedule.num_microbatches + run.left == 4_000
    assert run.left >= 3_900


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
