"""Medians, the split of backwards and the scale, on numbers small enough to check by hand."""

from costmodel.graph import Operator, OperatorGraph
from costmodel.profiling.assemble import Round, assemble

GRAPH = OperatorGraph("two", (Operator("a", "linear"), Operator("loss", "loss")), ())


def test_operators_are_scaled_to_the_whole_step_forward_and_backward_apart():
    rounds = [Round(120, 400, 600, 20, (50, 10), (160, 20))]
    found = assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}])
    assert found.times[0].forward_ns == (100,)
    assert found.times[0].backward_input_ns == (240,)
    assert found.times[0].backward_weight_ns == (80,)
    assert found.times[1].backward_input_ns == (40,)
    assert (found.accumulate_ns, found.loss_ns, found.step_ns) == (40, 60, (520,))


def test_the_unscaled_sum_and_the_attributed_share_are_kept():
    rounds = [Round(120, 400, 600, 20, (50, 10), (160, 20))]
    found = assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}])
    assert found.unscaled == {"sum_ns": [260], "step_ns": [520], "wall_ns": [600], "coverage": [0.5]}


def test_medians_ignore_one_disturbed_round():
    quiet = Round(60, 200, 260, 20, (50, 10), (160, 20))
    disturbed = Round(6000, 200, 9000, 20, (5000, 10), (160, 20))
    found = assemble(GRAPH, [[quiet, disturbed, quiet]], [{"a": 0.0, "loss": 0.0}])
    assert found.times[0].forward_ns == (50,)
    assert found.step_ns == (260,)


def test_spread_is_interquartile_range_over_median():
    rounds = [Round(1, 1, 2, 0, (value, 1), (0, 0)) for value in (100, 110, 120, 130, 140)]
    found = assemble(GRAPH, [rounds], [{"a": 0.0, "loss": 0.0}])
    assert found.times[0].spread == (round(20 / 120, 4),)


def test_a_round_reads_back_from_what_a_journal_keeps():
    row = Round(1, 2, 3, 4, (5, 6), (7, 8))
    assert Round.from_list(row.to_list()) == row
