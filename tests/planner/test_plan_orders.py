"""Orders in short say what orders in full say, and a file that asks for too much, or for nothing, is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import InvalidInput
from costmodel.files import Node
from planner.plan import orders as module
from planner.plan.orders import orders_from_nodes, orders_to_json
from simulator.schedules import build_schedule
from simulator.uniform import uniform_costs

ACTIONS = st.builds(
    "{}{}{}{}".format, st.integers(0, 2), st.sampled_from("FBIW"), st.integers(0, 30), st.sampled_from(("", ".1"))
) | st.sampled_from(("0REDUCE", "1OPT", "0SEND_F3>1", "1RECV_B4<0"))


def read(rows: list[object]) -> tuple[tuple[str, ...], ...]:
    return orders_from_nodes([Node(row, f"/ranks/{i}/actions", "plan.json") for i, row in enumerate(rows)])


@given(st.lists(st.lists(ACTIONS, max_size=12), max_size=4), st.integers(1, 5), st.integers(0, 7))
def test_any_orders_come_back_as_they_were(rows: list[list[str]], times: int, step: int) -> None:
    orders = [tuple(row + [later(text, i * step) for i in range(1, times) for text in row]) for row in rows]
    module_long, module.LONG = module.LONG, 0
    try:
        assert read(orders_to_json(orders)) == tuple(orders)
    finally:
        module.LONG = module_long


@pytest.mark.parametrize("stages", ["01", "10"])
def test_another_stage_with_the_next_micro_batch_is_no_repetition(stages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two actions repeat, but from the middle on the first is another stage's."""
    monkeypatch.setattr(module, "LONG", 0)
    orders = (tuple(text for k in range(40) for text in (f"{stages[k // 20]}F{k}", f"2F{k}")),)
    assert read(orders_to_json(orders)) == orders


def later(text: str, by: int) -> str:
    head, k, tail = module._parts(text)
    return f"{head}{k + by}{tail}" if k >= 0 else text


def test_a_long_schedule_is_written_as_its_steady_state_and_ranks_alike_once(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = uniform_costs(4, 1, 10, 10, 10)
    schedule = build_schedule("1f1b", costs, 64)
    orders = [tuple(map(str, order)) for order in schedule.orders for _ in range(2)]
    assert orders_to_json(orders) == list(map(list, orders))
    monkeypatch.setattr(module, "LONG", 100)
    short = orders_to_json(orders)
    assert short[1] == {"same_as": 0}
    assert short[6] == [{"repeat": 64, "step": 1, "actions": ["3F0", "3B0"]}]
    assert read(short) == tuple(orders)


FAULTS: dict[str, tuple[list[object], str]] = {
    "a rank behind": ([{"same_as": 0}], "/ranks/0/actions/same_as"),
    "a step of nothing": ([[{"repeat": 2, "step": 0, "actions": ["0F0"]}]], "/ranks/0/actions/0/step"),
    "nothing repeated": ([[{"repeat": 2, "step": 1, "actions": []}]], "/ranks/0/actions/0/actions"),
    "no micro-batch": ([[{"repeat": 2, "step": 1, "actions": ["0OPT"]}]], "/ranks/0/actions/0/actions"),
    "too many": ([["0F0", {"repeat": 10**7, "step": 1, "actions": ["0F1"]}]], "/ranks/0/actions/1/repeat"),
    "an unknown key": ([[{"repeat": 2, "step": 1, "actions": ["0F0"], "of": 1}]], "/ranks/0/actions/0: unknown key"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_an_order_is_refused_with_its_place(name: str) -> None:
    rows, place = FAULTS[name]
    with pytest.raises(InvalidInput) as caught:
        read(rows)
    assert place in str(caught.value)
