"""What keeps a profile true and whole: a device that settles, an optimizer that does not fit, real indices, compile."""

import pytest
import torch
from torch import nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.clock import HostClock
from costmodel.capture.models import load_model
from costmodel.capture.parts import extract
from costmodel.errors import InvalidInput
from costmodel.profiling.dry import load_on_meta
from costmodel.profiling.measure.blocks import Block, make_runnable
from costmodel.profiling.measure.optimizer import time_optimizer
from costmodel.profiling.measure.rounds import SETTLE_S, settle, time_whole
from costmodel.profiling.options import Options
from tests.support.virtual_device import VirtualDevice


def small() -> TrainingModel:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return TrainingModel("small", model, (torch.randn(2, 4),), {}, None, False, lambda out: out.square().mean(), {}, 2)


def test_steps_run_until_a_device_whose_clocks_fall_keeps_its_pace():
    model = small()
    captured = capture(model)
    whole, pace = extract(captured, captured.operators), [0]

    def duration_ns(name: str) -> int:
        pace[0] += 1
        return 1_000_000 + max(0, 1_000_000 - 250 * pace[0])

    with VirtualDevice(duration_ns) as device:
        settle(whole, model, device)
        warm = [time_whole(whole, model, device).forward_ns for _ in range(2)]
        kernels, start = pace[0], device.host_ns()
        settle(whole, model, device)
        again_s = (device.host_ns() - start) / 1e9
    assert kernels > 4_000
    assert warm[0] == pytest.approx(warm[1], rel=0.01)
    assert 2 <= again_s < 2.1 < SETTLE_S


def test_a_cpu_is_not_warmed_for_its_clocks(monkeypatch):
    monkeypatch.setattr("costmodel.profiling.measure.rounds.time_whole", None)
    settle(None, None, HostClock())


def test_an_optimizer_that_does_not_fit_is_measured_at_a_share_and_told_for_the_whole(monkeypatch):
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    steps, spans = [], torch.optim.Adam.step

    def step(self, *args):
        held = sum(p.numel() for group in self.param_groups for p in group["params"])
        if held > 3_000:
            raise torch.OutOfMemoryError("states")
        steps.append(held)
        return spans(self, *args)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    found = time_optimizer(module, TickingClock())
    assert set(steps) == {2 * (1024 + 16)}
    assert found == 4 * TickingClock.SPAN_NS
    assert all(parameter.grad is None for parameter in module.parameters())


class TickingClock(HostClock):
    SPAN_NS = 1_000

    def mark(self) -> int:
        return 0

    def span_ns(self, start: int, end: int) -> int:
        return self.SPAN_NS


def test_an_optimizer_that_fits_in_no_share_says_so(monkeypatch):
    def step(self, *args):
        raise torch.OutOfMemoryError("never")

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    with pytest.raises(torch.OutOfMemoryError, match="never"):
        time_optimizer(nn.Linear(4, 4), HostClock())


@pytest.mark.parametrize(("spec", "rows"), [("zoo:llama3:small", 512), ("zoo:dlrm:small", 1000)])
def test_a_block_reads_many_rows_of_its_embedding(spec, rows):
    captured = capture(load_on_meta(Options(spec, (8,))), 8)
    reading = next(name for name, group in captured.groups.items() if "embedding" in group.kind)
    runnable = make_runnable(captured, Block((reading,), "one"), 8, torch.device("cpu"))
    whole = [value for value in runnable.model.args if not value.is_floating_point()]
    assert any(len(value.unique()) > min(rows, value.numel()) / 4 for value in whole)
    assert all(int(value.min()) >= 0 and int(value.max()) < rows for value in whole)
    time_whole(extract(runnable, runnable.operators), runnable.model, HostClock())


@pytest.mark.parametrize(
    ("name", "said"), [("compiled_whole", "the model is taken"), ("compiled_in_place", "0 is taken"), ("plain", "")]
)
def test_a_compiled_model_is_taken_plain_and_told(name, said):
    remark = load_model(f"{__name__}:{name}", 2).remark
    assert said in remark
    assert bool(said) == ("torch.compile" in remark)


def test_a_cuda_graphed_module_is_refused_by_name():
    with pytest.raises(InvalidInput, match=r"0 is a CUDA graph .* give the module as it was before"):
        load_model(f"{__name__}:graphed", 2)


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def plain():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (torch.randn(2, 4),), loss


def compiled_whole():
    model, inputs, own = plain()
    return torch.compile(model), inputs, own


def compiled_in_place():
    model, inputs, own = plain()
    model[0].compile()
    return model, inputs, own


def graphed():
    """As torch.cuda.make_graphed_callables leaves a module: its forward replaced by a function inside that one."""
    model, inputs, own = plain()

    def forward(*args):
        return args

    forward.__qualname__ = "make_graphed_callables.<locals>.make_graphed_forward.<locals>.new_fwd"
    model[0].forward = forward
    return model, inputs, own
