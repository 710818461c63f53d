"""Exact start times of the engine on small tables."""

from dataclasses import replace

import pytest

from costmodel.errors import InvalidInput, UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import parse_action
from simulator.engine import Structure, simulate
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.schedules import build_schedule
from simulator.uniform import uniform_costs


def schedule_of(costs: Costs, num_microbatches: int, *orders: str, num_slices: int = 1) -> Schedule:
    actions = tuple(tuple(map(parse_action, order.split())) for order in orders)
    return Schedule("by hand", stage_graph(costs), num_microbatches, actions, num_slices)


def starts(schedule: Schedule, costs: Costs, **modes: object) -> dict[str, int]:
    times = Structure(schedule, **modes).times(costs)  # type: ignore[arg-type]
    return {str(action): start for action, start in zip(times.actions, times.start.tolist(), strict=True)}


def alike(num_stages: int, p2p_ns: int = 0) -> Costs:
    """F = I = W = 10."""
    return Costs(tuple(StageCost(10, 10, 10) for _ in range(num_stages)), tuple(chain_edges(num_stages, p2p_ns)))


def test_1f1b_on_two_ranks_starts_each_action_as_its_input_arrives() -> None:
    costs = alike(2)
    assert starts(build_schedule("1f1b", costs, 3), costs) == {
        "0F0": 0, "0F1": 10, "0B0": 40, "0F2": 60, "0B1": 70, "0B2": 100,
        "1F0": 10, "1B0": 20, "1F1": 40, "1B1": 50, "1F2": 70, "1B2": 80,
    }  # fmt: skip


def test_1f1b_on_three_ranks_with_a_delay_between_ranks() -> None:
    costs = alike(3, p2p_ns=3)
    assert starts(build_schedule("1f1b", costs, 2), costs) == {
        "0F0": 0, "0F1": 10, "0B0": 82, "0B1": 112,
        "1F0": 13, "1F1": 23, "1B0": 59, "1B1": 89,
        "2F0": 26, "2B0": 36, "2F1": 56, "2B1": 66,
    }  # fmt: skip


def test_split_backward_lets_the_input_gradient_go_ahead_of_the_weight_gradient() -> None:
    costs = alike(2)
    schedule = schedule_of(costs, 2, "0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1")
    assert starts(schedule, costs) == {
        "0F0": 0, "0F1": 10, "0I0": 30, "0I1": 50, "0W0": 60, "0W1": 70,
        "1F0": 10, "1I0": 20, "1F1": 30, "1I1": 40, "1W0": 50, "1W1": 60,
    }  # fmt: skip


def test_a_join_starts_when_the_later_of_its_branches_has_arrived() -> None:
    costs = Costs((StageCost(5, 0, 0), StageCost(20, 0, 0), StageCost(7, 1, 1)), (EdgeCost(0, 2, 4), EdgeCost(1, 2, 2)))
    schedule = schedule_of(costs, 2, "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1")
    assert starts(schedule, costs) == {
        "0F0": 0, "0F1": 5, "0B0": 35, "0B1": 55,
        "1F0": 0, "1F1": 20, "1B0": 40, "1B1": 53,
        "2F0": 22, "2B0": 29, "2F1": 42, "2B1": 49,
    }  # fmt: skip


def test_replicas_take_turns_and_their_successor_takes_both() -> None:
    costs = Costs((StageCost(10, 0, 0, backward=False), StageCost(4, 1, 1)), (EdgeCost(0, 1, 1),), ((0, 1), (2,)))
    schedule = schedule_of(costs, 4, "0F0 0F2", "0F1 0F3", "1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3")
    assert starts(schedule, costs) == {
        "0F0": 0, "0F2": 10, "0F1": 0, "0F3": 10,
        "1F0": 11, "1F1": 15, "1B0": 19, "1B1": 21, "1F2": 23, "1F3": 27, "1B2": 31, "1B3": 33,
    }  # fmt: skip


def test_a_stage_with_a_multiple_waits_for_all_the_micro_batches_of_its_group() -> None:
    costs = Costs((StageCost(10, 0, 5), StageCost(12, 6, 0)), (EdgeCost(0, 1, 1),), multiples=(1, 2))
    schedule = schedule_of(costs, 4, "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F0 1B0 1F2 1B2")
    assert starts(schedule, costs) == {
        "0F0": 0, "0F1": 10, "0F2": 20, "0F3": 30, "0B0": 40, "0B1": 45, "0B2": 60, "0B3": 65,
        "1F0": 21, "1B0": 33, "1F2": 41, "1B2": 53,
    }  # fmt: skip


def test_two_stages_of_one_rank_hand_over_without_delay() -> None:
    costs = Costs((StageCost(10, 5, 5),) * 3, tuple(chain_edges(3, p2p_ns=2)), ((0,), (1,), (0,)))
    schedule = schedule_of(costs, 1, "0F0 2F0 2B0 0B0", "1F0 1B0")
    assert starts(schedule, costs) == {"0F0": 0, "2F0": 24, "2B0": 34, "0B0": 58, "1F0": 12, "1B0": 46}
    one_rank = Costs((StageCost(10, 5, 5),) * 2, tuple(chain_edges(2, p2p_ns=2)), ((0,), (0,)))
    assert starts(schedule_of(one_rank, 1, "0F0 1F0 1B0 0B0"), one_rank)["1F0"] == 10


def test_no_gradient_flows_over_an_edge_without_one_or_from_a_frozen_stage() -> None:
    costs = Costs((StageCost(10, 5, 5),) * 2, (EdgeCost(0, 1, gradient=False),))
    assert starts(schedule_of(costs, 1, "0F0 0B0", "1F0 1B0"), costs)["0B0"] == 10
    frozen = Costs((StageCost(10, 5, 5), StageCost(10, 0, 0, backward=False)), (EdgeCost(0, 1),))
    assert starts(schedule_of(frozen, 1, "0F0 0B0", "1F0"), frozen) == {"0F0": 0, "0B0": 10, "1F0": 10}


def test_a_list_gives_each_action_its_own_time() -> None:
    costs = Costs((StageCost((1, 2, 3), 0, (5, 6, 7)),), ())
    schedule = schedule_of(costs, 3, "0F0 0F1 0F2 0B2 0B1 0B0")
    assert starts(schedule, costs) == {"0F0": 0, "0F1": 1, "0F2": 3, "0B2": 6, "0B1": 13, "0B0": 19}


def test_a_stage_recomputes_in_its_backward_unless_the_orders_hold_an_r() -> None:
    costs = Costs((StageCost(10, 5, 5, recompute_ns=9),), ())
    assert simulate(schedule_of(costs, 1, "0F0 0B0"), costs).step_time_ns == 29
    assert starts(schedule_of(costs, 2, "0F0 0F1 0R0 0B0 0B1"), costs)["0B0"] == 29
    assert starts(schedule_of(costs, 2, "0F0 0F1 0R0 0B0 0B1"), costs)["0B1"] == 39
    assert starts(schedule_of(costs, 1, "0F0 0R0 0I0 0W0"), costs)["0W0"] == 24


def test_slices_share_the_time_of_an_action_and_go_back_in_reverse() -> None:
    costs = Costs((StageCost(11, 0, 7), StageCost(5, 0, (9, 1))), (EdgeCost(0, 1, 1),))
    schedule = schedule_of(costs, 1, "0F0.0 0F0.1 0B0.1 0B0.0", "1F0.0 1F0.1 1B0.1 1B0.0", num_slices=2)
    assert starts(schedule, costs) == {
        "0F0.0": 0, "0F0.1": 6, "0B0.1": 16, "0B0.0": 25, "1F0.0": 7, "1F0.1": 12, "1B0.1": 14, "1B0.0": 15,
    }  # fmt: skip


def test_a_rank_of_some_speed_takes_the_time_over_the_speed_halves_up() -> None:
    costs = Costs((StageCost(5, 3, 2), StageCost(5, 3, 2)), tuple(chain_edges(2, 4)))
    times = Structure(schedule_of(costs, 1, "0F0 0B0", "1F0 1B0")).times(costs, speeds=(2, 1))
    assert (times.end - times.start).tolist() == [3, 3, 5, 5]
    assert times.start.tolist() == [0, 21, 7, 12]


def test_blocking_occupies_the_sender_after_its_action_and_then_the_receiver_before_its_own() -> None:
    costs = alike(2, p2p_ns=3)
    schedule = schedule_of(costs, 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert starts(schedule, costs, p2p="blocking") == {
        "0F0": 0, "0F1": 13, "0B0": 52, "0B1": 88, "1F0": 16, "1B0": 26, "1F1": 52, "1B1": 62,
    }  # fmt: skip


def test_blocking_ranks_zb_1p_above_interleaved_1f1b_where_measurement_does_and_latency_does_not() -> None:
    found = {}
    for name, chunks in (("interleaved-1f1b", 3), ("zb-h1", 1)):  # zb-auto at 1p finds zb-h1's time here
        costs = uniform_costs(16, chunks, 11347, 11248, 8132, 377)
        schedule = build_schedule(name, costs, 48)
        found[name] = [Structure(schedule, p2p).times(costs).step_time_ns for p2p in ("latency", "blocking")]
    assert found == {"interleaved-1f1b": [1_663_949, 1_857_747], "zb-h1": [1_714_461, 1_784_583]}


def test_links_carry_one_message_at_a_time_in_the_senders_order() -> None:
    costs = Costs((StageCost(10, 0, 0), StageCost(2, 0, 0)), (EdgeCost(0, 1, 25),))
    schedule = schedule_of(costs, 3, "0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2")
    found = starts(schedule, costs, p2p="links")
    assert [found[f"1F{k}"] for k in range(3)] == [35, 60, 85]
    assert [starts(schedule, costs)[f"1F{k}"] for k in range(3)] == [35, 45, 55]
    assert [found[f"0B{k}"] for k in range(3)] == [112, 137, 162]


def test_the_message_at_the_head_of_a_link_holds_up_those_behind_it_until_it_is_received() -> None:
    costs = Costs((StageCost(1, 0, 0, backward=False), StageCost(20, 0, 0, backward=False)), (EdgeCost(0, 1, 5),))
    order = "0F0 0SEND_F0>1 0F1 0SEND_F1>1 0F2 0SEND_F2>1"
    ready = schedule_of(costs, 3, order, "1RECV_F0<0 1RECV_F1<0 1RECV_F2<0 1F0 1F1 1F2")
    late = schedule_of(costs, 3, order, "1RECV_F0<0 1RECV_F2<0 1F0 1RECV_F1<0 1F1 1F2")
    transfers = [f"0SEND_F{k}>1" for k in range(3)]
    assert [starts(ready, costs, p2p="links")[t] for t in transfers] == [1, 6, 11]
    assert [starts(late, costs, p2p="links")[t] for t in transfers] == [1, 26, 31]


def test_lowered_orders_time_like_compute_orders_and_show_their_transfers() -> None:
    costs = alike(2, p2p_ns=3)
    lowered = schedule_of(costs, 1, "0F0 0SEND_F0>1 0RECV_B0<1 0B0", "1RECV_F0<0 1F0 1B0 1SEND_B0>0")
    assert starts(lowered, costs) == {
        "0F0": 0, "0SEND_F0>1": 10, "0RECV_B0<1": 43, "0B0": 46, "1RECV_F0<0": 10, "1F0": 13, "1B0": 23,
        "1SEND_B0>0": 43,
    }  # fmt: skip
    plain = schedule_of(costs, 1, "0F0 0B0", "1F0 1B0")
    assert simulate(lowered, costs) == simulate(plain, costs)


def test_a_reduction_overlaps_compute() -> None:
    costs = Costs((StageCost(10, 5, 5, reduce_ns=100, optimizer_ns=7),) * 2, tuple(chain_edges(2)), ((0,), (0,)))
    schedule = schedule_of(costs, 1, "0F0 1F0 1B0 1REDUCE 0B0 0REDUCE 0OPT 1OPT")
    beside = {"0F0": 0, "1F0": 10, "1B0": 20, "1REDUCE": 30, "0B0": 30, "0REDUCE": 130, "0OPT": 230, "1OPT": 237}
    assert starts(schedule, costs) == beside


def test_a_reduction_starts_when_the_last_replica_has_issued_it() -> None:
    costs = Costs((StageCost((10, 30), 5, 5, reduce_ns=8),), (), ranks=((0, 1),))
    schedule = schedule_of(costs, 2, "0F0 0B0 0REDUCE", "0F1 0B1 0REDUCE")
    timeline = simulate(schedule, costs)
    assert [(s.rank, s.start_ns, s.end_ns) for s in timeline.spans if s.stream == "collective"] == [
        (0, 40, 48),
        (1, 40, 48),
    ]


@pytest.mark.parametrize(("mode", "first", "second"), [("independent", 80, 40), ("global-norm", 80, 80)])
def test_an_update_follows_its_own_stage_or_a_barrier_over_all_ranks(mode: str, first: int, second: int) -> None:
    costs = Costs((StageCost(10, 20, 20, optimizer_ns=7), StageCost(10, 10, 10, optimizer_ns=7)), (EdgeCost(0, 1),))
    schedule = schedule_of(costs, 1, "0F0 0B0 0OPT", "1F0 1B0 1OPT")
    found = starts(schedule, costs, optimizer_mode=mode)
    assert (found["0OPT"], found["1OPT"]) == (first, second)


def test_a_post_validated_update_waits_for_the_partial_norm_of_the_stages_before_it() -> None:
    costs = Costs(tuple(StageCost(10, 10, 10, optimizer_ns=7) for _ in range(3)), tuple(chain_edges(3, 2)))
    schedule = schedule_of(
        costs, 1, "0F0 0I0 0W0 0OPT", "1F0 1I0 1W0 1OPT", "2F0 2I0 2W0 2OPT"
    )  # the last input gradient is rank 0's
    found = starts(schedule, costs, optimizer_mode="post-validated")
    assert {k: v for k, v in found.items() if "OPT" in k} == {"0OPT": 78, "1OPT": 80, "2OPT": 82}
    assert starts(schedule, costs, optimizer_mode="global-norm")["2OPT"] == 78


def test_a_barrier_takes_updates_behind_all_other_work_of_their_rank() -> None:
    costs = Costs((StageCost(10, 5, 5, optimizer_ns=7),) * 2, tuple(chain_edges(2)), ((0,), (0,)))
    schedule = schedule_of(costs, 1, "0F0 1F0 1B0 1OPT 0B0 0OPT")
    assert starts(schedule, costs)["0B0"] == 37
    assert starts(schedule, costs, optimizer_mode="global-norm") == {
        "0F0": 0, "1F0": 10, "1B0": 20, "0B0": 30, "1OPT": 40, "0OPT": 47,
    }  # fmt: skip


def test_an_order_that_waits_on_itself_across_ranks_is_refused_with_the_blocked_actions() -> None:
    costs = alike(2)
    schedule = schedule_of(costs, 2, "0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert starts(schedule, costs)["1F0"] == 20
    stuck = schedule_of(costs, 2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    with pytest.raises(InvalidInput, match="wait on each other at 0B0 on rank 0, 1F1 on rank 1"):
        Structure(stuck)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("0F0 0F0 0B0", "1F0 1B0"), "0F0 occurs twice"),
        (("0B0", "1F0 1B0"), "needs a result that no action of the orders makes"),
        (("0F0 0B0", "1F0 1B1"), "1B1: stages go up to 1, micro-batches to 0"),
        (("0F0 0B0", "2F0 1B0"), "2F0: stages go up to 1"),
        (("0UNSHARD0 0F0 0B0", "1F0 1B0"), "no time for UNSHARD"),
        (("0F0 0SEND_F0>0 0B0", "1F0 1B0"), "0SEND_F0>0 on rank 0 carries nothing"),
        (("", ""), "the orders are empty"),
    ],
)
def test_orders_that_cannot_be_timed_are_refused_by_name(orders: tuple[str, ...], message: str) -> None:
    costs = alike(2)
    with pytest.raises(InvalidInput, match=message):
        simulate(schedule_of(costs, 1, *orders), costs)


def test_links_need_every_transfer_of_lowered_orders() -> None:
    costs = alike(2)
    schedule = schedule_of(costs, 1, "0F0 0SEND_F0>1 0B0", "1RECV_F0<0 1F0 1B0")
    with pytest.raises(InvalidInput, match="no RECV from 1B0 to 0B0"):
        Structure(schedule, "links")


def test_modes_and_costs_that_do_not_fit_are_refused() -> None:
    costs = alike(2)
    schedule = build_schedule("1f1b", costs, 2)
    with pytest.raises(UsageError, match="choose one of latency, blocking, links"):
        simulate(schedule, costs, "fast")
    with pytest.raises(UsageError, match="choose one of independent"):
        simulate(schedule, costs, optimizer_mode="none")
    with pytest.raises(InvalidInput, match="costs of 3 stages"):
        simulate(schedule, alike(3))
    with pytest.raises(InvalidInput, match="costs of 3 stages"):
        simulate(schedule, replace(alike(3), edges=costs.edges))
    with pytest.raises(InvalidInput, match="one positive factor a rank"):
        simulate(schedule, costs, speeds=[1.0, 0.0])
    with pytest.raises(InvalidInput, match="3 values for 2 actions"):
        simulate(schedule, Costs((StageCost((1, 2, 3), 1, 1), StageCost(1, 1, 1)), costs.edges))


def test_a_cached_structure_times_new_costs_one_by_one_and_all_at_once_alike() -> None:
    scenarios = [uniform_costs(4, 1, 10 + i, 7, 5 * i, i) for i in range(5)]
    structure = Structure(build_schedule("zb-h1", scenarios[0], 8))
    for costs, times in zip(scenarios, structure.times_many(scenarios), strict=True):
        alone = structure.times(costs)
        assert (times.start == alone.start).all()
        assert (times.end == alone.end).all()
        assert times.timeline() == simulate(structure.schedule, costs)
    assert structure.times_many([]) == ()


def test_scenarios_may_each_have_their_straggler() -> None:
    costs = alike(3)
    structure = Structure(build_schedule("1f1b", costs, 4))
    stragglers = [[0.5 if rank == slow else 1.0 for rank in range(3)] for slow in range(3)]
    found = structure.times_many([costs] * 3, stragglers)
    assert [times.step_time_ns for times in found] == [260, 280, 300]
    assert [structure.times(costs, speeds).step_time_ns for speeds in stragglers] == [260, 280, 300]


def test_span_is_the_longest_rank_and_step_the_whole() -> None:
    costs = alike(2)
    times = Structure(build_schedule("1f1b", costs, 4)).times(costs)
    assert (times.step_time_ns, times.span_ns) == (150, 150)
    assert times.bubble_ratio == pytest.approx(1 - 240 / 300)
    frozen = Costs((StageCost(10, 0, 0, backward=False), StageCost(5, 5, 0)), (EdgeCost(0, 1),))
    times = Structure(schedule_of(frozen, 1, "0F0", "1F0 1B0")).times(frozen)
    assert (times.step_time_ns, times.span_ns, times.compute_ns) == (20, 10, 20)
    assert times.bubble_ratio_span == pytest.approx(0.0)


@pytest.mark.parametrize("time_ns", [-1, 1 << 59, 1 << 70])
def test_times_that_cannot_be_meant_are_refused(time_ns: int) -> None:
    costs = Costs((StageCost(time_ns, 0, 0), StageCost(1, 0, 0)), tuple(chain_edges(2)))
    with pytest.raises(InvalidInput, match="check their unit"):
        simulate(build_schedule("1f1b", alike(2), 2), costs)
    with pytest.raises(InvalidInput, match="check their unit"):
        simulate(build_schedule("1f1b", alike(2), 2), alike(2), speeds=[1e-18, 1])


def test_a_slice_in_a_schedule_without_slices_is_refused() -> None:
    costs = alike(2)
    with pytest.raises(InvalidInput, match=r"0F0\.1: .* one of 1 slices"):
        simulate(schedule_of(costs, 1, "0F0.1 0B0", "1F0 1B0"), costs)
    with pytest.raises(InvalidInput, match="orders of 1 ranks for stages on 2"):
        simulate(schedule_of(costs, 1, "0F0 0B0"), costs)
