"""Memory over time: who holds what from when to when."""

from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import parse_action
from simulator.engine import Structure
from simulator.schedule import Schedule, stage_graph
from simulator.schedules import build_schedule
from simulator.uniform import share_bytes, uniform_costs

Points = tuple[tuple[int, int], ...]


def points(
    costs: Costs, num_microbatches: int, *orders: str, p2p: str = "latency", num_slices: int = 1
) -> list[Points]:
    actions = tuple(tuple(map(parse_action, order.split())) for order in orders)
    schedule = Schedule("by hand", stage_graph(costs), num_microbatches, actions, num_slices)
    memory = Structure(schedule, p2p).times(costs).memory
    return [memory.points(rank) for rank in range(len(orders))]


def one_stage(**fields: int) -> Costs:
    return Costs((StageCost(10, 5, 5, activation_bytes=100, weight_activation_bytes=30, static_bytes=1, **fields),), ())


def test_a_full_backward_frees_the_activation_at_its_end() -> None:
    assert points(one_stage(), 2, "0F0 0F1 0B0 0B1") == [((0, 1), (0, 101), (10, 201), (30, 101), (40, 1))]


def test_an_input_gradient_frees_what_only_it_needs_and_the_weight_gradient_the_rest() -> None:
    assert points(one_stage(), 1, "0F0 0I0 0W0") == [((0, 1), (0, 101), (15, 31), (20, 1))]


def test_without_a_weight_gradient_the_input_gradient_frees_all() -> None:
    assert points(one_stage(), 1, "0F0 0I0") == [((0, 1), (0, 101), (15, 1))]


def test_a_forward_without_a_backward_frees_its_activation_at_its_own_end() -> None:
    costs = Costs((StageCost(10, 0, 0, activation_bytes=100, backward=False),), ())
    assert points(costs, 2, "0F0 0F1") == [((0, 0), (0, 100), (10, 0), (10, 100), (20, 0))]


def test_a_recomputed_forward_holds_nothing_until_its_r_takes_the_activation() -> None:
    costs = one_stage(recompute_ns=8)
    assert points(costs, 2, "0F0 0F1 0R0 0B0 0R1 0B1") == [((0, 1), (20, 101), (38, 1), (38, 101), (56, 1))]


def test_a_recomputed_forward_keeps_what_it_received_until_its_r_has_ended() -> None:
    costs = Costs(
        (StageCost(10, 5, 5, activation_bytes=0, weight_activation_bytes=0), StageCost(10, 5, 5, recompute_ns=8)),
        (EdgeCost(0, 1, 4, size_bytes=64),),
    )
    _, second = points(costs, 1, "0F0 0B0", "1F0 1R0 1B0")
    assert second == ((0, 0), (10, 64), (24, 66), (32, 2), (42, 0), (42, 64), (46, 0))


def test_a_recomputed_forward_keeps_its_input_from_a_stage_of_its_own_rank_too() -> None:
    stages = (StageCost(10, 5, 5, activation_bytes=0, weight_activation_bytes=0), StageCost(10, 5, 5, recompute_ns=8))
    costs = Costs(stages, (EdgeCost(0, 1, 4, size_bytes=64),), ((0,), (0,)))
    assert points(costs, 1, "0F0 1F0 1R0 1B0 0B0") == [((0, 0), (10, 64), (20, 66), (28, 2), (38, 0))]


def test_a_message_is_held_by_its_sender_while_it_travels_and_by_its_receiver_until_it_is_read() -> None:
    costs = Costs(
        (StageCost(10, 5, 5, activation_bytes=0, weight_activation_bytes=0),) * 2, (EdgeCost(0, 1, 4, size_bytes=64),)
    )
    orders = ("0F0 0B0", "1F0 1B0")
    assert points(costs, 1, *orders) == [
        ((0, 0), (10, 64), (14, 0), (34, 64), (48, 0)),
        ((0, 0), (10, 64), (24, 0), (34, 64), (38, 0)),
    ]
    assert points(costs, 1, *orders, p2p="blocking") == [
        ((0, 0), (10, 64), (14, 0), (42, 64), (56, 0)),
        ((0, 0), (14, 64), (28, 0), (38, 64), (42, 0)),
    ]


def test_a_message_waits_in_the_senders_memory_for_its_link() -> None:
    costs = Costs(
        (StageCost(1, 0, 0, activation_bytes=0, weight_activation_bytes=0, backward=False),) * 2,
        (EdgeCost(0, 1, 5, size_bytes=8),),
    )
    first, second = points(costs, 3, "0F0 0F1 0F2", "1F0 1F1 1F2", p2p="links")
    assert first == ((0, 0), (1, 8), (2, 16), (3, 24), (6, 16), (11, 8), (16, 0))
    assert second == ((0, 0), (1, 8), (6, 16), (7, 8), (11, 16), (12, 8), (17, 0))


def test_a_message_to_a_smaller_group_carries_its_share() -> None:
    stages = (StageCost(10, 0, 0, activation_bytes=0, weight_activation_bytes=0, backward=False),) * 2
    costs = Costs(stages, (EdgeCost(0, 1, 4, size_bytes=64),), multiples=(2, 1))
    assert points(costs, 2, "0F0", "1F0 1F1") == [
        ((0, 0), (10, 32), (10, 64), (14, 32), (14, 0)),
        ((0, 0), (10, 32), (10, 64), (24, 32), (34, 0)),
    ]


def test_slices_hold_their_share_of_the_activation() -> None:
    costs = Costs((StageCost(10, 0, 10, activation_bytes=11, weight_activation_bytes=0),), ())
    assert points(costs, 1, "0F0.0 0F0.1 0B0.1 0B0.0", num_slices=2) == [((0, 0), (0, 6), (5, 11), (15, 6), (20, 0))]


def test_1f1b_holds_as_many_activations_as_ranks_follow() -> None:
    costs = uniform_costs(4, 1, 10, 10, 10)
    peaks = Structure(build_schedule("1f1b", costs, 8)).times(costs).peak_memory_bytes
    assert [peak / share_bytes() for peak in peaks] == [4, 3, 2, 1]
