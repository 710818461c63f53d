"""Split backward: I gives the input gradients at once, W the weight gradients when the plan says so.

Every call whose weight is a trainable parameter (linear, convolution, embedding, the matrix products) is made so that
its weight gradient waits (`split_calls`); linear layers and convolutions by formulas that are written down
(`split_formulas`), which is quicker. In a part's program such calls are nodes, in the user's modules torch's functions
(`split_functions`). Leaves out small parameters (norms, lone biases) and those with hooks: theirs come with I.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from costmodel.capture.module_calls import MadeCall
from costmodel.capture.parts import Part
from costmodel.capture.shapes import fetch
from costmodel.capture.split_calls import Deferring, Queue, is_hooked
from costmodel.capture.split_formulas import formula_of
from costmodel.capture.split_functions import SplitFunctions

_aten = torch.ops.aten
SPLITTABLE = frozenset(
    overload
    for packet in (
        _aten.linear,
        _aten.conv1d,
        _aten.conv2d,
        _aten.conv3d,
        _aten.conv_transpose1d,
        _aten.conv_transpose2d,
        _aten.conv_transpose3d,
        _aten.convolution,
        _aten.addmm,
        _aten.mm,
        _aten.bmm,
        _aten.baddbmm,
        _aten.matmul,
        _aten.embedding,
        _aten.embedding_bag,
    )
    for overload in (getattr(packet, name) for name in packet.overloads())  # type: ignore[no-untyped-call]
)
"""Operators with a weight whose gradient can wait."""

_VIEWS = frozenset(
    {_aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.view.default, _aten.reshape.default,
     _aten.unsqueeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.numpy_T.default}
)  # fmt: skip
"""What may come between a parameter and the call that uses it as its weight."""


class _Call(nn.Module):
    """One splittable call of a part's program."""

    def __init__(self, node: fx.Node, weights: Mapping[fx.Node, nn.Parameter], queue: Queue) -> None:
        super().__init__()
        self._deferring, self.tensors = Deferring.of(node.target, node.args, node.kwargs, weights, queue)
        self._formula = formula_of(node, weights)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Make the call so that its weight gradient waits; just make it without gradients, or where it has hooks."""
        if not torch.is_grad_enabled() or any(map(is_hooked, self._deferring.weights)):
            return self._deferring.compute(tensors)
        if self._formula is not None and self._formula.takes(tensors[0]):
            return self._formula.apply(self._deferring.queue.add, *tensors)
        return self._deferring(tensors)

    __call__ = forward  # nothing hooks into these calls, and nn.Module's look for hooks takes microseconds in each


def split_part(part: Part, queue: Queue) -> Part:
    """Return a part that computes the same and leaves its weight gradients in `queue`; in the modules it calls, too."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(part.module.graph, copies)
    graph.output(output)
    module = fx.GraphModule(part.module, graph)
    weights = _weights(module)
    for node in list(graph.nodes):
        made = fetch(module, node.target) if node.op == "call_module" else None
        if isinstance(made, MadeCall):
            setattr(module, str(node.target), made.within(partial(SplitFunctions, queue)))
        if node.op != "call_function" or node.target not in SPLITTABLE or not _plain(node):
            continue
        if any(source in weights for source in node.all_input_nodes):
            name = f"deferred_{node.name}"
            halved = _Call(node, weights, queue)
            module.add_submodule(name, halved)
            with graph.inserting_before(node):
                call = graph.call_module(name, tuple(halved.tensors))
            call.meta = node.meta
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    module.recompile()
    return replace(part, module=module)


def _weights(module: fx.GraphModule) -> dict[fx.Node, nn.Parameter]:
    """Return the nodes that are a trainable parameter or a view of one."""
    found: dict[fx.Node, nn.Parameter] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = fetch(module, node.target)
            if isinstance(value, nn.Parameter) and value.requires_grad:
                found[node] = value
        elif node.target in _VIEWS and node.args[0] in found:
            found[node] = found[node.args[0]]
    return found


def _plain(node: fx.Node) -> bool:
    """Whether every computed argument is a tensor by itself, neither a number nor within a list."""
    direct = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node)]
    computed = [source for source in direct if source.op not in ("get_attr", "placeholder")]
    return set(direct) == set(node.all_input_nodes) and all(
        isinstance(source.meta.get("val"), torch.Tensor) for source in computed
    )
