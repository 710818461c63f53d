"""The table of families: one piece of each kind stands for the model, even stages, estimates, and what comes first."""

import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.machines.cluster import read_cluster
from costmodel.stages.config import RECOMPUTE, StageConfig
from costmodel.stages.strategies import StrategyModel
from costmodel.stages.strategies.quotient import quotient_of
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.budget import SPARE_S
from planner.search.loop import PortfolioSearch
from planner.search.proposers import known_shapes
from planner.search.proposers.known_shapes import FirstPlans
from planner.search.space.even_stages import even_stages
from planner.search.space.family_work import Families
from planner.search.space.replica_prices import ReplicaPrices
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import SLOW_NETWORK, described
from tests.support.random_profiles import random_profile

CONFIGS = (
    StageConfig(),
    StageConfig(1, 2, 2),
    StageConfig(1, 2, 1),
    StageConfig(4, 1, 1, 1, 4),
    *(StageConfig(recompute=name) for name in RECOMPUTE),
)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("config", CONFIGS)
def test_sums_over_one_piece_of_each_kind_are_those_of_the_whole_model(name: str, config: StageConfig) -> None:
    profile = described(name)
    problem = Problem(profile, None, 8, 64)
    small = quotient_of(profile)
    whole = problem.stage_model(problem.machines.device_of(0), 1)
    piece = StrategyModel(small.profile, problem.machines, 1, problem.training)
    if config.expert > 1 and name != "mixtral":
        config = StageConfig(4)
    ranks = tuple(range(config.data * config.tensor))
    of_whole, of_piece = (model.action_amounts(config, ranks) for model in (whole, piece))
    for own, each in zip(of_whole, of_piece, strict=True):
        assert sum(own) == sum(each[i] for i in small.standing_for)
    held, held_of_piece = (model.held_amounts(config, ranks) for model in (whole, piece))
    assert sum(held.kept) == sum(held_of_piece.kept[i] for i in small.standing_for)
    for kind in range(2):
        assert sum(held.weights[kind]) == sum(held_of_piece.weights[kind][i] for i in small.standing_for)
    assert held.remade_peak == held_of_piece.remade_peak
    assert held.largest_unit == held_of_piece.largest_unit
    assert held.workspace == held_of_piece.workspace
    assert len(small.profile.graph.operators) < len(profile.graph.operators)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_largest_of_even_stages_is_the_least_that_a_line_admits(seed: int) -> None:
    """Against dynamic programming over all cuts, within what the bisection leaves; places may be faster than others."""
    rng = np.random.default_rng(seed)
    works = rng.integers(1, 50, (3, rng.integers(1, 9))).astype(float)
    numbers = rng.integers(1, 6, 3)
    speeds = rng.choice([1.0, 1.0, 2.0], (3, int(numbers.max())))
    begins = even_stages(works, numbers, speeds)
    for row, number in enumerate(numbers.tolist()):
        ends = begins[row, : number + 1].tolist()
        assert ends[0] == 0
        assert ends[-1] == works.shape[1]
        assert ends == sorted(ends)
        prefix = np.concatenate([[0.0], np.cumsum(works[row])])
        loads = np.diff(prefix[ends]) / speeds[row, :number]
        assert loads.max() <= _least_largest(prefix, speeds[row, :number]) + works[row].max() / 250


def _least_largest(prefix: np.ndarray, speeds: np.ndarray) -> float:
    count = len(prefix) - 1
    least = np.full(count + 1, np.inf)
    least[count] = 0.0
    for speed in speeds[::-1]:
        least = np.array(
            [min(max((prefix[j] - prefix[i]) / speed, least[j]) for j in range(i, count + 1)) for i in range(count + 1)]
        )
    return float(least[0])


@pytest.mark.parametrize(("name", "devices"), [("llama", 8), ("mixtral", 8), ("gpt2", 4)])
def test_estimates_order_families_as_the_simulator_does(name: str, devices: int) -> None:
    """Rank correlation of steps, and memory, over all rows of the small table that have an even cut."""
    prepared = PreparedProblem(Problem(described(name, sequence=1024), None, devices, 64))
    table = prepared.small_table
    assert table is not None
    estimated, simulated, held, peaks = [], [], [], []
    for row in range(0, len(table), max(1, len(table) // 150)):
        partition, cuts = table.partition(row), prepared.cuts(table.family(row))
        for each in cuts.evaluate_under(partition, cuts.schedules[:1]) if partition else ():
            run = cuts.evaluator.simulate(each.candidate)
            estimated.append(table.step_ns[row])
            simulated.append(each.step_time_ns)
            held.append(table.memory_bytes[row])
            peaks.append(max(run.times.peak_memory_bytes))
    assert len(simulated) > 50
    assert _rank_correlation(estimated, simulated) > 0.93
    assert _rank_correlation(held, peaks) > 0.93
    ratio = np.array(estimated) / np.array(simulated)
    assert 0.8 < np.median(ratio) < 1.2


def _rank_correlation(first: list[float], second: list[float]) -> float:
    ranks = [np.argsort(np.argsort(row)) for row in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


FEW = Space(chunks=1, context=1, recompute="none", offload="none")
"""What the best plans of these models are in, and a search is through with in some seconds."""


def test_first_plans_need_no_compiled_kernels_and_are_near_what_a_search_finds() -> None:
    """Known shapes, the best of the table and other cuts of these, within a tenth of counted work's answer."""
    for name in ("llama", "mixtral"):
        profile = described(name, sequence=1024)
        problem = Problem(profile, None, 8, 64, effort=Effort(60, deterministic_limit=0.0), space=FEW)
        search = PortfolioSearch(problem, None)
        first = FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits)
        first.first()
        found_ns = search.state.pool.best.step_time_ns
        assert search.state.pool.best.fits
        assert found_ns <= 1.10 * PortfolioSearch(problem, None).run().pool.best.step_time_ns


def test_messages_between_places_take_the_link_that_joins_them(tmp_path: Path) -> None:
    """Four places of two devices on two hosts: two hops within a host, one across, and one back where they loop."""
    (tmp_path / "cluster.toml").write_text(SLOW_NETWORK)
    machines = read_cluster(tmp_path / "cluster.toml")
    prepared = PreparedProblem(Problem(described("llama", sequence=1024), machines, 8, 64))
    table = prepared.small_table
    assert table is not None
    rows = table.rows
    prices = ReplicaPrices(prepared.problem, prepared.problem.stage_model(machines.device_of(0), 1), rows,
                           prepared.families.rank_orders)  # fmt: skip
    size = 1 << 20
    slowest, along = prices.messages_ns(np.full(len(rows), float(size)))
    inner, outer = machines.p2p_ns(0, 2, size), machines.p2p_ns(2, 4, size)
    usual = rows.arrangement == 0
    four = (rows.places == 4) & (rows.ranks == 2) & usual
    assert four.any()
    assert np.allclose(slowest[four], outer, rtol=1e-3)
    assert np.allclose(along[four], 2 * inner + outer, rtol=1e-3)
    assert (slowest[rows.places == 1] == 0).all()
    two = (rows.places == 2) & (rows.ranks == 2) & usual
    assert np.allclose(slowest[two], inner, rtol=1e-3)


def test_a_first_plan_behind_a_slow_network_hides_its_messages(tmp_path: Path) -> None:
    """Where messages take as long as compute, more in flight hides them: within a tenth of a search's answer."""
    (tmp_path / "cluster.toml").write_text(SLOW_NETWORK)
    machines = read_cluster(tmp_path / "cluster.toml")
    effort = Effort(60, deterministic_limit=0.0)
    problem = Problem(described("llama", sequence=1024), machines, 8, 64, effort=effort, space=FEW)
    search = PortfolioSearch(problem, None)
    FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits).first()
    found_ns = search.state.pool.best.step_time_ns
    assert found_ns <= 1.10 * PortfolioSearch(problem, None).run().pool.best.step_time_ns


def test_what_the_first_plan_does_not_wait_for_is_tried_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(described("mixtral", sequence=1024), None, 8, 64, effort=Effort(60, deterministic_limit=0.5))
    bests = []
    for work in (known_shapes.FIRST_WORK, 1):
        monkeypatch.setattr(known_shapes, "FIRST_WORK", work)
        search = PortfolioSearch(problem, None)
        first = FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits)
        first.first()
        assert search.state.pool.best.fits
        first.more()
        bests.append(search.state.pool.best.step_time_ns)
    assert bests[1] <= bests[0]


def test_a_longer_limit_tries_the_rows_of_a_shorter_one() -> None:
    """Long plans that a short limit leaves no time to write do not take the place of short ones."""
    tried = []
    for limit_s in (1.0, 60.0):
        problem = Problem(described("llama"), None, 8, 1024, effort=Effort(limit_s))
        search = PortfolioSearch(problem, None)
        first = FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits)
        table = search.state.prepared.small_table
        assert table is not None
        tried.append(set(first._some(table, range(len(table)), 5)))
    assert tried[0] < tried[1]


def test_without_any_time_left_on_a_busy_machine_the_same_short_rows_are_tried() -> None:
    """A process that waits has, for all that it knows, a part of a core, and so less than the spare time."""
    search = PortfolioSearch(Problem(described("llama"), None, 4, 32, effort=Effort(0.0)), None)
    first = FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits)
    table = search.state.prepared.small_table
    assert table is not None
    quiet = list(first._some(table, range(len(table)), 5))
    time.sleep(0.2)
    assert search.state.writing.most_s < SPARE_S
    assert quiet
    assert quiet == list(first._some(table, range(len(table)), 5))


def test_a_table_counts_actions_as_a_cut_does() -> None:
    """One formula for all rows at once, the other for one cut."""
    prepared = PreparedProblem(Problem(described("llama"), None, 8, 64))
    table = prepared.small_table
    assert table is not None
    for row in range(0, len(table), 7):
        cuts = prepared.cuts(table.family(row))
        assert table.num_actions[row] == cuts.about_actions(int(table.rows.places[row]))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_a_space_counts_its_families_without_listing_them(seed: int) -> None:
    rng = Random(seed)
    problem = Problem(random_profile(rng, rng.randint(2, 8)), None, rng.choice([1, 2, 4, 6]), rng.choice([4, 8, 12]))
    families = Families(problem)
    assert families.number == len(families.all) == len(set(families.all))


def test_stages_a_place_are_those_that_divide_the_layers() -> None:
    """Published layouts have 5, 6, 7, 8, 10, 12 and 20 stages a place."""
    profile = described("llama")
    families = Families(Problem(profile, None, 8, 64, target="any"))
    layers = families.num_layers
    found = families.chunks_of(2)
    assert all(v in found for v in range(2, layers // 2 + 1) if layers % (2 * v) == 0)
    assert max(found) * 2 <= layers + 1
    fixed = Families(Problem(profile, None, 8, 64, target="any", space=Space(chunks=5)))
    assert fixed.chunks_of(2) == (5,)
