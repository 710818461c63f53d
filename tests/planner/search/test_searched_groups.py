"""Shard groups in the search: replicas of one host divide states where that is faster, by default and as fixed."""

from pathlib import Path

import pytest

from costmodel.errors import UsageError
from costmodel.machines.cluster import read_cluster
from costmodel.stages.config import StageConfig
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.loop import PortfolioSearch
from planner.search.proposers.known_shapes import FirstPlans
from planner.search.space.family import FamilySpace
from tests.support.described_models import SLOW_NETWORK, described


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow.toml").write_text(SLOW_NETWORK)
    return tmp_path / "slow.toml"


def problem(slow: Path, **fixed: object) -> Problem:
    effort, space = Effort(60, deterministic_limit=0.5), Space(**fixed)  # type: ignore[arg-type]
    return Problem(described("llama"), read_cluster(slow), 8, 64, effort=effort, target="any", space=space)


def first_plan(slow: Path, **fixed: object) -> tuple[int, StageConfig]:
    search = PortfolioSearch(problem(slow, **fixed), None)
    FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits).first()
    best = search.state.pool.best
    return best.step_time_ns, best.candidate.places[0].config


def test_the_first_plan_divides_parameters_within_hosts_behind_a_slow_network(slow: Path) -> None:
    among = {"stages": 1, "tensor": 1, "context": 1, "data": 8, "zero": 3}
    found_ns, config = first_plan(slow, **among)
    assert config.shard_group == 4
    assert found_ns == first_plan(slow, **among, shard_group=4)[0]
    assert found_ns < first_plan(slow, **among, shard_group=8)[0]


def test_groups_are_all_replicas_or_a_hosts_share_or_what_is_fixed(slow: Path) -> None:
    space, fixed = FamilySpace(problem(slow)), FamilySpace(problem(slow, shard_group=2))
    assert space.shard_groups(StageConfig(data=8)) == (0, 4)
    assert space.shard_groups(StageConfig(data=4, tensor=2)) == (0, 2)
    assert space.shard_groups(StageConfig(data=4)) == (0,)
    assert fixed.shard_groups(StageConfig(data=8)) == (2,)
    assert not fixed.shard_groups(StageConfig(data=1))
    assert {config.zero for config in fixed.choices} == {1, 2, 3}
    assert space.number == len(space.all)


@pytest.mark.parametrize("fixed", [{"zero": 0}, {"data": 2}, {}])
def test_groups_that_divide_nothing_are_refused(slow: Path, fixed: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="give a divisor of --data above 1, with --zero 1, 2 or 3"):
        problem(slow, shard_group=4 if fixed else 1, **fixed)
