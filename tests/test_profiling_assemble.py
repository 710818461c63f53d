"""Medians, the split of backwards and the scale, on numbers small enough to check by hand."""

from dataclasses import replace

from costmodel.model.graph import Operator, OperatorGraph
from costmodel.profiling.measure.assemble import Round, assemble

GRAPH = OperatorGraph("two", (Operator("a", "linear"), Operator("loss", "loss")), ())
SHARES = {"a": 0.25, "loss": 0.0}
MEDIANS = ((3, 70), (9, 40), (2, 10))


def test_operators_and_accumulation_are_scaled_to_the_whole_step_forward_and_backward_apart():
    rounds = [Round(120, 400, 600, 0, (50, 10), (160, 20), accumulate_ns=(5, 15))]
    found = assemble(GRAPH, [rounds], [{"a": 0.25, "loss": 0.0}])
    assert found.times[0].forward_ns == (100,)
    assert found.times[0].backward_input_ns == (240,)
    assert found.times[0].backward_weight_ns == (80,)
    assert found.times[1].backward_input_ns == (40,)
    assert (found.accumulate_ns, found.loss_ns, found.step_ns) == ((10, 30), 60, (520,))


def test_adding_gradients_of_inputs_is_part_of_the_step_and_of_no_parameter():
    found = assemble(GRAPH, [[Round(60, 200, 260, 10, (50, 10), (160, 20), accumulate_ns=(4, 6))]], [SHARES])
    assert found.accumulate_ns == (4, 6)
    assert found.unscaled["coverage"] == [1.0]


def test_accumulation_is_the_median_over_rounds_and_over_sizes_of_each_parameter_by_itself():
    sizes = [[(1, 90), (3, 50), (7, 70)], [(9, 40), (9, 40), (9, 40)], [(2, 10), (2, 10), (2, 10)]]
    rounds = [[Round(60, 0, 60, 0, (50, 10), (0, 0), accumulate_ns=row) for row in rows] for rows in sizes]
    unscaled = [[replace(r, whole_backward_ns=sum(m)) for r in row] for row, m in zip(rounds, MEDIANS, strict=True)]
    assert assemble(GRAPH, unscaled, [SHARES] * 3).accumulate_ns == (3, 40)


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
    row = Round(1, 2, 3, 4, (5, 6), (7, 8), 9, 10, (11, 12))
    assert Round.from_list(row.to_list()) == row
