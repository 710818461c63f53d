"""Where the difference between a measured and a predicted step comes from: exact small tables."""

import pytest

from planner.plan.replay import replay
from simulator.actions import Kind, parse_action
from simulator.attribution import Drift, Parts, attribute, measured_parts, predicted_parts
from simulator.timeline import Span, Timeline
from tests.support.measured_by_hand import measured_by_hand
from tests.support.small_plan import PLAN

PREDICTED = """
0 compute 0F0        0 10
0 compute 0B0       34 54
0 send    0SEND_F0>1 10 12
0 receive 0RECV_B0<1 32 34
1 compute 1F0       12 22
1 compute 1B0       22 32
1 send    1SEND_B0>0 32 34
1 receive 1RECV_F0<0 10 12
"""
MEASURED = """
0 compute 0F0        0 13
0 compute 0B0       51 75
0 send    0SEND_F0>1 14 16
0 receive 0RECV_B0<1 16 17
0 receive 0RECV_B0<1 18 50
1 compute 1F0       21 31
1 compute 1B0       31 41
1 send    1SEND_B0>0 42 45
1 receive 1RECV_F0<0 1 2
1 receive 1RECV_F0<0 3 20
"""


def timeline(text: str) -> Timeline:
    rows = [line.split() for line in text.strip().splitlines()]
    spans = tuple(
        Span(parse_action(a), int(rank), stream, int(start), int(end)) for rank, stream, a, start, end in rows
    )
    return Timeline(1 + max(span.rank for span in spans), spans)


def test_predicted_idle_time_is_communication_while_the_message_it_waits_for_is_under_way() -> None:
    assert predicted_parts(timeline(PREDICTED)) == (Parts(30, 2, 22, 0), Parts(20, 2, 32, 0))


def test_a_message_that_arrives_while_the_rank_computes_holds_it_up_no_more() -> None:
    text = "0 compute 0F0 4 20\n0 compute 0F1 25 30\n0 receive 0RECV_F0<1 0 4\n0 receive 0RECV_F1<1 0 15"
    # 0-4: the first message; 20-25 is not the second message's fault, it arrived at 15.
    assert predicted_parts(timeline(text)) == (Parts(21, 4, 5, 0),)


def test_a_measured_wait_is_communication_from_the_moment_at_which_the_send_began() -> None:
    # Rank 0: send 2, posting 1, wait 18-50 of which 42-50 after the send; Python at 13, 17 and 50.
    # Rank 1: posting 1, wait 3-20 of which 14-20, send 3; idle before 1 and after 45; Python at 2, 20 and 41.
    assert measured_parts(timeline(MEASURED)) == (Parts(37, 11, 24, 3), Parts(20, 10, 42, 3))


def test_the_difference_is_told_on_the_rank_that_waits_least_longer_than_predicted() -> None:
    found = attribute(timeline(PREDICTED), timeline(MEASURED))
    assert found.per_rank == (Parts(7, 9, 2, 3), Parts(0, 8, 10, 3))
    assert found.rank == 0
    assert found.parts.total == 75 - 54


def test_actions_are_listed_from_the_one_furthest_from_the_plan() -> None:
    found = attribute(timeline(PREDICTED), timeline(MEASURED)).drifts
    assert found[:2] == (Drift(0, Kind.B, 1, 20, 24), Drift(0, Kind.F, 1, 10, 13))
    assert [(d.stage, d.kind, d.difference_ns) for d in found[2:]] == [(1, Kind.B, 0), (1, Kind.F, 0)]


def test_sums_of_gradients_that_an_optimizer_step_waits_for_are_communication() -> None:
    text = "0 compute 0F0 0 10\n0 compute 0OPT 12 32\n0 collective 0REDUCE 15 20"
    measured = timeline(text)
    assert measured_parts(measured) == (Parts(25, 5, 0, 2),)
    assert attribute(measured, measured).drifts[-1] == Drift(0, Kind.OPT, 1, 15, 15)


def test_host_time_of_messages_that_actions_were_priced_with_is_communication() -> None:
    calls = {parse_action("0SEND_F0>1"): 3, parse_action("0RECV_B0<1"): 4, parse_action("1RECV_F0<0"): 5}
    assert predicted_parts(timeline(PREDICTED), calls) == (Parts(23, 9, 22, 0), Parts(15, 7, 32, 0))
    drifts = attribute(timeline(PREDICTED), timeline(MEASURED), calls).drifts
    assert [(d.stage, d.kind, d.predicted_ns, d.difference_ns) for d in drifts] == [
        (0, Kind.B, 16, 8),
        (0, Kind.F, 7, 6),
        (1, Kind.F, 5, 5),
        (1, Kind.B, 10, 0),
    ]


def test_a_predicted_reduction_is_communication_whether_or_not_compute_goes_on_beside_it() -> None:
    beside = "0 compute 0F0 0 10\n0 collective 0REDUCE 5 20"
    within = "0 compute 0F0 0 10\n0 compute 0REDUCE 10 20"
    assert predicted_parts(timeline(beside)) == predicted_parts(timeline(within)) == (Parts(10, 10, 0, 0),)


@pytest.mark.parametrize("p2p", ["latency", "blocking", "links"])
def test_the_parts_of_every_rank_add_up_to_the_step_and_their_differences_to_its_difference(p2p: str) -> None:
    predicted, measured = replay(PLAN, p2p), measured_by_hand(PLAN)
    assert {parts.total for parts in predicted_parts(predicted)} == {predicted.step_time_ns}
    assert {parts.total for parts in measured_parts(measured)} == {measured.step_time_ns}
    difference_ns = measured.step_time_ns - predicted.step_time_ns
    assert {parts.total for parts in attribute(predicted, measured).per_rank} == {difference_ns}


def test_a_rank_that_did_nothing_waited() -> None:
    assert measured_parts(Timeline(2, timeline("0 compute 0F0 0 10").spans)) == (Parts(10, 0, 0, 0), Parts(0, 0, 10, 0))
