"""Which nodes of a program each call of a module made, and what went in and came out: so that a part may call it.

While a model is exported, hooks leave a mark in the program before and after every call. Leaves out calls inside
regions (autocast's, say), which stay parts of the region's node, and whether a part holds a call whole
(`module_calls`).
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from costmodel.capture.node_names import NodeCounts


class _Mark(HigherOrderOperator):
    """Stands in a program where a module's call begins or ends, with the tensors and sizes that pass there."""

    def __call__(self, nodes: Sequence[Any], number: int) -> None:
        """Compute nothing."""


MARK = _Mark("penstock_call")  # type: ignore[no-untyped-call]
fx.node.has_side_effect(MARK)  # else export drops it


@dataclass(frozen=True, slots=True)
class Passing:
    """Leaves that go into a call or come out of it, and the structure that they make.

    A leaf is a node, or a constant.
    """

    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec

    @property
    def nodes(self) -> list[fx.Node]:
        """The leaves that are nodes."""
        return [leaf for leaf in self.leaves if isinstance(leaf, fx.Node)]


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module of the model.

    Attributes
    ----------
    path : str
        Of the module in the user's model; "" for the model itself.
    nodes : tuple of torch.fx.Node
        What it computes, in program order, calls inside it too.
    inputs, outputs : Passing
        Leaves of (args, kwargs), and of what it returns.
    """

    path: str
    nodes: tuple[fx.Node, ...]
    inputs: Passing
    outputs: Passing


@dataclass(slots=True)
class _Noted:
    """A call while it is traced: what had been left out before, and its leaves, tensors and sizes not among them.

    A leaf of which a part could not make others is None. `state` is of Python's random numbers as it begins.
    """

    path: str
    num_left_out: int
    state: object
    passing: list[tuple[list[Any], pytree.TreeSpec] | None] = field(default_factory=list)


class Notes:
    """What hooks have noted of a model's calls.

    Parameters
    ----------
    left_out : sequence
        Grows whenever the model does something that the program leaves out: no part makes calls that are open then.

    Attributes
    ----------
    counts : NodeCounts
    drawing : str, optional
        Path of the innermost module that drew numbers from Python's `random`, which the program holds as they fell.
    """

    def __init__(self, left_out: Sequence[object]) -> None:
        self.counts = NodeCounts()
        self._left_out = left_out
        self._calls: list[_Noted] = []
        self._open: list[int] = []
        self.drawing: str | None = None

    def enter(self, path: str, args: Any) -> None:
        """Note that a call begins, with these (args, kwargs)."""
        self._open.append(len(self._calls))
        self._calls.append(_Noted(path, len(self._left_out), random.getstate()))
        self._mark(args)
        self.counts.begin(path, self._tracer().graph)

    def leave(self, result: Any) -> None:
        """Note that the latest open call ends."""
        call = self._calls[self._open[-1]]
        if self.drawing is None and call.state != random.getstate():
            self.drawing = call.path
        self.counts.end(call.path, self._tracer().graph)
        self._mark(result)
        self._open.pop()

    @property
    def open_path(self) -> str | None:
        """Path of the innermost module whose call has not ended; None where none is open."""
        return self._calls[self._open[-1]].path if self._open else None

    def _mark(self, value: Any) -> None:
        leaves, spec = pytree.tree_flatten(value)
        number = self._open[-1]
        call, tracer = self._calls[number], self._tracer()
        traced = [tracer.unwrap_proxy(leaf) if isinstance(leaf, _TRACED) else leaf for leaf in leaves]
        told = len(self._left_out) == call.num_left_out and all(isinstance(leaf, _PASSING) for leaf in traced)
        call.passing.append(
            ([_NODE if isinstance(leaf, fx.Proxy) else leaf for leaf in traced], spec) if told else None
        )
        nodes = [leaf.node for leaf in traced if isinstance(leaf, fx.Proxy)]
        traces, tracer.record_stack_traces = tracer.record_stack_traces, False  # one takes longer than the mark
        tracer.create_node("call_function", MARK, (nodes, number), {})
        tracer.record_stack_traces = traces

    @staticmethod
    def _tracer() -> Any:
        mode = get_proxy_mode()
        assert mode is not None  # noqa: S101 - hooks are there while export traces
        return mode.tracer

    def take(self, graph: fx.Graph) -> tuple[ModuleCall, ...]:
        """Return the calls that a part could make, outer ones first, and erase all marks of a program."""
        nodes: list[fx.Node] = []
        begun: dict[int, tuple[int, fx.Node]] = {}
        found: list[tuple[int, ModuleCall]] = []
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is not MARK:
                nodes.append(node)
                continue
            number = node.args[1]
            if number not in begun:
                begun[number] = len(nodes), node
                continue
            start, mark = begun[number]
            before, after = self._calls[number].passing
            if before and after:
                ends = _passing(before, mark), _passing(after, node)
                found.append((number, ModuleCall(self._calls[number].path, tuple(nodes[start:]), *ends)))
        _erase_marks(graph)
        return tuple(call for _, call in sorted(found, key=lambda row: row[0]))


_NODE = object()
_TRACED = (torch.Tensor, torch.SymInt)
_PASSING = (fx.Proxy, bool, int, float, str, torch.dtype, torch.device, type(None))


def _passing(told: tuple[list[Any], pytree.TreeSpec], mark: fx.Node) -> Passing:
    leaves, spec = told
    nodes = iter(mark.args[0])  # type: ignore[arg-type]
    whole = (next(nodes) if leaf is _NODE else leaf for leaf in leaves)
    return Passing(tuple(whole), spec)


def _erase_marks(graph: fx.Graph) -> None:
    modules = graph.owning_module.modules() if graph.owning_module is not None else ()
    for module in [each for each in modules if isinstance(each, fx.GraphModule)]:
        for node in module.graph.find_nodes(op="call_function", target=MARK):
            for source in node.all_input_nodes:
                source.users.setdefault(node)  # export forgets users when it puts a region into another
            module.graph.erase_node(node)
        module.recompile()


@contextmanager
def noting_calls(model: nn.Module, left_out: Sequence[object]) -> Iterator[Notes]:
    """Within the block every call of a model and of its modules is noted, and leaves marks in what is traced."""
    notes = Notes(left_out)
    handles = []
    for path, module in model.named_modules():

        def enter(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            if not torch.compiler.is_dynamo_compiling():  # the body of a loop, which stays one node
                notes.enter(path, (args, kwargs))

        def leave(_: nn.Module, _args: Any, result: Any) -> None:
            if not torch.compiler.is_dynamo_compiling():
                notes.leave(result)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield notes
    finally:
        for handle in handles:
            handle.remove()
