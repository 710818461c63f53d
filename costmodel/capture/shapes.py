"""What every value of a program looks like at a micro-batch size, without computing it.

Runs the program on fake tensors (a plan-only one, whose shapes depend on values, for real): shape, dtype,
whether a gradient flows, and which values share a storage. Leaves out what autograd saves (kernels choose
that on the real device; `memory` looks there).
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape, dtype and whether a gradient flows; `storage` is equal for values that share memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    storage: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor as it is sent: contiguous."""
        count = 1
        for length in self.shape:
            count *= length
        return count * self.dtype.itemsize


@dataclass(frozen=True)
class Reach:
    """What gradients reach: autograd's nodes behind each value of a program, kept by their outputs alone."""

    nodes: Mapping[str, tuple[Node, ...]]

    def behind(self, names: Iterable[str]) -> frozenset[str]:
        """Return the values, by their nodes' names, that gradients of some values reach, themselves among them."""
        waiting: list[Node | None] = [node for name in names for node in self.nodes.get(name, ())]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [following for following, _ in node.next_functions]
        return frozenset(name for name, own in self.nodes.items() if not seen.isdisjoint(own))


def describe_values(
    module: fx.GraphModule, leaves: tuple[Any, ...], computed: bool = False, device: torch.device | None = None
) -> tuple[Mapping[str, tuple[TensorInfo, ...]], Reach]:
    """Return, for each node of a flat program, its tensors (none for numbers) at these input leaves, and their reach.

    `computed` runs the program for real: needed where shapes depend on values. `device` is where the values are
    to be, when parameters and inputs are elsewhere yet.
    """
    mode = nullcontext() if computed else FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, Any] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(mode, nullcontext):
            return value
        if id(value) not in fakes:
            copy = mode.from_tensor(value)
            fakes[id(value)] = copy if device is None else copy.to(device)
        return fakes[id(value)]

    env: dict[fx.Node, Any] = {}
    made: dict[fx.Node, list[Node]] = {}
    inputs = iter(leaves)
    with mode, torch.enable_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = fake(next(inputs))
            elif node.op == "get_attr":
                env[node] = fake(fetch(module, node.target))
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = node.target(*args, **kwargs)
            made[node] = _autograd_nodes(env.get(node))
    storages: dict[int, int] = {}
    nodes = {node.name: (*made[node], *_autograd_nodes(value)) for node, value in env.items()}  # before writes, after
    return {node.name: _infos(value, storages) for node, value in env.items()}, Reach(nodes)


def _autograd_nodes(value: Any) -> list[Node]:
    leaves = (value,) if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
    return [tensor.grad_fn or get_gradient_edge(tensor).node for tensor in tensors]


def _infos(value: Any, storages: dict[int, int]) -> tuple[TensorInfo, ...]:
    found = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            storage = storages.setdefault(leaf.untyped_storage()._cdata, len(storages))
            found.append(TensorInfo(tuple(map(int, leaf.shape)), leaf.dtype, leaf.requires_grad, storage))
    return tuple(found)


def fetch(module: nn.Module, target: Any) -> Any:
    """Return the object that a get_attr node names."""
    value: Any = module
    for part in str(target).split("."):
        value = getattr(value, part)
    return value
