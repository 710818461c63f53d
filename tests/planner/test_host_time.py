"""Each end of a message takes host time from its stage's action: exact prices by small tables.

A message of b bytes takes 300 + b / 10 ns at each end, a tensor has 1000 bytes a sample, an operator works 1000 ns
forward, 1000 for its input gradient and 1000 for its weight gradient.
"""

import json

import pytest

from planner.answer.decide import plan
from planner.checker import check_plan
from planner.question.pins import read_pins
from tests.support.pipelines import cuts_of, pipelines
from tests.support.pipelines import priced as price
from tests.support.random_profiles import chain, profile_of

THREE = chain(3, host_ns=300)
SKIP = profile_of([1000] * 3, [(0, 1), (1, 2), (0, 2)], host_ns=300)


def priced(profile, line=False, microbatch_size=1):
    cuts = cuts_of(pipelines(profile, 3, 4, microbatch_size), microbatch_size)
    found = price(cuts, (0, 1, 2), line=line)
    return [(s.forward_ns, s.backward_input_ns, s.backward_weight_ns) for s in found.costs.stages]


def test_a_stage_pays_for_each_message_that_it_receives_or_sends():
    assert priced(THREE) == [(1400, 1400, 1000), (1800, 1800, 1000), (1400, 1400, 1000)]
    assert priced(THREE, microbatch_size=2) == [(2500, 2500, 2000), (3000, 3000, 2000), (2500, 2500, 2000)]


def test_a_long_skip_is_a_message_of_its_own_and_relayed_it_travels_with_another():
    assert priced(SKIP) == [(1800, 1800, 1000)] * 3
    assert priced(SKIP, line=True) == [(1400, 1400, 1000), (1900, 1900, 1000), (1500, 1500, 1000)]


def test_a_tensor_without_gradient_sends_nothing_back():
    frozen = chain(3, host_ns=300, frozen=frozenset({0}))
    assert priced(frozen) == [(1400, 0, 0), (1800, 1400, 1000), (1400, 1400, 1000)]


def test_without_measured_host_time_a_message_takes_none():
    assert priced(chain(3)) == [(1000, 1000, 1000)] * 3


def pinned(folder, profile, *stages):
    lines = []
    for operators, keys in stages:
        lines += ["[[stage]]", f"operators = {json.dumps(operators)}", *(f"{k} = {v}" for k, v in keys.items())]
    (folder / "pins.toml").write_text("\n".join(lines))
    num_devices = 1 + max(rank for _, keys in stages for rank in keys["ranks"])
    found = plan(pipelines(profile, num_devices, 4, schedule="graph-1f1b", pins=read_pins(folder / "pins.toml")))
    assert not check_plan(found, profile.graph)
    return [(stage.cost.forward_ns, stage.cost.backward_input_ns) for stage in found.stages]


def test_stages_of_one_rank_exchange_messages_for_nothing(tmp_path):
    stages = [(["op0"], {"ranks": [0]}), (["op1"], {"ranks": [0]}), (["op2"], {"ranks": [1]})]
    assert pinned(tmp_path, THREE, *stages) == [(1000, 1000), (1400, 1400), (1400, 1400)]


def test_an_action_pays_for_its_own_messages_where_replicas_share_a_rank(tmp_path):
    stages = [(["op0", "op1"], {"ranks": [0]}), (["op2"], {"ranks": [0, 1]})]
    odd = ((2000, 2400, 2000, 2400), (1000, 1400, 1000, 1400))
    assert pinned(tmp_path, THREE, *stages) == [(odd[0], odd[0]), (odd[1], odd[1])]


def test_an_action_of_two_microbatches_sends_one_message_to_each_action_that_reads_it(tmp_path):
    stages = [(["op0"], {"ranks": [0], "microbatch_multiple": 2}), (["op1", "op2"], {"ranks": [1]})]
    assert pinned(tmp_path, THREE, *stages) == [(2800, 2800), (2400, 2400)]
    stages = [(["op0"], {"ranks": [0], "microbatch_multiple": 2}),
              (["op1", "op2"], {"ranks": [1], "microbatch_multiple": 2})]  # fmt: skip
    assert pinned(tmp_path, THREE, *stages) == [(2500, 2500), (4500, 4500)]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_forward_that_runs_again_receives_and_sends_nothing(tmp_path, recompute):
    config = f'{{recompute = "{recompute}"}}'
    (tmp_path / "pins.toml").write_text(
        f'[[stage]]\noperators = ["op0"]\nranks = [0]\nconfig = {config}\n[[stage]]\noperators = ["op1", "op2"]\n'
        "ranks = [1]\n"
    )
    found = plan(pipelines(THREE, 2, 4, pins=read_pins(tmp_path / "pins.toml")))
    assert (found.stages[0].cost.forward_ns, found.stages[0].cost.recompute_ns) == (
        1400,
        1000 if recompute == "full" else 0,
    )
