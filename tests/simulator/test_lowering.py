"""Lowering: which messages there are, where they stand, and that nobody waits on itself."""

from collections import Counter, deque
from random import Random

import pytest

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import RECEIVES, SENDS, Action, Kind, parse_action
from simulator.engine import simulate
from simulator.lowering import close_step, computed, lower
from simulator.schedule import Schedule, chain_edges, stage_graph
from simulator.timeline import Timeline
from simulator.validation import validate_schedule
from tests.support.random_stage_graphs import random_costs, random_schedule, timed


def schedule_of(costs: Costs, num_microbatches: int, *rows: str) -> Schedule:
    orders = tuple(tuple(parse_action(text) for text in row.split()) for row in rows)
    return Schedule("hand", stage_graph(costs), num_microbatches, orders)


def rows_of(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, order)) for order in schedule.orders]


def chain(num_stages: int, **changes: object) -> Costs:
    return Costs((StageCost(1, 1, 1),) * num_stages, tuple(chain_edges(num_stages)), **changes)  # type: ignore[arg-type]


def test_two_stages_send_outputs_forward_and_gradients_back_when_the_producer_ends() -> None:
    costs = chain(2)
    schedule = schedule_of(costs, 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    assert rows_of(lower(schedule, timed(schedule, costs))) == [
        "0F0 0SEND_F0>1 0F1 0SEND_F1>1 0RECV_B0<1 0B0 0RECV_B1<1 0B1",
        "1RECV_F0<0 1RECV_F1<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0",
    ]


def test_stages_of_one_rank_send_nothing_to_each_other() -> None:
    costs = Costs((StageCost(1, 1, 1),) * 3, tuple(chain_edges(3)), ranks=((0,), (0,), (1,)))
    schedule = schedule_of(costs, 1, "0F0 1F0 1B0 0B0", "2F0 2B0")
    assert rows_of(lower(schedule, timed(schedule, costs))) == [
        "0F0 1F0 1SEND_F0>2 1RECV_B0<2 1B0 0B0",
        "2RECV_F0<1 2F0 2B0 2SEND_B0>1",
    ]


def test_split_backward_sends_the_gradient_after_i_and_not_after_w() -> None:
    costs = chain(2)
    schedule = schedule_of(costs, 1, "0F0 0B0", "1F0 1I0 1W0")
    assert rows_of(lower(schedule, timed(schedule, costs)))[1] == "1RECV_F0<0 1F0 1I0 1SEND_B0>0 1W0"


def test_an_edge_without_gradient_and_a_stage_without_backward_send_nothing_back() -> None:
    for costs in (
        Costs((StageCost(1, 1, 1),) * 2, (EdgeCost(0, 1, gradient=False),)),
        Costs((StageCost(1, 1, 1, backward=False), StageCost(1, 1, 1)), (EdgeCost(0, 1),)),
    ):
        own = " 0B0" if costs.stages[0].backward else ""
        schedule = schedule_of(costs, 1, "0F0" + own, "1F0 1B0")
        assert rows_of(lower(schedule, timed(schedule, costs))) == [
            "0F0 0SEND_F0>1" + own,
            "1RECV_F0<0 1F0 1B0",
        ]


def test_a_message_is_the_smaller_of_the_two_groups_and_named_by_its_first_microbatch() -> None:
    costs = chain(2, multiples=(2, 1))
    schedule = schedule_of(costs, 2, "0F0 0B0", "1F0 1B0 1F1 1B1")
    assert rows_of(lower(schedule, timed(schedule, costs))) == [
        "0F0 0SEND_F0>1 0SEND_F1>1 0RECV_B0<1 0RECV_B1<1 0B0",
        "1RECV_F0<0 1RECV_F1<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0",
    ]


def test_multiples_that_do_not_divide_each_other_meet_in_their_common_ranges() -> None:
    costs = chain(2, multiples=(2, 3))
    schedule = schedule_of(costs, 6, "0F0 0F2 0F4 0B0 0B2 0B4", "1F0 1B0 1F3 1B3")
    lowered = lower(schedule, timed(schedule, costs))
    sent = [str(a) for a in lowered.orders[0] if a.kind is Kind.SEND_F]
    assert sent == ["0SEND_F0>1", "0SEND_F2>1", "0SEND_F3>1", "0SEND_F4>1"]
    assert [str(a) for a in lowered.orders[1] if a.kind is Kind.SEND_B] == [
        "1SEND_B0>0",
        "1SEND_B2>0",
        "1SEND_B3>0",
        "1SEND_B4>0",
    ]


def test_a_message_is_a_slice_where_either_end_works_in_slices() -> None:
    """Stage 1 takes sequences in two slices, stages 0 and 2 whole."""
    costs = chain(3)
    schedule = Schedule(
        "hand",
        stage_graph(costs),
        1,
        tuple(tuple(map(parse_action, row.split())) for row in ("0F0 0B0", "1F0.0 1F0.1 1B0.1 1B0.0", "2F0 2B0")),
        2,
    )
    lowered = lower(schedule, simulate(schedule, costs))
    assert rows_of(lowered) == [
        "0F0 0SEND_F0.0>1 0SEND_F0.1>1 0RECV_B0.1<1 0RECV_B0.0<1 0B0",
        "1RECV_F0.0<0 1RECV_F0.1<0 1F0.0 1SEND_F0.0>2 1F0.1 1SEND_F0.1>2 1RECV_B0.0<2 1RECV_B0.1<2 "
        "1B0.1 1SEND_B0.1>0 1B0.0 1SEND_B0.0>0",
        "2RECV_F0.0<1 2RECV_F0.1<1 2F0 2B0 2SEND_B0.0>1 2SEND_B0.1>1",
    ]
    assert validate_schedule(lowered) == ()
    assert simulate(lowered, costs).spans == simulate(schedule, costs).spans


def test_replicas_talk_to_the_rank_that_has_the_microbatch() -> None:
    costs = Costs((StageCost(1, 1, 1),) * 2, tuple(chain_edges(2)), ranks=((0, 1), (2,)))
    schedule = schedule_of(costs, 2, "0F0 0B0", "0F1 0B1", "1F0 1B0 1F1 1B1")
    assert rows_of(lower(schedule, timed(schedule, costs))) == [
        "0F0 0SEND_F0>1 0RECV_B0<1 0B0",
        "0F1 0SEND_F1>1 0RECV_B1<1 0B1",
        "1RECV_F0<0 1RECV_F1<0 1F0 1B0 1SEND_B0>0 1F1 1B1 1SEND_B1>0",
    ]


def test_reduce_follows_the_last_backward_of_its_stage_and_opt_ends_the_order() -> None:
    costs = Costs((StageCost(1, 1, 1),) * 2, tuple(chain_edges(2)), ranks=((0, 1), (0,)))
    schedule = schedule_of(costs, 2, "0F0 1F0 1B0 0B0 1F1 1I1 1W1", "0F1 0B1")
    assert rows_of(close_step(schedule, (True, False), optimizer=True)) == [
        "0F0 1F0 1B0 0B0 0REDUCE 1F1 1I1 1W1 0OPT 1OPT",
        "0F1 0B1 0REDUCE 0OPT",
    ]


def test_all_ranks_issue_their_reductions_in_one_sequence() -> None:
    """Rank 0 ends stage 1 first, rank 1 stage 0; stage 1 has more behind it on both, so it goes first on both."""
    costs = Costs((StageCost(1, 1, 1),) * 2, (), ranks=((0, 1), (1, 0)))
    schedule = schedule_of(costs, 4, "0F0 1F1 1B1 1F3 1B3 0B0 0F2 0B2", "0F1 0B1 1F0 1B0 1F2 1B2 0F3 0B3")
    assert rows_of(close_step(schedule, (True, True), optimizer=False)) == [
        "0F0 1F1 1B1 1F3 1B3 1REDUCE 0B0 0F2 0B2 0REDUCE",
        "0F1 0B1 1F0 1B0 1F2 1B2 1REDUCE 0F3 0B3 0REDUCE",
    ]
    crossed = schedule_of(costs, 2, "0F0 1F1 1B1 0B0", "1F0 0F1 0B1 1B0")
    assert rows_of(close_step(crossed, (True, True), optimizer=False)) == [
        "0F0 1F1 1B1 0B0 0REDUCE 1REDUCE",
        "1F0 0F1 0B1 0REDUCE 1B0 1REDUCE",
    ]


def test_a_replica_without_micro_batches_takes_part_in_the_reduction() -> None:
    costs = Costs((StageCost(1, 1, 1),), (), ranks=((0, 1),))
    closed = close_step(schedule_of(costs, 1, "0F0 0B0", ""), (True,), optimizer=True)
    assert rows_of(closed) == ["0F0 0B0 0REDUCE 0OPT", "0REDUCE 0OPT"]


def test_a_stage_without_backward_is_neither_reduced_nor_updated() -> None:
    costs = Costs((StageCost(1, 1, 1, backward=False), StageCost(1, 1, 1)), tuple(chain_edges(2)))
    schedule = schedule_of(costs, 1, "0F0", "1F0 1B0")
    assert rows_of(close_step(schedule, (True, True), optimizer=True)) == ["0F0", "1F0 1B0 1REDUCE 1OPT"]


def test_flags_for_another_number_of_stages_are_refused() -> None:
    schedule = schedule_of(chain(2), 1, "0F0 0B0", "1F0 1B0")
    with pytest.raises(InvalidInput, match="1 flags for the reductions of 2 stages"):
        close_step(schedule, (True,), optimizer=False)


def test_all_members_reach_a_reduction_at_one_moment_of_the_global_order() -> None:
    """Rank 0 ends stage 0 early; were REDUCE left there, it would wait for rank 1, which waits for rank 0."""
    costs = Costs((StageCost(1, 1, 1),) * 2, tuple(chain_edges(2)), ranks=((0, 1), (0,)))
    schedule = close_step(schedule_of(costs, 2, "0F0 1F0 1B0 0B0 1F1 1B1", "0F1 0B1"), (True, False), optimizer=True)
    lowered = lower(schedule, timed(computed_only(schedule), costs))
    assert rows_of(lowered) == [
        "0F0 1RECV_F1<0 1F0 1B0 0B0 1F1 1B1 1SEND_B1>0 0REDUCE 0OPT 1OPT",
        "0F1 0SEND_F1>1 0RECV_B1<1 0B1 0REDUCE 0OPT",
    ]


def computed_only(schedule: Schedule) -> Schedule:
    kinds = (Kind.REDUCE, Kind.OPT)
    orders = tuple(tuple(a for a in order if a.kind not in kinds) for order in schedule.orders)
    return Schedule(schedule.name, schedule.graph, schedule.num_microbatches, orders)


def test_a_timeline_of_another_schedule_is_refused() -> None:
    schedule = schedule_of(chain(1), 1, "0F0 0B0")
    with pytest.raises(InvalidInput, match="the timeline lacks 0F0 of rank 0"):
        lower(schedule, Timeline(1, ()))


def test_orders_that_wait_on_each_other_are_refused() -> None:
    costs = chain(2)
    good = schedule_of(costs, 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    bad = schedule_of(costs, 2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    with pytest.raises(InvalidInput, match="wait on each other at 0B0, 1F1"):
        lower(bad, timed(good, costs))


def rendezvous(lowered: Schedule) -> None:
    """Run the lists with synchronous sends and blocking reductions; fail when nobody can go on."""
    queues = [deque(order) for order in lowered.orders]
    rank_of = {(a, rank) for rank, order in enumerate(lowered.orders) for a in order}
    moved = True
    while moved:
        moved = False
        for queue in queues:
            if not queue:
                continue
            head = queue[0]
            if head.kind in SENDS:
                kind = Kind.RECV_F if head.kind is Kind.SEND_F else Kind.RECV_B
                other = Action(kind, head.peer, head.microbatch, head.slice_index, head.stage)
                together = [q for q in queues if q and q[0] == other] + [queue]
                if len(together) < 2:
                    continue
            elif head.kind is Kind.REDUCE:
                together = [q for q in queues if q and q[0] == head]
                if len(together) < sum(a == head for a, _ in rank_of):
                    continue
            elif head.kind in RECEIVES:
                continue
            else:
                together = [queue]
            for q in together:
                q.popleft()
            moved = True
    assert not any(queues), [str(q[0]) for q in queues if q]


def random_lowered(seed: int) -> tuple[Schedule, Schedule]:
    rng = Random(seed)
    num_microbatches = rng.choice((1, 2, 3, 4, 6))
    costs = random_costs(rng, num_microbatches)
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < 0.5)
    schedule = random_schedule(rng, costs, num_microbatches, split)
    closed = close_step(schedule, [rng.random() < 0.5 for _ in costs.stages], optimizer=rng.random() < 0.5)
    return closed, lower(closed, timed(schedule, costs))


def test_synchronous_sends_and_blocking_reductions_finish_on_random_lowered_schedules() -> None:
    for seed in range(400):
        rendezvous(random_lowered(seed)[1])


def test_every_need_across_ranks_has_one_message_after_its_producer_and_before_its_consumer() -> None:
    for seed in range(400):
        closed, lowered = random_lowered(seed)
        sends = Counter(a for order in lowered.orders for a in order if a.kind in SENDS)
        receives = Counter(a for order in lowered.orders for a in order if a.kind in RECEIVES)
        assert max(sends.values(), default=1) == max(receives.values(), default=1) == 1
        assert sends.total() == receives.total()
        for order in lowered.orders:
            place = {action: i for i, action in enumerate(order)}
            for action in order:
                multiple = closed.graph.multiples[action.stage]
                own = action.microbatch - action.microbatch % multiple
                kinds = {
                    Kind.SEND_F: (Kind.F,),
                    Kind.RECV_F: (Kind.F,),
                    Kind.SEND_B: (Kind.B, Kind.I),
                    Kind.RECV_B: (Kind.B, Kind.I),
                }.get(action.kind, ())
                ends = [place[Action(k, action.stage, own)] for k in kinds if Action(k, action.stage, own) in place]
                if action.kind in SENDS:
                    assert ends[0] < place[action]
                if action.kind in RECEIVES:
                    assert place[action] < ends[0]


def test_lowering_keeps_each_ranks_order_of_compute() -> None:
    for seed in range(200):
        closed, lowered = random_lowered(seed)
        for before, after in zip(closed.orders, computed(lowered).orders, strict=True):
            assert [a for a in before if a.kind is not Kind.REDUCE] == [a for a in after if a.kind is not Kind.REDUCE]
            assert sorted(map(str, before)) == sorted(map(str, after))


def test_lowering_changes_no_time_of_any_action() -> None:
    for seed in range(200):
        rng = Random(seed)
        num_microbatches = rng.choice((2, 3, 4))
        costs = random_costs(rng, num_microbatches)
        schedule = random_schedule(rng, costs, num_microbatches)
        closed = close_step(schedule, [rng.random() < 0.5 for _ in costs.stages], optimizer=rng.random() < 0.5)
        before = simulate(closed, costs)
        after = simulate(lower(closed, before), costs)
        assert sorted(map(repr, before.spans)) == sorted(map(repr, after.spans))


def test_reductions_in_different_sequences_are_refused() -> None:
    costs = Costs((StageCost(1, 1, 1),) * 2, (), ranks=((0, 1), (0, 1)))
    schedule = schedule_of(costs, 2, "0F0 0B0 0REDUCE 1F0 1B0 1REDUCE", "1F1 1B1 1REDUCE 0F1 0B1 0REDUCE")
    with pytest.raises(InvalidInput, match="ranks issue 0REDUCE, 1REDUCE in different sequences"):
        lower(schedule, timed(computed_only(schedule), costs))


def test_lowering_the_same_schedule_twice_gives_the_same_lists() -> None:
    for seed in range(50):
        assert random_lowered(seed)[1] == random_lowered(seed)[1]
