"""Rank orders in the search: a replica's stages stand side by side where that is faster, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

from costmodel.machines.cluster import read_cluster
from planner.plan.rank_order import PIPELINE_INSIDE, RANK_ORDER, rank_order_of
from planner.question.effort import Effort
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.loop import PortfolioSearch
from planner.search.proposers.known_shapes import FirstPlans
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import SLOW_NETWORK, described

AMONG = {"stages": 2, "data": 4, "tensor": 1, "context": 1, "zero": 0}


def problem(folder: Path, name: str, sequence: int, batch: int, **fixed: object) -> Problem:
    """Return the problem of a small model on two hosts of four devices, whose network is slow."""
    (folder / "slow.toml").write_text(SLOW_NETWORK.replace("gbs = 1.0", "gbs = 0.1"))
    effort, space = Effort(60, deterministic_limit=0.5), Space(**fixed)  # type: ignore[arg-type]
    profile = described(name, sequence=sequence)
    return Problem(profile, read_cluster(folder / "slow.toml"), 8, batch, effort=effort, target="any", space=space)


def first_plan(asked: Problem) -> tuple[int, tuple[str, ...]]:
    """Return the step of the first plan, and the order of its ranks."""
    search = PortfolioSearch(asked, None)
    FirstPlans(search.state.prepared, search.state.pool, search.state.writing, search.state.limits).first()
    places = search.state.pool.best.candidate.places
    return search.state.pool.best.step_time_ns, rank_order_of([p.config for p in places], [p.ranks for p in places])


@pytest.mark.parametrize(
    ("name", "sequence", "batch", "order"), [("gpt2", 1024, 512, PIPELINE_INSIDE), ("llama", 128, 64, RANK_ORDER)]
)
def test_what_sends_most_stands_within_hosts(
    name: str, sequence: int, batch: int, order: tuple[str, ...], tmp_path: Path
) -> None:
    """GPT-2's few weights send less than its many long sequences; the Llama's weights send more."""
    asked = tmp_path, name, sequence, batch
    step_ns, found = first_plan(problem(*asked, **AMONG))
    other = next(each for each in (PIPELINE_INSIDE, RANK_ORDER) if each != order)
    assert found == order
    other_ns, kept = first_plan(problem(*asked, **AMONG, rank_order=",".join(other)))
    assert kept == other
    assert step_ns < other_ns


def test_another_order_is_a_row_only_where_it_changes_links_and_is_estimated_to_gain(tmp_path: Path) -> None:
    prepared = PreparedProblem(problem(tmp_path, "gpt2", 1024, 512))
    table = prepared.table
    assert table is not None
    rows, inside = table.rows, table.rows.arrangement == 1
    assert inside.any()
    assert ((rows.places > 1) & (rows.ranks > rows.replica_ranks) & (rows.replica_ranks < 4))[inside].all()
    twins = np.flatnonzero(inside & np.isfinite(table.memory_bytes))
    assert len(twins)
    alone = PreparedProblem(Problem(described("gpt2"), None, 8, 64, target="any"))
    assert len(alone.families.arrangements) == 1
    assert alone.families.number == len(alone.families.all)
