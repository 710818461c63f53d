"""Stages call the user's own modules where they hold these whole, with the same numbers; what they do not, they say."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import costmodel.capture.export as exporting
from costmodel.capture.batches import TrainingModel
from costmodel.capture.calls import Notes
from costmodel.capture.capture import Capture, capture
from costmodel.capture.module_calls import CUT
from costmodel.capture.parts import extract
from costmodel.errors import DoesNotMatch
from tests.properties.module_promises import captured_model, layer_of, numbers, of_case, parts_of, share_in_modules


@pytest.mark.parametrize("case", range(0, 36, 5))
def test_stages_of_modules_have_the_loss_and_gradients_of_the_flat_program(case: int) -> None:
    assert list(of_case(case)) == []


@pytest.mark.parametrize("name", ["zoo:gpt:small", "tests.support.hugging_face_models:llama"])
def test_noting_calls_changes_no_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(*_: object) -> Any:
        yield Notes(())

    known = captured_model(name)
    monkeypatch.setattr(exporting, "noting_calls", nothing)
    plain = capture(known.model)
    assert (plain.operators, plain.flows, plain.inputs) == (known.operators, known.flows, known.inputs)


@pytest.mark.parametrize(
    "name", ["zoo:gpt:small", "zoo:t5:small", "zoo:moe:small", "tests.support.hugging_face_models:mixtral"]
)
def test_cuts_between_layers_leave_nearly_all_operators_in_modules(name: str) -> None:
    captured = captured_model(name)
    of, operators = layer_of(captured), list(captured.operators)
    borders = [i for i in range(1, len(operators)) if of.get(operators[i], "") != of.get(operators[i - 1], "")]
    middle = borders[len(borders) // 2]
    shares = [
        share_in_modules(part)
        for part in parts_of(captured, [operators[:middle], operators[middle:]], with_modules=True)
    ]
    assert sum(inside for inside, _ in shares) >= 0.95 * sum(number for _, number in shares)


class Block(nn.Module):
    """A linear layer with what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.note = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: torch.Tensor, scale: Any = None) -> Any:
        return self.lift(x).relu()


class Dropping(Block):
    def forward(self, x: torch.Tensor, scale: Any = None) -> Any:
        return nn.functional.dropout(self.lift(x), 0.5)


class Looking(Block):
    def forward(self, x: torch.Tensor, scale: Any = None) -> Any:
        return self.lift(x) * self.note


class Checkpointing(Block):
    def forward(self, x: torch.Tensor, scale: Any = None) -> Any:
        return checkpoint(self.lift, x, use_reentrant=False)


class Leaking(Block):
    def forward(self, x: torch.Tensor, scale: Any = None) -> Any:
        self.seen = self.lift(x)
        return self.seen.relu()


class Stack(nn.Module):
    """Two blocks, the second one given what a head makes of the input too."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.head, self.blocks = nn.Linear(4, 1), nn.ModuleList([Block(), second])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.head(x)
        first, second = self.blocks
        x = first(x)
        if isinstance(second, Looking):
            second.note, scale = scale, None
        out = second(x, scale)
        scale = 0.0 if scale is None else scale
        return out + scale + getattr(second, "seen", 0.0)


def captured_stack(second: nn.Module) -> Capture:
    model = TrainingModel("stack", Stack(second), (torch.ones(2, 4),), {}, None, False, lambda out: out.sum(), {}, 2)
    return capture(model)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (Dropping(), "it draws random numbers, which would depend on the cut"),
        (Looking(), "it reads linear, which is none of its arguments"),
        (Leaking(), "linear_2 is read behind it and none of what it returns"),
    ],
)
def test_what_a_stage_does_not_call_it_says_with_the_reason(second: nn.Module, reason: str) -> None:
    captured = captured_stack(second)
    parts = parts_of(captured, [list(captured.operators)[:1], list(captured.operators)[1:]], with_modules=True)
    called = [call.path for part in parts for call in part.calls]
    assert parts[1].left["blocks.1"] == reason
    assert "blocks.0" in called
    assert "blocks.1" not in called


def test_an_argument_that_a_module_does_not_read_is_no_reason_to_send_it() -> None:
    captured = captured_stack(Block())
    linear, rest = list(captured.operators)[:1], list(captured.operators)[1:]
    block = [name for name in rest if captured.groups.get(name) and captured.groups[name].module.startswith("blocks.1")]
    part = extract(captured, block, [captured.groups[block[-1]].name], with_modules=True)
    assert linear
    assert part.left["blocks.1"] == "it is given linear, which it does not read and no stage sends"


def test_a_module_that_recomputes_by_itself_is_not_called_for_the_plan_decides() -> None:
    captured = captured_stack(Checkpointing())
    assert {call.path for call in captured.calls} >= {"blocks.0", "head"}
    assert not {"", "blocks.1"} & {call.path for call in captured.calls}


def test_a_module_that_a_cut_goes_through_is_left() -> None:
    captured = captured_model("zoo:gpt:small")
    operators, of = list(captured.operators), layer_of(captured)
    layer = of[operators[len(operators) // 2]]
    inside = [i for i, name in enumerate(operators) if of.get(name) == layer][2]
    first, second = parts_of(captured, [operators[:inside], operators[inside:]], with_modules=True)
    assert first.left[layer] == second.left[layer] == CUT


class Twice(nn.Module):
    """One layer called two times, with an identity between."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.same = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lift(self.same(self.lift(x).tanh())) * 2


def test_a_module_that_is_called_twice_is_called_twice() -> None:
    model = TrainingModel("twice", Twice(), (torch.ones(2, 4),), {}, None, False, lambda out: out.sum(), {}, 2)
    captured = capture(model)
    operators = list(captured.operators)
    flat, own = (parts_of(captured, [operators[:2], operators[2:]], with_modules=m) for m in (False, True))
    assert [[call.path for call in part.calls] for part in own] == [["lift"], ["lift"]]
    assert all(torch.equal(value, numbers(own)[name]) for name, value in numbers(flat).items())


@dataclass
class Pair:
    """A class of which nothing tells where its tensors are."""

    x: torch.Tensor


class Unpacking(Block):
    def forward(self, x: Any, scale: Any = None) -> Any:
        return self.lift(x.x)


class Packing(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](Pair(self.blocks[0](x)))


def test_a_module_whose_arguments_hide_tensors_is_not_called() -> None:
    model = TrainingModel("pair", Packing(Unpacking()), (torch.ones(2, 4),), {}, None, False, lambda o: o.sum(), {}, 2)
    paths = [call.path for call in capture(model).calls]
    assert "blocks.0" in paths
    assert "blocks.1" not in paths


class Fickle(nn.Module):
    """Returns a pair where it once returned a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.pairs = nn.Linear(4, 4), False

    def forward(self, x: torch.Tensor) -> Any:
        out = self.lift(x)
        return (out, out) if self.pairs else out


def test_a_module_that_returns_something_else_than_captured_is_an_error() -> None:
    fickle = Fickle()
    model = TrainingModel(
        "fickle", nn.Sequential(fickle, nn.ReLU()), (torch.ones(2, 4),), {}, None, False, lambda out: out.sum(), {}, 2
    )
    captured = capture(model)
    part = extract(captured, ["linear"], ["linear"], with_modules=True)
    fickle.pairs = True
    with pytest.raises(DoesNotMatch, match="the module 0 returns"):
        part(captured.bind(model))
