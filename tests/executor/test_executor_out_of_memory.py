"""Memory that does not suffice in a run explains itself: rank, action, term, planned and held, and what helps."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from costmodel.capture.batches import split_batch
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.errors import OutOfMemory
from executor.observe.out_of_memory import explaining_out_of_memory
from planner.plan import Plan, write_plan
from planner.plan.lighter import lighter_plans
from simulator.actions import parse_action
from tests.properties.executor_promises import Ranks, penstock_exit
from tests.support.plans_by_hand import plan_by_hand
from tests.support.ranks.executor_jobs import make_plan
from tests.support.ranks.starved_ranks import STARVED, starved

MODEL = "tests.support.ranks.starved_ranks:broad"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_rank_that_the_system_refuses_memory_says_what_and_all_ranks_end_alike_with_6(tmp_path):
    source = capture(split_batch(load_model(MODEL, 4), 0, 2))
    groups = [source.operators[:1], source.operators[1:]]
    path = tmp_path / "plan.json"
    write_plan(path, plan_by_hand(source, groups, num_microbatches=2, microbatch_size=2, optimizer="adam"))
    found = Ranks(tmp_path, 2, path, "--model", MODEL, "--steps", 1, command=starved).finish()
    assert [code for code, _, _ in found] == [6, 6], found
    assert [penstock_exit(err) for _, _, err in found] == [[6], [6]]
    words = rf"rank {STARVED} ran out of memory at 1F0 \(stage 1, micro-batch 0\), for activations: 64.0 MiB more"
    assert all(re.search(words, err) for _, _, err in found), found
    assert "parameters 0.0 MiB and 0.0 MiB" in found[STARVED][2]
    assert "--microbatch-size 1" in found[STARVED][2]
    assert "Traceback" not in found[STARVED][2]


def _explained(plan: Plan, rank: int, action: str) -> str:
    with (
        pytest.raises(OutOfMemory) as found,
        explaining_out_of_memory(plan, rank, torch.device("cpu"), lambda: parse_action(action), dict),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has")
    return str(found.value)


def test_what_is_planned_is_what_the_ranks_order_holds_at_that_action():
    plan = make_plan("two_branch", num_stages=2, optimizer="adam")
    one = plan.stages[0].cost.activation_bytes / 2**20
    assert f"activations {one:,.1f} MiB" in _explained(plan, 0, "0F0")
    assert f"activations {2 * one:,.1f} MiB" in _explained(plan, 0, "0F1")
    assert "1,536.0 MiB more were asked for" in _explained(plan, 0, "0F1")


def test_an_error_that_is_none_of_memory_stays_what_it_is():
    plan = make_plan("two_branch", num_stages=2)
    with (
        pytest.raises(RuntimeError, match="shapes differ"),
        explaining_out_of_memory(plan, 0, torch.device("cpu")),
    ):
        raise RuntimeError("shapes differ")


def test_a_lighter_plan_changes_one_choice_and_says_what_it_frees():
    plan = make_plan("two_branch", configs=[{"data": 2}] * 2, num_stages=2, ranks=[(0, 1), (2, 3)], optimizer="adam")
    terms = (("parameters", 100), ("gradients", 100), ("optimizer", 200))
    stages = tuple(replace(s, cost=replace(s.cost, memory_terms=terms, static_bytes=400)) for s in plan.stages)
    found = lighter_plans(replace(plan, stages=stages), 0, 1000)
    command = "penstock plan PROFILE --devices 4 --batch 8 --microbatch-size"
    assert {change.command: (change.freed_bytes, change.term) for change in found} == {
        f"{command} 1": (500, "activations"),
        f"{command} 2 --zero 1": (100, "optimizer"),
        f"{command} 2 --zero 2": (150, "optimizer and gradients"),
        f"{command} 2 --zero 3": (200, "optimizer and gradients and parameters"),
        f"{command} 2 --recompute full": (1000 - plan.stages[0].cost.activation_bytes, "activations"),
    }
    assert [change.freed_bytes for change in found] == sorted((change.freed_bytes for change in found), reverse=True)
