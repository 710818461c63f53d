"""The executor behind the surface of a pipeline schedule: what a trainer that calls it sees, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from costmodel.errors import DoesNotMatch
from executor.adapters.executed_schedule import executed, not_executed
from planner.plan import Plan
from tests.support.ranks.executor_jobs import make_plan, whole_batch
from tests.support.ranks.rank_pool import RankPool
from tests.support.ranks.scheduled_jobs import STAGES, loss_of, trained_behind_a_schedule
from tests.support.small_plan import with_stage


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_a_stage_graph_leaves_the_gradients_of_one_process_in_each_ranks_part(
    ranks: RankPool, optimizer: str | None
) -> None:
    """Under a plan with OPT, too, which is left to the trainer; torch's norm of a part may be taken."""
    first, second = ranks.run(trained_behind_a_schedule, optimizer=optimizer)
    assert (first["held"], second["held"]) == (["head", "late", "left", "stem"], ["right"])
    for found in (first, second):
        assert found["ends"] == [True, True]
        assert max(*found["losses"], found["gradient"]) <= 2e-6, found
        assert found["norm"] > 0


@pytest.mark.parametrize(
    ("ranks", "sharing", "named"),
    [
        ([(0,), (1,), (0,)], (), ""),
        ([(0,), (1,), (0,)], (0, 2), ""),
        ([(0,), (1,), (0,)], (0, 1), "'w' is on several ranks"),
        ([(0,), (1, 2), (0,)], (), "stage 1 is on several ranks"),
        ([(0,), (0,), (0,)], (), "of one rank"),
    ],
)
def test_what_the_trainers_norm_would_count_twice_is_refused_by_name(
    ranks: list[tuple[int, ...]], sharing: tuple[int, ...], named: str
) -> None:
    plan = make_plan("two_branch", groups=STAGES, ranks=ranks)
    for stage in sharing:
        plan = with_stage(plan, stage, shared=("w",))
    why = not_executed(replace(plan, runs_on=("executor",)))
    assert named in why if named else not why
    assert "the executor does not take it" in not_executed(replace(plan, runs_on=()))


def made(module: nn.Module, plan: Plan, **changes: Any) -> Any:
    """Call the pipelining function on a model on meta, with the planned model's inputs."""
    inputs = dict(zip(("x", "late"), whole_batch("two_branch", plan).args, strict=True))
    options = {"training": SimpleNamespace(seq_len=4), "device": torch.device("cpu"), "loss_fn": loss_of, **changes}
    return executed(plan, inputs)(module.to("meta"), **options)


def test_a_model_that_is_not_the_plans_is_refused_before_any_rank_waits() -> None:
    plan = make_plan("two_branch", groups=STAGES, ranks=[(0,), (1,), (0,)])
    module = whole_batch("two_branch", plan).module
    with pytest.raises(DoesNotMatch, match="which the plan gives to a stage; configure the loss that it wraps"):
        made(module, plan, loss_fn=SimpleNamespace(set_lm_head=None))
    module.unread = nn.Parameter(torch.zeros(2))
    with pytest.raises(DoesNotMatch, match="no stage reads the parameter 'unread'"):
        made(module, plan)
    module.head = nn.Linear(12, 6)
    with pytest.raises(DoesNotMatch, match="run the plan with the model that was profiled"):
        made(module, plan)
