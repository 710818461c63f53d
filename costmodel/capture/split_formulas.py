"""The weight half of linear layers and convolutions by formula, for speed: most weights of most models are theirs.

The same products as autograd's own, by the same kernels, so the same numbers. Leaves out what takes the general way
of `split`: weights that are views of a parameter, padding given as a word, an input without batch or without gradient,
complex numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from costmodel.capture.draws import named_arguments

_aten = torch.ops.aten
_CONVOLUTIONS = {
    _aten.conv1d.default: 1,
    _aten.conv2d.default: 2,
    _aten.conv3d.default: 3,
    _aten.conv_transpose1d.default: 1,
    _aten.conv_transpose2d.input: 2,
    _aten.conv_transpose3d.input: 3,
    _aten.convolution.default: 0,
}
"""The dimensions over which each slides; ``convolution`` has a number for each in its arguments."""

_TRANSPOSED = frozenset({_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input})


class Geometry(NamedTuple):
    """What ``aten::convolution`` takes after its tensors, in its order."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


@dataclass(slots=True)
class LinearHalf:
    """The weight half of one linear call: its input, the gradient of its output, its parameters."""

    inputs: torch.Tensor
    gradient: torch.Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Whose ``.grad`` it fills."""
        return _weights(self.weight, self.bias)

    def run(self) -> None:
        """Compute and accumulate."""
        with torch.no_grad():
            rows = self.gradient.reshape(-1, self.gradient.shape[-1])
            _accumulate(self.weight, rows.t().mm(self.inputs.reshape(-1, self.inputs.shape[-1])))
            if self.bias is not None:
                _accumulate(self.bias, rows.sum(0))


@dataclass(slots=True)
class ConvolutionHalf:
    """The weight half of one convolution: its input, the gradient of its output, its parameters, how it slides."""

    inputs: torch.Tensor
    gradient: torch.Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None
    geometry: Geometry

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Whose ``.grad`` it fills."""
        return _weights(self.weight, self.bias)

    def run(self) -> None:
        """Compute and accumulate."""
        bias = self.bias
        with torch.no_grad():
            sizes, mask = None if bias is None else bias.shape, (False, True, bias is not None)
            _, by_weight, by_bias = _aten.convolution_backward.default(
                self.gradient, self.inputs, self.weight, sizes, *self.geometry, mask
            )
            _accumulate(self.weight, by_weight)
            if bias is not None:
                _accumulate(bias, by_bias)


def _weights(weight: nn.Parameter, bias: nn.Parameter | None) -> tuple[nn.Parameter, ...]:
    return (weight,) if bias is None else (weight, bias)


Leave = Callable[[LinearHalf | ConvolutionHalf], None]
"""Takes a weight half that is to run later."""


@dataclass(frozen=True, slots=True)
class Formula:
    """How the weight half of one call is computed: its parameters, for a convolution how it slides.

    `num_dimensions` are the weight's.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    geometry: Geometry | None
    num_dimensions: int

    def takes(self, inputs: torch.Tensor) -> bool:
        """Whether it holds for an input: one with a gradient, no casts, for a convolution a batch."""
        return (
            inputs.requires_grad
            and (self.geometry is None or inputs.dim() == self.num_dimensions)
            and not torch.is_autocast_enabled(inputs.device.type)
        )

    def apply(
        self, leave: Leave, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Make the call without its parameters' gradients; once its output's arrives, `leave` gets the weight half."""
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if self.geometry is None:
            out = torch.nn.functional.linear(inputs, weight, bias)
        else:
            out = torch.convolution(inputs, weight, bias, *self.geometry)
        half = self._half
        saved = inputs.detach()  # with its own graph, all that came before would live as long as the weight half
        shape = out.shape
        # A call in place on a view (which a linear map of three dimensions gives) is recorded behind its base.
        made = out._base if out._is_view() else out

        def before(gradients: tuple[torch.Tensor, ...]) -> None:
            leave(half(saved, gradients[0].reshape(shape)))

        made.grad_fn.register_prehook(before)  # type: ignore[union-attr]
        return out

    def _half(self, inputs: torch.Tensor, gradient: torch.Tensor) -> LinearHalf | ConvolutionHalf:
        if self.geometry is None:
            return LinearHalf(inputs, gradient, self.weight, self.bias)
        return ConvolutionHalf(inputs, gradient, self.weight, self.bias, self.geometry)


def formula_of(node: fx.Node, weights: Mapping[fx.Node, nn.Parameter]) -> Formula | None:
    """Return the formula of a call; None where only the graph that autograd records for it can tell.

    Parameters
    ----------
    node : torch.fx.Node
        A call of an ATen operator.
    weights : mapping
        Nodes that are a trainable parameter or a view of one.
    """
    if node.target is not _aten.linear.default and node.target not in _CONVOLUTIONS:
        return None
    arguments = named_arguments(node.target, node.args, node.kwargs)
    tensors = [arguments[name] for name in ("input", "weight", "bias") if arguments[name] is not None]
    own = [weights[source] for source in tensors[1:] if source.op == "get_attr" and source in weights]
    if node.all_input_nodes != tensors or len(own) < len(tensors) - 1 or tensors[0] in weights:
        return None
    return _formula(node.target, arguments, own)


def formula_for(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Formula, list[torch.Tensor]] | None:
    """Return the formula of a call that is made now, and its tensors; None as for `formula_of`."""
    arguments = named_arguments(target, args, kwargs)
    if isinstance(arguments.get("padding"), str):
        return None
    tensors = [arguments[name] for name in ("input", "weight", "bias") if arguments[name] is not None]
    own = [value for value in tensors[1:] if isinstance(value, nn.Parameter) and value.requires_grad]
    if len(own) < len(tensors) - 1 or isinstance(tensors[0], nn.Parameter):
        return None
    formula = _formula(target, arguments, own)
    return (formula, tensors) if formula is not None and formula.takes(tensors[0]) else None


def _formula(target: Any, arguments: Mapping[str, Any], own: Sequence[nn.Parameter]) -> Formula | None:
    weight, bias = own[0], own[1] if len(own) > 1 else None
    geometry = None if target is _aten.linear.default else _geometry(target, arguments)
    return Formula(weight, bias, geometry, weight.dim()) if weight.is_floating_point() else None


def _geometry(target: Any, arguments: Mapping[str, Any]) -> Geometry:
    num_dimensions = _CONVOLUTIONS[target] or len(arguments["stride"])

    def each(name: str) -> tuple[int, ...]:
        given = arguments.get(name, (0,))
        values = (given,) if isinstance(given, int) else tuple(given)
        return values * num_dimensions if len(values) == 1 else values

    transposed = arguments.get("transposed", target in _TRANSPOSED)
    sliding = each("stride"), each("padding"), each("dilation")
    return Geometry(*sliding, transposed, each("output_padding"), arguments["groups"])


def _accumulate(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    """Add to ``.grad``; the first one takes the parameter's own layout, as autograd's does."""
    if parameter.grad is not None:
        parameter.grad.add_(gradient)
        return
    strides = zip(parameter.shape, parameter.stride(), gradient.stride(), strict=True)
    same = all(size == 1 or one == other for size, one, other in strides)
    parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)
