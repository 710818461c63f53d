"""Programs of samples of unlike lengths: which dimensions are free, and what names and shapes their values have.

A plan was made of a program of fixed lengths. With free ones sizes are computed, too, which shifts the numbers in names
of nodes: nodes of operators take the names that they have with fixed lengths. Shapes of values follow from those of the
inputs by the expressions that torch.export has found. Leaves out what a length costs.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _Namespace
from torch.utils import _pytree as pytree
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from costmodel.capture.batches import TARGETS, TrainingModel, batched_dimensions, given
from costmodel.errors import InvalidInput, UsageError


def free_dimensions(model: TrainingModel, key: str | int, leaf: Any) -> frozenset[int]:
    """Return the dimensions of a tensor of an input, or of the targets, that may be of unlike lengths."""
    named = model.lengths.get(key, ())
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return frozenset()
    return frozenset(each % leaf.dim() for each in ((named,) if isinstance(named, int) else named))


def length_dimensions(model: TrainingModel) -> tuple[frozenset[int], ...]:
    """Return those of each leaf of (args, kwargs)."""
    inputs = ((key, value) for key, value in given(model).items() if key != TARGETS)
    return tuple(free_dimensions(model, key, leaf) for key, value in inputs for leaf in pytree.tree_leaves(value))


def check_lengths(model: TrainingModel) -> None:
    """Refuse names of no input, and dimensions that its tensors lack.

    Raises
    ------
    UsageError
    """
    inputs = given(model)
    for key, named in model.lengths.items():
        if key not in inputs:
            raise UsageError(f"lengths= names {key!r}, and the batch has {', '.join(map(repr, inputs))}")
        for leaf in pytree.tree_leaves(inputs[key]):
            lacking = [d for d in ((named,) if isinstance(named, int) else named) if not -leaf.dim() <= d < leaf.dim()]
            if lacking:
                raise UsageError(
                    f"lengths= names dimension {lacking[0]} of {key!r}, which has the shape {list(leaf.shape)}"
                )


def drop_whole_slices(model: TrainingModel, graph: fx.Graph) -> None:
    """Leave out slices of a free length from its begin to its end, which export leaves out of fixed ones."""
    samples = set()
    for node, dimension in zip(graph.find_nodes(op="placeholder"), batched_dimensions(model), strict=True):
        if dimension is not None:
            samples |= _symbols(node.meta["val"].shape[dimension])
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor):
        given: list[Any] = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
        source, dimension, start, stop, step = given
        whole = start in (None, 0) and stop in (None, sys.maxsize) and step == 1
        if whole and _symbols(source.meta["val"].shape[dimension]) - samples:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _expression(length: Any) -> Any:
    """Return what stands for a length: an expression of symbols, or the number that it is."""
    return length.node.expr if isinstance(length, torch.SymInt) else length


def _symbols(length: Any) -> set[Any]:
    return set(length.node.expr.free_symbols) if isinstance(length, torch.SymInt) else set()


def named_as_planned(
    model: TrainingModel, graph: fx.Graph, groups: Sequence[Sequence[fx.Node]], planned: Iterable[Sequence[fx.Node]]
) -> None:
    """Give nodes of operators the names that they have in a program of fixed lengths, one by one.

    Raises
    ------
    InvalidInput
        When the model falls into other operators.
    """
    wanted = list(planned)
    for own, fixed in zip(groups, wanted, strict=False):
        if [node.target for node in own] != [node.target for node in fixed]:
            raise _other(model, fixed[0].name)
    if len(groups) != len(wanted):
        raise _other(model, "the end")
    names = {
        node: like.name
        for own, fixed in zip(groups, wanted, strict=True)
        for node, like in zip(own, fixed, strict=True)
    }
    graph._graph_namespace = namespace = _Namespace()
    for node in sorted(graph.nodes, key=lambda each: each.op == "call_function" and each not in names):
        node.name = namespace.create_name(names.get(node, node.name), node)


def _other(model: TrainingModel, place: str) -> InvalidInput:
    return InvalidInput(
        f"{model.name}: with free lengths the model computes something else than with fixed ones (first at {place!r}), "
        "and its plan is for the latter: pad samples to one length, and leave lengths= out"
    )


class ValueShapes:
    """Shapes of a program's values, by the shapes of its inputs.

    Parameters
    ----------
    graph : torch.fx.Graph
        Flat, as exported.
    guards : callable or None
        Raises an AssertionError on inputs at which the model would compute something else.
    """

    def __init__(self, graph: fx.Graph, guards: Callable[..., Any] | None) -> None:
        self._guards, self._known = guards, dict[tuple[int, ...], dict[str, tuple[int, ...]]]()
        self._shapes = {
            node.name: tuple(map(_expression, value.shape))
            for node in graph.nodes
            if isinstance(value := node.meta.get("val"), torch.Tensor)
        }
        self._inputs = [node.name for node in graph.find_nodes(op="placeholder")]
        self._symbols: dict[Any, tuple[int, int]] = {}
        for place, name in enumerate(self._inputs):
            for dimension, length in enumerate(self._shapes.get(name, ())):
                if getattr(length, "is_Symbol", False):
                    self._symbols.setdefault(length, (place, dimension))

    def lengths(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Return the lengths from which all shapes follow, of input leaves.

        Raises
        ------
        UsageError
            When the captured program does not compute at these shapes what the model would.
        """
        try:
            if self._guards is not None:
                self._guards(*leaves)
        except AssertionError as error:
            words = str(error).removeprefix("Guard failed: ").split("\n")[0]
            shapes = ", ".join(
                f"{n} {list(v.shape)}" for n, v in zip(self._inputs, leaves, strict=True) if torch.is_tensor(v)
            )
            raise UsageError(
                f"inputs of the shapes {shapes}: the model was captured for such of which {words} holds, and computes "
                "something else for others: pad them, or group samples otherwise"
            ) from None
        return tuple(int(leaves[place].shape[dimension]) for place, dimension in self._symbols.values())

    def of(self, name: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a value at some lengths.

        Raises
        ------
        UsageError
            When it does not follow from them.
        """
        if name not in self._shapes:
            raise UsageError(
                f"the shape of {name!r} does not follow from those of the inputs: pad samples to one length"
            )
        known = self._known.setdefault(lengths, {})
        if name not in known:
            if len(self._known) > MOST_KNOWN:
                self._known = {lengths: known}
            symbols = dict(zip(self._symbols, lengths, strict=True))
            known[name] = tuple(
                length if isinstance(length, int) else int(sympy_interp(PythonReferenceAnalysis, symbols, length))
                for length in self._shapes[name]
            )
        return known[name]


MOST_KNOWN = 4096
"""Lengths for which shapes are kept."""
