"""Medians, the split of backwards and the scale, on numbers small enough to check by hand."""

import json
from dataclasses import replace

import pytest

from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.launches import Launches
from costmodel.profiling.measure.assemble import InOrder, Launched, Round, assemble

GRAPH = OperatorGraph("two", (Operator("a", "linear"), Operator("loss", "loss")), ())
SHARES = {"a": 0.25, "loss": 0.0}
MEDIANS = ((3, 70), (9, 40), (2, 10))


def test_operators_and_accumulation_are_scaled_to_the_whole_step_forward_and_backward_apart():
    rounds = [Round(120, 400, 600, InOrder(0, (50, 10), (160, 20), (5, 15)))]
    found = assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}])
    assert found.times[0].forward_ns == (100,)
    assert found.times[0].backward_input_ns == (240,)
    assert found.times[0].backward_weight_ns == (80,)
    assert found.times[1].backward_input_ns == (40,)
    assert (found.accumulate_ns, found.loss_ns, found.step_ns) == ((10, 30), 60, (520,))


def test_adding_gradients_of_inputs_is_part_of_the_step_and_of_no_parameter():
    found = assemble(GRAPH, [[Round(60, 200, 260, InOrder(10, (50, 10), (160, 20), (4, 6)))]], [SHARES])
    assert found.accumulate_ns == (4, 6)
    assert found.unscaled["coverage"] == [1.0]


def test_accumulation_is_the_median_over_rounds_and_over_sizes_of_each_parameter_by_itself():
    sizes = [[(1, 90), (3, 50), (7, 70)], [(9, 40), (9, 40), (9, 40)], [(2, 10), (2, 10), (2, 10)]]
    rounds = [[Round(60, 0, 60, InOrder(0, (50, 10), (0, 0), row)) for row in rows] for rows in sizes]
    unscaled = [[replace(r, whole_backward_ns=sum(m)) for r in row] for row, m in zip(rounds, MEDIANS, strict=True)]
    assert assemble(GRAPH, unscaled, [SHARES] * 3).accumulate_ns == (3, 40)


def test_the_unscaled_sum_and_the_attributed_share_are_kept():
    rounds = [Round(120, 400, 600, InOrder(20, (50, 10), (160, 20)))]
    found = assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}])
    assert found.unscaled == {"sum_ns": [260], "step_ns": [520], "wall_ns": [600], "coverage": [0.5]}


def test_medians_ignore_one_disturbed_round():
    quiet = Round(60, 200, 260, InOrder(20, (50, 10), (160, 20)))
    disturbed = Round(6000, 200, 9000, InOrder(20, (5000, 10), (160, 20)))
    found = assemble(GRAPH, [[quiet, disturbed, quiet]], [{"a": 0.0, "loss": 0.0}])
    assert found.times[0].forward_ns == (50,)
    assert found.step_ns == (260,)


def test_spread_is_interquartile_range_over_median():
    rounds = [Round(1, 1, 2, InOrder(0, (value, 1), (0, 0))) for value in (100, 110, 120, 130, 140)]
    found = assemble(GRAPH, [rounds], [{"a": 0.0, "loss": 0.0}])
    assert found.times[0].spread == (round(20 / 120, 4),)


def test_a_round_reads_back_from_what_a_journal_keeps():
    host, kernels = InOrder(1, (2, 3), (4, 5), (6, 7)), InOrder(0, (1, 1), (2, 2), (1, 1))
    row = Round(1, 2, 3, InOrder(4, (5, 6), (7, 8), (11, 12)), 9, 10)
    for written in (row, replace(row, launched=Launched(8, 9, host, kernels))):
        assert Round.from_list(json.loads(json.dumps(written.to_list()))) == written


def test_operators_that_sum_to_more_than_the_step_are_told_and_not_cut():
    rounds = [Round(120, 400, 600, InOrder(0, (100, 20), (500, 30)))]
    assert assemble(GRAPH, [rounds], [SHARES]).unscaled["coverage"] == [1.25]


def test_a_step_of_short_kernels_takes_its_hosts_time_and_one_of_long_ones_the_kernels():
    host, kernels = InOrder(0, (30, 30), (60, 30)), InOrder(0, (1, 1), (2, 1))
    for device, step in ((4, (64, 98)), (400, (830, 1200))):
        context = InOrder(0, (device, device), (2 * device, device))
        rounds = [Round(*step, sum(step), context, launched=Launched(60, 90, host, kernels))]
        found = assemble(GRAPH, [rounds], [SHARES])
        assert found.unscaled["coverage"][0] == pytest.approx(1, abs=0.05)
        assert (found.unscaled["kernel_ns"], found.unscaled["host_ns"]) == ([5 * device], [150])
        assert found.times[0].launches == Launches((device,), (2 * device,), (30,), (60,), (1,), (2,))


def test_host_times_with_marks_are_scaled_down_to_those_without_and_never_up():
    host, kernels = InOrder(0, (60, 60), (60, 60)), InOrder(0, (1, 1), (1, 1))
    context = InOrder(0, (4, 4), (4, 4))
    rounds = [Round(64, 400, 464, context, launched=Launched(60, 500, host, kernels))]
    launches = assemble(GRAPH, [rounds], [SHARES]).times[0].launches
    assert (launches.host_forward_ns, launches.host_backward_ns) == ((30,), (60,))
