"""The fallback where torch.export refuses: one eager forward, written down call by call.

Python that branches on values has taken one way then, and sizes are numbers: the program holds for these
inputs at this micro-batch size alone. Good enough to plan with, never run by the executor. The calls of
one leaf module are one operator. Leaves out what no dispatcher sees (kernels outside torch).
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.capture.batches import TrainingModel, describe
from costmodel.capture.custom_functions import OpaqueFunction, replacing_apply
from costmodel.capture.node_names import NodeCounts
from costmodel.capture.passes import CALL, mutated_arguments
from costmodel.errors import InvalidInput


def trace_eagerly(model: TrainingModel) -> tuple[fx.GraphModule, pytree.TreeSpec, NodeCounts]:
    """Run the model's forward once and return it as a flat program, with its output's structure and its calls' counts.

    Gradients flow in the program where they flowed in the run; random numbers are drawn anew.

    Raises
    ------
    InvalidInput
        When the output holds something in which tensors are not found.
    """
    trace = _Trace(model)
    with trace.modules_noted(), replacing_apply(trace.apply), torch.enable_grad():
        with trace:
            output = model.module(*model.args, **model.kwargs)
        leaves, spec = pytree.tree_flatten(output)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor | int | float | str | None):
                raise InvalidInput(
                    f"{model.name}: the model returns {describe(leaf)}; return tensors in tuples, lists, dicts or "
                    "dataclasses, or register the type with torch.utils._pytree"
                )
        trace.graph.output(tuple(trace.node_of(leaf) for leaf in leaves))
    return fx.GraphModule(trace.attributes, trace.graph), spec, trace.counts


class _Trace(TorchDispatchMode):
    """Notes every call below autograd as a node, by the tensors' storages and shapes."""

    def __init__(self, model: TrainingModel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.counts = NodeCounts()
        self.attributes: dict[str, Any] = {}
        self.model = model.module
        self.known: dict[Any, fx.Node] = {}
        self.held: list[StorageWeakRef] = []  # keeps a dead storage's address from being used again
        self.calls: list[tuple[str, int]] = []
        self.num_calls = 0
        self.silent = False
        self.names = {id(tensor): name for name, tensor in model.module.named_buffers()}
        self.names |= {id(tensor): name for name, tensor in model.module.named_parameters()}
        for leaf in pytree.tree_leaves((model.args, dict(model.kwargs))):
            node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
            if isinstance(leaf, torch.Tensor):
                self._know(leaf, node, leaf.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.silent:
            return func(*args, **kwargs)
        sources = pytree.tree_map(self.node_of, (args, kwargs))
        value = func(*args, **kwargs)
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
            self._note(func, sources, args, value)
        return value

    def apply(self, function: Any, original: Any, args: Any, kwargs: Any) -> Any:
        """Note a custom autograd function as one call."""
        sources = pytree.tree_map(self.node_of, (args, kwargs))
        self.silent = True
        try:
            value = original(*args, **kwargs)
        finally:
            self.silent = False
        self._note(OpaqueFunction.of(function), sources, args, value)
        return value

    def node_of(self, value: Any) -> Any:
        """Return the node that computed a tensor; one of a constant where nothing did."""
        if not isinstance(value, torch.Tensor):
            return value
        for requires_grad in (value.requires_grad, not value.requires_grad):
            found = self.known.get(_key(value, requires_grad))
            if found is not None:
                return found
        name = self.names.get(id(value), "constant").replace(".", "_") + f"_{len(self.attributes)}"
        self.attributes[name] = value
        node = self.graph.create_node("get_attr", name)
        self._know(value, node, value.requires_grad)
        return node

    @contextmanager
    def modules_noted(self) -> Iterator[None]:
        """Within the block the modules whose forward runs are known."""
        handles = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name, module)))
            handles.append(module.register_forward_hook(lambda *_: self._leave()))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, name: str, module: nn.Module) -> Any:
        is_leaf = not any(True for _ in module.children())

        def enter(*_: Any) -> None:
            self.num_calls += 1
            self.calls.append((name, self.num_calls if is_leaf else 0))
            self.counts.begin(name, self.graph)

        return enter

    def _leave(self) -> None:
        self.counts.end(self.calls.pop()[0], self.graph)

    def _note(self, target: Any, sources: Any, args: Any, value: Any) -> None:
        node = self._meant(self.graph.call_function(target, *sources))
        flows = torch.is_grad_enabled() and target is not torch.ops.aten.detach.default
        passes = any(t.requires_grad for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor))
        several = isinstance(value, list | tuple)
        node.meta["val"] = () if several else None
        changes = bool(mutated_arguments(node))
        for i, leaf in enumerate(value if several else [value]):
            if not isinstance(leaf, torch.Tensor):
                continue
            made = self._meant(self.graph.call_function(operator.getitem, (node, i))) if several else node
            if passes and not torch.is_grad_enabled() and not changes and leaf.is_floating_point():
                made = self._meant(self.graph.call_function(torch.ops.aten.detach.default, (made,)))
            self._know(leaf, made, flows and passes and leaf.is_floating_point())

    def _meant(self, node: fx.Node) -> fx.Node:
        if self.calls:
            name, call = self.calls[-1]
            path = f"model.{name}" if name else "model"
            node.meta["nn_module_stack"] = {path: (path, "")}
            if call:
                node.meta[CALL] = call
        return node

    def _know(self, value: torch.Tensor, node: fx.Node, requires_grad: bool) -> None:
        self.held.append(StorageWeakRef(value.untyped_storage()))  # type: ignore[no-untyped-call]
        self.known[_key(value, requires_grad)] = node


def _key(value: torch.Tensor, requires_grad: bool) -> Any:
    """Return what tells a value from others: autograd wraps views anew, so the object itself does not."""
    storage = value.untyped_storage()._cdata
    return storage, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype, requires_grad
