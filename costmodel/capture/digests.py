"""A captured program as digests, one an operator: two processes have the same program if they have the same digests.

Digests hold what the program computes, with the values of its constants, and names, shapes and types of parameters,
buffers and inputs. They leave out values of parameters and buffers (each rank may draw its own, and shared ones are
handed round), and devices, whose numbers differ from rank to rank. The loss is no part of a program: of a function its
bytecode is taken, of a module its numbers too.
"""

import ctypes
import hashlib
import types
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.batches import batched_dimensions
from costmodel.capture.capture import Capture
from costmodel.capture.custom_functions import OpaqueFunction
from costmodel.capture.shapes import fetch


def checksum(tensor: torch.Tensor) -> int:
    """Return a 32-bit checksum of a tensor's shape, type and values; 0 of one without values."""
    kept = tensor.detach()
    words = zlib.crc32(f"{tuple(kept.shape)}{kept.dtype}".encode())
    if kept.is_meta or not kept.numel():
        return words
    if kept.layout is not torch.strided or kept.is_quantized or type(kept) not in (torch.Tensor, nn.Parameter):
        return zlib.crc32(str(kept).encode(), words)
    held = kept.resolve_conj().resolve_neg().cpu().contiguous()
    return zlib.crc32((ctypes.c_char * held.nbytes).from_address(held.data_ptr()), words)


def program_digests(captured: Capture) -> dict[str, str]:
    """Return a digest for each operator, and for each node that is in none, by their names."""
    writer = _Writer(captured)
    owner = {node: group.name for group in captured.groups.values() for node in group.nodes}
    found: dict[str, Any] = {}
    for node in captured.program.module.graph.nodes:
        name = owner.get(node, node.name)
        found.setdefault(name, hashlib.blake2b(digest_size=8)).update(writer.line(node).encode())
    return {name: hasher.hexdigest() for name, hasher in found.items()}


def model_digests(captured: Capture) -> dict[str, str]:
    """Return digests of what belongs to a captured model besides its program, by what people call them."""
    model = captured.model
    states = [(name, _like(value), value.requires_grad) for name, value in model.module.named_parameters()]
    states += [(name, _like(value), False) for name, value in model.module.named_buffers()]
    leaves = pytree.tree_leaves((model.args, dict(model.kwargs)))
    inputs = [
        [length for place, length in enumerate(leaf.shape) if place != dimension] if torch.is_tensor(leaf) else leaf
        for leaf, dimension in zip(leaves, batched_dimensions(model), strict=True)
    ]
    return {
        "parameters": digest_of(states),
        "inputs": digest_of(
            [
                inputs,
                captured.static_batch,
                str(model.autocast),
                [(str(k), _written(v)) for k, v in model.split.items()],
                [(str(k), v) for k, v in model.lengths.items()],
            ]
        ),
        "loss": digest_of(_written(model.loss)),
    }


def digest_of(value: object) -> str:
    """Return a short digest of what a value's text is."""
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


class _Writer:
    """Writes nodes as text that is the same in every process."""

    def __init__(self, captured: Capture) -> None:
        module = captured.model.module
        self._captured = captured
        self._names = {id(value): name for name, value in module.named_buffers()} | dict(captured.name_of)

    def line(self, node: fx.Node) -> str:
        owner = node.graph.owning_module
        assert owner is not None  # noqa: S101 - a program's
        if node.op == "get_attr":
            return f"{node.name} = {self._attribute(fetch(owner, node.target))}\n"
        target = node.target if node.op == "call_function" else node.op
        return f"{node.name} = {_target(target)}{_arguments((node.args, dict(node.kwargs)))}\n"

    def _attribute(self, value: Any) -> str:
        if isinstance(value, fx.GraphModule):
            return "{" + "".join(self.line(node) for node in value.graph.nodes) + "}"
        if not isinstance(value, torch.Tensor):
            return _written(value)
        name = self._names.get(id(value))
        return f"{name} {_like(value)}" if name is not None else f"constant {checksum(value):08x}"


def _target(target: Any) -> str:
    if isinstance(target, OpaqueFunction):
        return _written(target.function.forward) + _written(target.function.backward)
    if isinstance(target, types.FunctionType | types.BuiltinFunctionType):
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def _arguments(values: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return f"%{value.name}"
        return value.type if isinstance(value, torch.device) else value

    return repr(fx.node.map_aggregate(values, plain))


def _like(value: torch.Tensor) -> str:
    return f"{tuple(value.shape)} {value.dtype}"


def _written(value: Any) -> str:
    """Return what tells a function (or a module) from another, as far as a process can see it."""
    if isinstance(value, partial):
        return f"partial {_written(value.func)} {_plain(value.args)} {_plain(value.keywords)}"
    if isinstance(value, nn.Module):
        inner = "".join(f"{name}: {_written(child)}" for name, child in value.named_children())
        return f"{type(value).__qualname__} {_code(type(value).forward)} {_plain(vars(value))} {inner}"
    if isinstance(value, types.MethodType):
        return _written(value.__func__)
    return _code(value)


def _code(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return getattr(function, "__qualname__", type(function).__qualname__)
    return f"{_bytecode(code)} {_plain(getattr(function, '__defaults__', None) or ())}"


def _bytecode(code: types.CodeType) -> str:
    constants = [_bytecode(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    kept = [each for each in constants if isinstance(each, int | float | str | bytes | bool | None)]
    return f"{digest_of(code.co_code)} {kept} {code.co_names}"


def _plain(values: Any) -> str:
    """Return the numbers, flags and words among values; others have no text that every process would write alike."""
    if isinstance(values, Mapping):
        return str({k: v for k, v in values.items() if not str(k).startswith("_") and _is_plain(v)})
    return str([v for v in values if _is_plain(v)])


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | complex)
