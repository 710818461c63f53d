"""Two implementations of one meaning: the simulator predicts, the checker works the same out by its own code."""

import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from planner.checker import check_plan
from tests.support.random_plans import random_plan

CASES = 200


def test_checker_and_simulator_agree_to_the_nanosecond_and_byte_on_random_plans() -> None:
    kinds = set()
    for seed in range(CASES):
        plan = random_plan(Random(seed))
        assert check_plan(plan) == (), seed
        kinds |= {text[1:].rstrip("0123456789<>") for order in plan.orders for text in order}
    assert {"F", "B", "I", "W", "R", "REDUCE", "OPT"} <= {kind.split("_")[0] for kind in kinds}


@pytest.mark.parametrize("seed", range(20))
def test_a_prediction_off_by_one_is_found_on_random_plans(seed: int) -> None:
    plan = random_plan(Random(seed))
    longer = replace(plan.prediction, step_time_ns=plan.prediction.step_time_ns + 1)
    found = check_plan(replace(plan, prediction=longer))
    assert {p.kind for p in found} == {"time", "search"}


def test_any_dropped_action_of_random_plans_is_found() -> None:
    for seed in range(40):
        rng = Random(seed)
        plan = random_plan(rng)
        rank = rng.choice([r for r, order in enumerate(plan.orders) if order])
        at = rng.randrange(len(plan.orders[rank]))
        order = plan.orders[rank][:at] + plan.orders[rank][at + 1 :]
        dropped = plan.orders[rank][at]
        problems = check_plan(replace(plan, orders=(*plan.orders[:rank], order, *plan.orders[rank + 1 :])))
        optional = dropped[1] == "R" and "RECV" not in dropped  # R falls into its backward, REDUCE may go
        assert problems or optional, (seed, dropped)


def test_the_checker_imports_neither_simulator_nor_search_nor_numpy() -> None:
    others = ("simulator", "planner.search", "numpy", "torch", "networkx", "ortools")
    code = f"import sys, planner.checker; print([m for m in {others} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
