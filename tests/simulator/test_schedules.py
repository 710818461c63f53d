"""The schedules of the catalogue: exact orders, what they do on stage graphs, and what they refuse."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.errors import InvalidInput, NoPlanFits, UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.engine import Structure
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.schedules import SCHEDULES, build_schedule
from simulator.schedules.warmup import graph_in_flight
from simulator.uniform import share_bytes, split_evenly, uniform_costs
from simulator.validation import validate_schedule
from tests.support.random_stage_graphs import random_costs

UNIT = StageCost(1, 1, 1)
CHAIN_SCHEDULES = [name for name, kind in SCHEDULES.items() if kind.placement != "graph"]


def text(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, order)) for order in schedule.orders]


def unit_graph(num_stages: int, *edges: tuple[int, int], **changes: object) -> Costs:
    ends = tuple(EdgeCost(*pair) for pair in edges)
    return Costs((UNIT,) * num_stages, ends, **changes)  # type: ignore[arg-type]


ORDERS = {
    "gpipe": ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"],
    "1f1b": ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"],
    "eager-1f1b": ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"],
    "zb-h1": ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"],
    "zb-h2": ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"],
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_two_ranks_and_three_micro_batches(name: str) -> None:
    assert text(build_schedule(name, uniform_costs(2, 1, 1, 1, 1), 3)) == ORDERS[name]


def test_interleaved_takes_groups_of_p_through_chunk_after_chunk() -> None:
    assert text(build_schedule("interleaved-1f1b", uniform_costs(2, 2, 2, 2, 2), 4)) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_looped_bfs_takes_all_micro_batches_through_chunk_after_chunk_and_back() -> None:
    assert text(build_schedule("looped-bfs", uniform_costs(2, 2, 2, 2, 2), 2)) == [
        "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0",
        "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0",
    ]


@pytest.mark.parametrize(
    ("m", "group_size", "first_group"), [(7, None, 7), (8, None, 4), (9, None, 5), (12, 8, 8), (3, None, 3), (4, 9, 4)]
)
def test_micro_batches_left_over_form_a_group_if_they_are_enough_for_every_rank(
    m: int, group_size: int | None, first_group: int
) -> None:
    schedule = build_schedule("interleaved-1f1b", uniform_costs(4, 2, 2, 2, 2), m, group_size=group_size)
    assert [str(a) for a in schedule.orders[0][: first_group + 1]] == [f"0F{k}" for k in range(first_group)] + ["4F0"]
    assert validate_schedule(schedule) == ()


def test_a_group_smaller_than_the_number_of_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="take groups of 4 or more"):
        build_schedule("interleaved-1f1b", uniform_costs(4, 2, 2, 2, 2), 8, group_size=3)


def test_two_branches_of_four_stages_take_60_units_as_a_graph_and_69_as_a_chain() -> None:
    costs = unit_graph(8, (0, 1), (1, 2), (2, 3), (3, 7), (4, 5), (5, 6), (6, 7))
    steps = {
        name: Structure(build_schedule(name, costs, 16)).times(costs).step_time_ns for name in ("graph-1f1b", "1f1b")
    }
    chain = replace(costs, edges=tuple(chain_edges(8)))
    assert steps["graph-1f1b"] == 60
    assert Structure(build_schedule("1f1b", chain, 16)).times(chain).step_time_ns == 69
    assert graph_in_flight(costs, stage_graph(costs), 16, latency=False) == (5, 4, 3, 2, 4, 3, 2, 1)


@pytest.mark.parametrize(("sizes", "samples"), [((4, 4, 4), 12), ((2, 2, 4), 10), ((1, 2, 4), 10)])
def test_smaller_micro_batches_on_early_stages_bring_12_samples_in_flight_down_to_10(
    sizes: tuple[int, ...], samples: int
) -> None:
    # GraphPipe (ASPLOS 2025), figure 5: per-stage micro-batch sizes; a sample keeps 2 bytes.
    stages = tuple(StageCost(b, b, b, activation_bytes=2 * b, weight_activation_bytes=b) for b in sizes)
    costs = Costs(stages, tuple(chain_edges(3)), multiples=sizes)
    times = Structure(build_schedule("graph-kfkb", costs, 32)).times(costs)
    assert times.peak_memory_bytes[0] == 2 * samples
    assert times.step_time_ns == (120 if sizes == (4, 4, 4) else 114)


@pytest.mark.parametrize("seed", range(12))
def test_numbers_in_flight_that_are_sought_beat_those_of_rules_within_the_memory_limit(seed: int) -> None:
    costs = random_costs(Random(seed), 8)
    named = [Structure(build_schedule(name, costs, 8)).times(costs) for name in ("graph-1f1b", "graph-eager-1f1b")]
    free = Structure(build_schedule("graph-auto", costs, 8)).times(costs)
    assert free.step_time_ns <= min(times.step_time_ns for times in named)
    limit = max(named[0].peak_memory_bytes)
    within = Structure(build_schedule("graph-auto", costs, 8, memory_limit_bytes=limit)).times(costs)
    assert max(within.peak_memory_bytes) <= limit
    assert within.step_time_ns <= named[0].step_time_ns


def test_too_few_in_flight_are_raised_and_too_little_memory_is_refused() -> None:
    costs = unit_graph(3, (0, 1), (1, 2))
    assert text(build_schedule("graph-auto", costs, 3, in_flight=(1, 1, 1))) == text(
        build_schedule("graph-1f1b", costs, 3)
    )
    held = replace(costs, stages=(replace(UNIT, activation_bytes=4, weight_activation_bytes=4),) * 3)
    with pytest.raises(NoPlanFits, match="raise --memory-limit"):
        build_schedule("graph-auto", held, 3, memory_limit_bytes=3)


def test_each_slow_edge_adds_a_round_trip_over_the_period_to_the_warm_up() -> None:
    stages = (StageCost(10, 10, 10),) * 3
    for p2p_ns, expected in ((0, (3, 2, 1)), (15, (5, 3, 1)), (16, (7, 4, 1))):
        costs = Costs(stages, tuple(chain_edges(3, p2p_ns)))
        assert graph_in_flight(costs, stage_graph(costs), 8, latency=True) == expected
    same_rank = Costs(stages, tuple(chain_edges(3, 15)), ((0,), (0,), (1,)))
    assert graph_in_flight(same_rank, stage_graph(same_rank), 8, latency=True) == (4, 3, 1)


def test_replicas_keep_their_part_of_what_a_stage_keeps_in_flight() -> None:
    costs = unit_graph(2, (0, 1), ranks=((0, 1), (2,)))
    assert text(build_schedule("graph-1f1b", costs, 6)) == [
        "0F0 0F2 0B0 0F4 0B2 0B4",
        "0F1 0F3 0B1 0F5 0B3 0B5",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5",
    ]


def test_a_rank_with_several_stages_takes_a_ready_backward_first_then_its_highest_stage() -> None:
    costs = unit_graph(3, (0, 1), (1, 2), ranks=((0,), (1,), (0,)))
    # 2B0 before 2F1, 2F1 before 0F2; rank 1 has one stage and keeps its fixed order, so 1B1 waits for 0F2.
    assert (
        text(build_schedule("graph-1f1b", costs, 4))[0]
        == "0F0 0F1 2F0 2B0 2F1 2B1 0B0 0F2 0F3 2F2 2B2 0B1 0B2 2F3 2B3 0B3"
    )


def test_a_stage_without_gradient_runs_its_forwards_alone() -> None:
    costs = Costs((replace(UNIT, backward=False), UNIT, UNIT), tuple(chain_edges(3)))
    for name in ("gpipe", "1f1b", "zb-h1", "zb-auto", "graph-1f1b"):
        schedule = build_schedule(name, costs, 3)
        assert text(schedule)[0] == "0F0 0F1 0F2"
        assert validate_schedule(schedule) == ()


def test_a_chain_schedule_takes_the_stages_of_a_graph_in_index_order() -> None:
    costs = unit_graph(4, (0, 3), (1, 3), (2, 3))
    chain = unit_graph(4, (0, 1), (1, 2), (2, 3))
    for name in ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"):
        assert text(build_schedule(name, costs, 5)) == text(build_schedule(name, chain, 5))


def test_every_schedule_of_random_stage_graphs_is_legal_and_never_waits_on_itself() -> None:
    num_built = dict.fromkeys(SCHEDULES, 0)
    for seed in range(150):
        rng = Random(seed)
        num_microbatches = rng.choice((1, 2, 3, 4, 6, 12))
        costs = random_costs(rng, num_microbatches, one_stage_a_rank=seed % 3 == 0)
        for name in SCHEDULES:
            if SCHEDULES[name].synthesis:
                continue
            try:
                schedule = build_schedule(name, costs, num_microbatches)
            except UsageError:
                assert name in CHAIN_SCHEDULES
                continue
            assert validate_schedule(schedule) == (), f"{name}, seed {seed}"
            num_built[name] += 1
    assert num_built["graph-1f1b"] == num_built["graph-kfkb"] == 150
    anywhere = [name for name, kind in SCHEDULES.items() if kind.placement != "wave" and kind.placement != "two-way"]
    assert min(num_built[name] for name in anywhere if not SCHEDULES[name].synthesis) > 20


@pytest.mark.parametrize(
    ("name", "costs", "message"),
    [
        ("2f2b", unit_graph(1), "there are gpipe"),
        ("1f1b", unit_graph(2, ranks=((0,), (0,))), "one stage a rank, and rank 0 has the stages"),
        ("looped-bfs", unit_graph(4, ranks=((0,), (1,), (1,), (0,))), "stage 2 is on rank"),
        ("interleaved-1f1b", unit_graph(3, ranks=((0,), (1,), (0,))), "3 stages do not divide into 2"),
        ("looped-bfs", unit_graph(2, multiples=(1, 2)), "take graph-1f1b"),
        ("zb-auto", unit_graph(2, ranks=((0, 1), (2,))), "without replicas"),
    ],
)
def test_a_placement_that_a_schedule_does_not_run_on_is_refused_with_a_way_out(
    name: str, costs: Costs, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build_schedule(name, costs, 4)


def test_a_multiple_must_divide_the_micro_batches() -> None:
    with pytest.raises(InvalidInput, match="does not divide 5"):
        build_schedule("graph-kfkb", unit_graph(2, (0, 1), multiples=(1, 2)), 5)


def test_a_chunk_takes_its_part_of_the_time_by_largest_remainder_in_chunk_order() -> None:
    costs = uniform_costs(2, 3, 11, 7, 3, 5)
    assert [s.forward_ns for s in costs.stages] == [4, 4, 4, 4, 3, 3]
    assert [s.backward_input_ns for s in costs.stages] == [3, 3, 2, 2, 2, 2]
    assert [s.backward_weight_ns for s in costs.stages] == [1] * 6
    assert costs.ranks == ((0,), (1,), (0,), (1,), (0,), (1,))
    assert {e.p2p_ns for e in costs.edges} == {5}
    assert split_evenly(2, 5) == (1, 1, 0, 0, 0)


def test_an_activation_share_is_the_least_number_of_bytes_that_splits_exactly() -> None:
    assert (share_bytes(1, 0.5), share_bytes(3, 0.5), share_bytes(1, 0.4324), share_bytes(2, 1)) == (2, 6, 2500, 2)
    stage = uniform_costs(2, 3, 1, 1, 1, w_memory_fraction=0.4324).stages[0]
    assert (stage.activation_bytes, stage.weight_activation_bytes) == (2500, 1081)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "0 ranks"),
        ({"forward_ns": -1}, "times are 0 or more"),
        ({"w_memory_fraction": 1.5}, "between 0 and 1"),
        ({"w_memory_fraction": "half"}, "give a number"),
    ],
)
def test_uniform_costs_refuse_what_cannot_be_meant(arguments: dict[str, int], message: str) -> None:
    given = {"ranks": 2, "chunks": 1, "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1, **arguments}
    with pytest.raises(UsageError, match=message):
        uniform_costs(**given)
