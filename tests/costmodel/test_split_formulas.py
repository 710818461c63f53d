"""Weight halves by formula: I, then W, leave the gradients of the undivided backward, to the bit."""

from collections import Counter, deque
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import capture
from costmodel.capture.models import load_model
from costmodel.capture.parts import Part, extract
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Deferred, Queue, WeightHalf, run_in_turn
from costmodel.capture.split_formulas import ConvolutionHalf, Geometry, LinearHalf
from costmodel.model.graph import LOSS

aten = torch.ops.aten
PLAIN = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
TRANSPOSED = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}


def part_of(module: nn.Module, inputs: torch.Tensor) -> Part:
    model = TrainingModel("own", module, (inputs,), {}, None, False, lambda out: out.square().mean(), {}, len(inputs))
    captured = capture(model)
    return extract(captured, captured.operators)


ANY_PART = part_of(nn.Linear(2, 2), torch.ones(1, 2))


def single_call(target: Any, parameters: list[torch.Tensor], rest: tuple[Any, ...]) -> Part:
    """A part of one call: its input comes in, its parameters are the part's own."""
    graph = fx.Graph()
    inputs = graph.placeholder("x")
    names = ["weight", "bias"][: len(parameters)]
    nodes = [graph.get_attr(name) for name in names]
    attributes = {name: nn.Parameter(value) for name, value in zip(names, parameters, strict=True)}
    absent = [None] * (2 - len(parameters))
    graph.output((graph.call_function(target, (inputs, *nodes, *absent, *rest)),))
    return replace(ANY_PART, module=fx.GraphModule(attributes, graph))


def gradients(part: Part, inputs: torch.Tensor, queue: Queue, repeats: int = 2) -> tuple[list[Any], list[Any]]:
    """Gradients of input and parameters after some micro-batches; and the kinds of weight halves that were queued."""
    leaf, halves = inputs.detach().requires_grad_(), []
    parameters = [p for p in part.module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    outs = [part.module(leaf * (1 + repeat))[0] for repeat in range(repeats)]
    for out in outs:
        torch.manual_seed(0)
        out.backward(torch.randn_like(out))
        waiting = queue.drain()
        halves += [type(half) for half in waiting]
        for half in waiting:
            half.run()
    return [leaf.grad, *(parameter.grad for parameter in parameters)], halves


def layout(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that have any."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def assert_same(part: Part, inputs: torch.Tensor, kind: type) -> None:
    queue = Queue()
    halves = split_part(part, queue)
    expected, _ = gradients(part, inputs, queue)
    found, kinds = gradients(halves, inputs, queue)
    assert kinds == [kind] * 2
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)  # rounding differs where memory lies otherwise
        assert layout(one) == layout(other)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, list[torch.Tensor], tuple[Any, ...], torch.Tensor]:
    """An overload, its parameters, the arguments after them and an input."""

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=size, max_size=size))

    size, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    into, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    transposed, has_bias, by_name = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    kernel, stride, dilation = each(1, 3), each(1, 2), each(1, 2)
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    extra = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    torch.manual_seed(draw(st.integers(0, 99)))
    first, second = (into, out) if transposed else (out, into)
    parameters = [torch.randn(first, second // groups, *kernel), *([torch.randn(out)] if has_bias else [])]
    inputs = torch.randn(draw(st.integers(1, 3)), into, *(draw(st.integers(5, 7)) for _ in range(size)))
    if draw(st.booleans()) and size > 1:
        inputs = inputs.to(memory_format=torch.channels_last if size == 2 else torch.channels_last_3d)  # type: ignore[call-overload]
    if not by_name:
        return aten.convolution.default, parameters, (stride, padding, dilation, transposed, extra, groups), inputs
    if transposed:
        return TRANSPOSED[size], parameters, (stride, padding, extra, groups, dilation), inputs
    return PLAIN[size], parameters, (stride, padding, dilation, groups), inputs


@settings(deadline=None)  # the clock judges no test
@given(convolutions())
def test_i_then_w_of_any_convolution_leave_the_undivided_gradients_in_the_same_layout(drawn: Any) -> None:
    target, parameters, rest, inputs = drawn
    assert_same(single_call(target, parameters, rest), inputs, ConvolutionHalf)


@pytest.mark.parametrize("target", [*PLAIN.values(), *TRANSPOSED.values()])
@pytest.mark.parametrize("rest", [(), ([2],)])
def test_arguments_left_out_or_given_once_count_in_every_dimension(target: Any, rest: tuple[Any, ...]) -> None:
    size = {**{v: k for k, v in PLAIN.items()}, **{v: k for k, v in TRANSPOSED.items()}}[target]
    part = single_call(target, [torch.randn(2, 2, *[2] * size), torch.randn(2)], rest)
    queue = Queue()
    split_part(part, queue).module(torch.randn(1, 2, *[4] * size, requires_grad=True))[0].sum().backward()
    (half,) = queue.drain()
    assert isinstance(half, ConvolutionHalf)
    ones, stride = (1,) * size, (2,) * size if rest else (1,) * size
    assert half.geometry == Geometry(stride, (0,) * size, ones, target in TRANSPOSED.values(), (0,) * size, 1)
    assert_same(part, torch.randn(1, 2, *[4] * size), ConvolutionHalf)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (6,)])
def test_i_then_w_of_a_linear_layer_leave_the_undivided_gradients(bias: bool, shape: tuple[int, ...]) -> None:
    parameters = [torch.randn(5, 6), *([torch.randn(5)] if bias else [])]
    assert_same(single_call(aten.linear.default, parameters, ()), torch.randn(shape), LinearHalf)


@pytest.mark.parametrize(("padding", "shape"), [("same", (2, 3, 6)), ("valid", (2, 3, 6)), ([1], (3, 6))])
def test_padding_by_a_word_and_an_input_without_batch_take_the_general_way(padding: Any, shape: Any) -> None:
    target = aten.conv1d.padding if isinstance(padding, str) else aten.conv1d.default
    part = single_call(target, [torch.randn(4, 3, 3), torch.randn(4)], ([1], padding))
    assert_same(part, torch.randn(shape), Deferred)


def test_a_frozen_bias_takes_the_general_way() -> None:
    part = single_call(aten.conv1d.default, [torch.randn(4, 3, 3), torch.randn(4)], ())
    part.module.bias.requires_grad_(False)
    assert_same(part, torch.randn(2, 3, 6), Deferred)


def test_under_autocast_the_general_way_is_taken() -> None:
    part = single_call(aten.conv1d.default, [torch.randn(4, 3, 3), torch.randn(4)], ())
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(part, torch.randn(2, 3, 6), Deferred)


def test_an_input_without_gradient_leaves_the_same_weight_gradients() -> None:
    part = part_of(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)), torch.randn(2, 3, 6, 6)
    )
    queue, inputs = Queue(), torch.randn(2, 3, 6, 6)
    halves = split_part(part, queue)
    found = []
    for module in (part.module, halves.module):
        module.zero_grad()
        module(inputs)[0].square().sum().backward()
        waiting = queue.drain()
        for half in waiting:
            half.run()
        found.append([parameter.grad for parameter in module.parameters()])
    assert [type(half) for half in waiting] == [ConvolutionHalf, Deferred]
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", ["resnet50", "unet3d", "yolo", "inception"])
def test_convolutional_zoo_models_have_the_same_gradients_in_two_halves_to_the_bit(name: str) -> None:
    model = load_model(f"zoo:{name}:small", 2)
    captured = capture(model, 2)
    whole, queue, values = extract(captured, captured.operators), Queue(), captured.bind(model)
    found = []
    for part in (whole, split_part(whole, queue)):
        model.module.zero_grad()
        torch.manual_seed(0)
        part(values, model.targets)[LOSS].backward()
        waiting = queue.drain()
        for half in waiting:
            half.run()
        found.append([parameter.grad for parameter in model.module.parameters()])
    assert Counter(map(type, waiting))[Deferred] == 1, "all but the first, whose input has no gradient"
    assert all(map(torch.equal, *found))


def test_complex_numbers_take_the_general_way() -> None:
    part = single_call(aten.conv1d.default, [torch.randn(4, 3, 3, dtype=torch.complex64)], ())
    assert_same(part, torch.randn(2, 3, 6, dtype=torch.complex64), Deferred)


def test_a_weight_half_does_not_keep_alive_what_came_before_its_input() -> None:
    part = single_call(aten.conv1d.default, [torch.randn(4, 3, 3)], ())
    queue = Queue()
    split_part(part, queue).module(torch.randn(2, 3, 6, requires_grad=True).exp())[0].sum().backward()
    (half,) = queue.drain()
    assert isinstance(half, ConvolutionHalf)
    assert (half.inputs.grad_fn, half.gradient.grad_fn) == (None, None)


def test_a_weight_half_that_has_run_lets_go_of_what_it_holds_before_the_next_one_runs() -> None:
    seen: list[bool] = []

    class Watching(LinearHalf):
        def run(self) -> None:
            seen.append(watched() is None)
            super().run()

    first, weight = torch.ones(2, 3), nn.Parameter(torch.ones(3, 3))
    watched = ref(first)
    halves: deque[WeightHalf] = deque([Watching(first, torch.ones(2, 3), weight, None)])
    halves.append(Watching(torch.ones(2, 3), torch.ones(2, 3), weight, None))
    del first
    run_in_turn(halves)
    assert seen == [False, True]
