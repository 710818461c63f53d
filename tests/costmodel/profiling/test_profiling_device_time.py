"""Device time by operator, on a device in virtual time whose kernels take what the test says."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.clock import DeviceClock, EventClock, traced
from costmodel.capture.parts import extract
from costmodel.model.launches import QUEUE, compose, steady
from costmodel.profiling.measure.assemble import Assembled, assemble
from costmodel.profiling.measure.backward_split import weight_shares
from costmodel.profiling.measure.blocks import like
from costmodel.profiling.measure.records import sum_kernels
from costmodel.profiling.measure.rounds import measure_round
from costmodel.profiling.measure.timing import measure_mark_cost
from costmodel.profiling.measure.walk import Walk
from tests.support.virtual_device import VirtualDevice

CPU = torch.device("cpu")
TABLE = [(100, 4), (400, 16), (1500, 60)]
LAUNCH_BOUND = (10, 4)
SLOW_NS, FAST_NS = 33_000, 16_500
PRODUCTS = {"mm", "addmm", "bmm"}
KERNELS = {
    "linear": ((1, 0), (2, 1)),
    "gelu": ((0, 1), (0, 1)),
    "layer_norm": ((0, 1), (0, 1)),
    "mul": ((0, 1), (0, 1)),
}
"""By kind of operator: matrix products and small kernels, of forward and of backward."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(self.norm(x)))) * 0.5


def captured_blocks() -> Capture:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(6)))
    inputs = (torch.randn(4, 8, requires_grad=True),)
    return capture(TrainingModel("blocks", model, inputs, {}, None, False, torch.sum, {}, 4))


def device_of(product_us: int, small_us: int, call_ns: int) -> VirtualDevice:
    def duration_ns(name: str) -> int:
        return 1000 * (product_us if name in PRODUCTS else small_us)

    return VirtualDevice(duration_ns, call_ns, round(call_ns * 13 / 33))


def measured(device: VirtualDevice, captured: Capture) -> Assembled:
    whole, walk = extract(captured, captured.operators), Walk(captured)
    with device:
        marks = measure_mark_cost(device, CPU)
        rounds = [measure_round(whole, walk, captured.model, device, marks) for _ in range(4)]
    shares = dict.fromkeys(captured.operators, 0.5)
    # the first step makes the gradients that the others add to
    return assemble(operator_graph(captured, (4,)), [rounds[1:]], [shares])


@pytest.mark.parametrize("call_ns", [SLOW_NS, FAST_NS])
@pytest.mark.parametrize(("product_us", "small_us"), [LAUNCH_BOUND, *TABLE])
def test_every_operators_time_in_kernels_is_told_and_the_step_composed_of_both(product_us, small_us, call_ns):
    captured = captured_blocks()
    found = measured(device_of(product_us, small_us, call_ns), captured)
    checked = set()
    for name, times in zip(captured.operators[:-1], found.times, strict=False):
        kind, launches = captured.groups[name].kind, times.launches
        (products, small), (back_products, back_small) = KERNELS[kind]
        forward_us = products * product_us + small * small_us
        backward_us = back_products * product_us + back_small * small_us
        assert (launches.kernels_forward[0], launches.kernels_backward[0]) == (
            products + small,
            back_products + back_small,
        )
        if 1000 * (forward_us + backward_us) >= 0.01 * found.step_ns[0]:
            assert launches.device_forward_ns[0] / 1000 == pytest.approx(forward_us, rel=0.05), name
            assert launches.device_backward_ns[0] / 1000 == pytest.approx(backward_us, rel=0.05), name
            checked.add(kind)
    assert "linear" in checked or (product_us, small_us) == LAUNCH_BOUND
    assert found.unscaled["coverage"][0] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("kernels_us", "call_ns", "within"),
    [
        (LAUNCH_BOUND, SLOW_NS, 0.05),
        (LAUNCH_BOUND, FAST_NS, 0.05),
        ((1500, 60), SLOW_NS, 0.05),
        (TABLE[0], SLOW_NS, 0.22),
    ],
)
def test_parts_take_what_the_profile_says_and_where_host_and_device_are_even_a_fifth_more_or_less(
    kernels_us, call_ns, within
):
    captured, device = captured_blocks(), device_of(*kernels_us, call_ns)
    found, raw = measured(device, captured), captured.bind(captured.model)
    last = len(captured.operators) - 1
    for low, high in ((0, 5), (0, 13), (7, 22), (5, last), (20, last)):
        operators = captured.operators[low:high]
        inside = set(operators)
        flows = captured.flows.values()
        sends = [f.name for f in flows if f.producer in inside and not inside.issuperset(f.consumers)]
        part = extract(captured, operators, sends)
        values = {name: like(captured.describe(4), name, CPU) for name in part.receives}
        values.update({name: raw[name] for name in part.raw_inputs})
        with device:
            device.wait()
            start = device.mark()
            for _ in range(4):
                part(values)
            end = device.mark()
        forward_ns = sum(times.forward_ns[0] for times in found.times[low:high])
        assert forward_ns == pytest.approx(device.span_ns(start, end) / 4, rel=within)


def test_the_share_of_weight_gradients_is_that_of_kernels_and_not_of_their_launches():
    captured = captured_blocks()
    for product_us, small_us in TABLE:
        with device_of(product_us, small_us, SLOW_NS) as device:
            shares = weight_shares(captured, 4, device, 3)
        expected = (product_us + small_us) / (2 * product_us + small_us)
        assert shares["linear_1"] == pytest.approx(expected, rel=0.01)


def test_a_host_that_fills_the_launch_queue_is_held_up_and_pays_no_operator():
    device = device_of(1500, 1500, 1_000)
    with device:
        x = torch.ones(2)
        for _ in range(2 * QUEUE):
            x = x + 1
    assert device.host > (QUEUE - 1) * 1_500_000
    long, short = (1.0, 1500.0, 1.0), (30.0, 4.0, 1.0)
    assert sum(compose([long] * 2 * QUEUE)) == pytest.approx(2 * QUEUE * 1500, rel=1e-3)
    # behind a full queue only as many launches are covered as the queue holds
    assert sum(compose([long] * 2 * QUEUE + [short] * 10 * QUEUE)) > 2 * QUEUE * 1500 + 8 * QUEUE * 30


def test_calls_take_the_longer_of_host_and_device_and_a_call_without_kernels_only_the_hosts():
    assert compose([(30, 4, 1), (30, 0, 0), (30, 4, 1)]) == [34, 0, 60]
    assert compose([(30, 400, 1), (30, 4, 1), (30, 4, 1)]) == [430, 4, 4]
    assert steady([(30, 4, 1), (30, 4, 1)]) == [30, 30]
    assert steady([]) == []


def test_a_kernel_belongs_to_the_note_before_its_launch_however_late_it_runs():
    events = [
        *({"cat": "user_annotation", "name": f"m{i}", "ts": 10.0 * i, "dur": 0.0} for i in range(3)),
        *({"cat": "cuda_runtime", "name": "launch", "ts": t, "args": {"correlation": int(t)}} for t in (1, 5, 12, 25)),
        *({"cat": "kernel", "ts": 900.0, "dur": d, "args": {"correlation": c}} for c, d in ((1, 2), (5, 3), (12, 7))),
        {"cat": "gpu_memcpy", "ts": 950.0, "dur": 0.5, "args": {"correlation": 5}},
        {"cat": "kernel", "ts": 900.0, "dur": 11, "args": {"correlation": 99}},
        {"cat": "gpu_user_annotation", "name": "m1", "ts": 900.0, "dur": 40.0},
    ]
    sums = sum_kernels(events, "m", 3)
    assert sums.ns_before == (0, 5_500, 12_500)
    assert sums.kernels_before == (0, 3, 4)
    assert sums.unattributed_ns == 11_000
    with pytest.raises(ValueError, match="hold 3 of 4 notes"):
        sum_kernels(events, "m", 4)


def test_notes_are_found_in_what_torchs_profiler_writes_in_the_backward_too():
    clock = EventClock(CPU)
    assert isinstance(clock, DeviceClock)
    x = torch.ones(3, requires_grad=True)
    with traced([ProfilerActivity.CPU]) as events:
        clock.note("m0")
        loss = (x * 2).sum()
        loss.register_hook(lambda _: clock.note("m1"))
        loss.backward()
        clock.note("m2")
    assert sum_kernels(events, "m", 3).kernels_before == (0, 0, 0)
