"""What operators of a captured model do for one sample, and how they divide (`costmodel.model.work`).

Read from the nodes of the program and the shapes of their values: matrix products, attention, convolutions,
normalisations, look-ups, losses, grouped experts, scans along a sequence; all else moves bytes, and what gives a view
of what it was given does nothing. A model's own code divides as the executor divides it (`costmodel.capture.pairs`), a
configuration as trainers of such models do (`costmodel.capture.structure`): pairs of linear layers by columns and rows,
what lies between with them, attention by its heads, experts by their number, a vocabulary by its rows; all else is done
by each rank, or for its share of a sequence. Leaves out what dividing costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from torch import fx

from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.experts import GROUPED, Routed, routed_experts
from costmodel.capture.kernel_attention import ATTENTIONS
from costmodel.capture.kernel_scans import DELTA_RULE, SELECTIVE_SCAN, keys_of_equal_work
from costmodel.capture.masks import seen_keys
from costmodel.capture.pairs import pairs_of
from costmodel.capture.passes import mutated_arguments
from costmodel.capture.shapes import TensorInfo
from costmodel.capture.structure import splits_by_structure
from costmodel.model.graph import LOSS, Operator, OperatorGraph
from costmodel.model.work import Work

Infos = Mapping[str, tuple[TensorInfo, ...]]

PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "addbmm", "bilinear"})
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d"})
NORMS = frozenset({"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "cudnn_batch_norm"})
LOSSES = frozenset({
    "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "ctc_loss",
})  # fmt: skip
SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp", "scan", "associative_scan", "while_loop"})
ROWS = (2, 3)
"""Dimensions of a loss's input whose rows are tokens; in more of them rows are those of maps."""


def with_works(graph: OperatorGraph, captured: Capture) -> OperatorGraph:
    """Return a captured model's graph whose operators say what they do, as the executor divides them.

    Where no layers make a pair nothing divides, and nothing but the loss says what it does.
    """
    return where_divided(with_all_works(graph, captured))


def with_all_works(graph: OperatorGraph, captured: Capture, *, by_structure: bool = False) -> OperatorGraph:
    """Return a captured model's graph whose operators all say what they do.

    Divided as the executor divides the model's own code, or `by_structure`, as trainers divide models of such a
    configuration by theirs.
    """
    works = _Reading(graph, captured, by_structure).works()
    seen = {name: _attention_flop(work) for name, work in works.items() if work.kind == "attention"}
    operators = tuple(replace(o, flop=seen.get(o.name, o.flop)) for o in graph.operators)
    return _said(replace(graph, operators=operators), works)


def where_divided(graph: OperatorGraph) -> OperatorGraph:
    """Return a graph as it is where tensor or expert parallelism divides any of it, else with losses' works alone."""
    works = {operator.name: operator.work for operator in graph.operators if operator.work}
    if any(work.split in ("column", "row", "expert") for work in works.values()):
        return graph
    return _said(graph, {name: work for name, work in works.items() if work.kind == "loss"})


def _said(graph: OperatorGraph, works: Mapping[str, Work]) -> OperatorGraph:
    return replace(graph, operators=tuple(replace(o, work=works.get(o.name)) for o in graph.operators))


class _Reading:
    """One look at a captured model."""

    def __init__(self, graph: OperatorGraph, captured: Capture, by_structure: bool) -> None:
        self._graph, self._captured = graph, captured
        self._size = captured.static_batch or 2
        self._infos: Infos = captured.describe(self._size)
        self._routed = {name: one for one in routed_experts(captured, self._infos) for name in one.operators}
        self._masks = seen_keys(captured, self._infos)
        self._parts: dict[str, int] = {}
        if by_structure:
            self._splits = splits_by_structure(captured, self._infos) | dict.fromkeys(self._routed, "expert")
        else:
            pairs = pairs_of(captured)
            rows = {pair.row: "row" for pair in pairs}
            columns = {name: "column" for pair in pairs for name in pair.columns}
            self._splits = {name: "inner" for pair in pairs for name in pair.inner} | rows | columns
            self._parts = {pair.row: pair.parts for pair in pairs}
        storages: dict[str, set[int]] = {operator.name: set() for operator in graph.operators}
        for tensor in graph.tensors:
            for consumer in tensor.consumers:
                storages[consumer].add(tensor.storage)
        self._read = storages
        self._made: dict[str, list[int]] = {operator.name: [] for operator in graph.operators}
        for tensor in graph.tensors:
            self._made[tensor.producer].append(tensor.storage)

    def works(self) -> dict[str, Work]:
        """Return what each operator does, the loss among them."""
        found = {name: self._work(group, self._graph.index[name]) for name, group in self._captured.groups.items()}
        return {**found, LOSS: self._loss(found)}

    def _work(self, group: CapturedOperator, position: int) -> Work:
        split, operator = self._splits.get(group.name, "sequence"), self._graph.operators[position]
        found = self._of_kernel(group, operator, split) or self._of_bytes(group, operator, split)
        return replace(found, parts=self._parts.get(group.name, 0))

    def _of_kernel(self, group: CapturedOperator, operator: Operator, split: str) -> Work | None:
        """Return the work of the operator's chief kernel; None where it has none."""
        for node in group.nodes:
            name, shapes = _name(node), self._shapes(node)
            if not shapes:
                continue
            if node.target in ATTENTIONS:
                return self._attention(node, split)
            if node.target is DELTA_RULE:
                return self._delta_rule(node, split)
            if node.target in GROUPED:
                return self._experts(node, self._routed.get(group.name), split)
            if name in PRODUCTS or name in CONVOLUTIONS:
                return self._product(node, name, shapes[0], operator, split)
            if name in NORMS:
                return Work("norm", split, self._rows(shapes[0]), outer=shapes[0][-1])
            if name.startswith("embedding"):
                rows = next((s[0] for s in map(self._shape, node.all_input_nodes) if len(s) == 2), 1)
                return Work("embedding", split, self._rows(shapes[0]), inner=rows, outer=shapes[0][-1])
            if name in LOSSES:
                return self._loss_over(self._shape(node.all_input_nodes[0]), split)
        return None

    def _attention(self, node: fx.Node, split: str) -> Work:
        (*_, heads, queries, width), (*_, kv_heads, keys, _), (*_, out) = map(self._shape, node.all_input_nodes[:3])
        causal = bool(node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5]))
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        seen = self._masks.get(mask) if isinstance(mask, fx.Node) else None
        if seen is not None:
            causal, keys = seen.causal, seen.keys
        return Work(
            "attention", split, queries, inner=width, outer=out, heads=heads, kv_heads=kv_heads, context=keys,
            causal=causal,
        )  # fmt: skip

    def _delta_rule(self, node: fx.Node, split: str) -> Work:
        """Return linear attention as the attention that does as much."""
        _, tokens, heads, inner = self._shape(node.args[1])
        _, _, value_heads, outer = self._shape(node.args[2])
        keys = keys_of_equal_work(inner, outer)
        return Work(
            "attention", split, tokens, inner=inner, outer=outer, heads=value_heads, kv_heads=heads, context=keys
        )  # fmt: skip

    def _experts(self, node: fx.Node, routed: Routed | None, split: str) -> Work:
        rows, inner = self._shape(node.args[0])
        num, _, outer = self._shape(node.args[1])
        active = routed.active if routed else 1
        tokens = max(1, rows // self._size // active)
        return Work("matmul", split, tokens, inner=inner, outer=outer, experts=num, active=active)

    def _product(self, node: fx.Node, name: str, out: tuple[int, ...], operator: Operator, split: str) -> Work:
        """Return a matrix product of the output's rows; a convolution's are the places that its windows stand at."""
        numbers = prod(out)
        if name in CONVOLUTIONS:
            weight = self._shape(node.all_input_nodes[1])
            outer, inner = out[1], prod(weight) // max(1, weight[0])
            kind = "matmul" if _patches(node, weight) else "convolution"
            return Work(kind, split, max(1, numbers // outer // self._size), inner=inner, outer=outer)
        left = self._shape(node.all_input_nodes[1 if name in ("addmm", "baddbmm", "addbmm") else 0])
        inner = left[-1] if left else 1
        if name == "einsum" and operator.flop:
            inner = max(1, operator.flop * self._size // (2 * max(1, numbers)))
        outer = out[-1] if out else 1
        return Work("matmul", split, self._rows(out), inner=inner, outer=outer)

    def _of_bytes(self, group: CapturedOperator, operator: Operator, split: str) -> Work:
        """Return the work of an operator that reads and writes; nothing of one that gives views of what it reads."""
        largest = max((s for node in group.nodes for s in self._shapes(node)), key=prod, default=())
        sources = {s for node in group.nodes for s in node.all_input_nodes if s not in group.nodes}
        read = [shape for source in sources for shape in self._shapes(source)]
        whole = max((*read, largest), key=prod, default=())
        outer = whole[-1] if whole else 1
        wrote = sum(prod(shape) for node in group.nodes[-1:] for shape in self._shapes(node))
        passes = max(1, round((sum(map(prod, read)) + wrote) / max(1, prod(whole))))
        if self._gives_views(group, sources) and not any(map(mutated_arguments, group.nodes)):
            passes = 0
        if group.name in self._routed and group.name in self._routed[group.name].biases:
            passes = 0  # kernels of matrix products add biases
        kind = "scan" if any(map(self._scans, group.nodes)) else "elementwise"
        return Work(kind, split, self._rows(whole), outer=max(1, outer), passes=passes)

    def _gives_views(self, group: CapturedOperator, sources: Iterable[fx.Node]) -> bool:
        """Whether all that an operator hands on lies in what it reads: by the program, or as the kernels lay it out."""
        before = {info.storage for source in sources for info in self._infos.get(source.name, ())}
        after = {info.storage for node in group.nodes for info in self._infos.get(node.name, ())}
        made = self._made[group.name]
        return after <= before or bool(made and all(s >= 0 and s in self._read[group.name] for s in made))

    def _scans(self, node: fx.Node) -> bool:
        """Whether a node goes along a sequence, one element after the other, with a gradient through it."""
        known = _name(node) in SCANS or node.target is SELECTIVE_SCAN
        return known and any(info.requires_grad for info in self._infos.get(node.name, ()))

    def _loss(self, works: Mapping[str, Work]) -> Work:
        """Return the loss's work by what it reads; where the model takes its own loss there is little left."""
        split = self._splits.get(LOSS, "sequence")
        if any(work.kind == "loss" for work in works.values()):
            return Work("loss", "sequence", 1, outer=1)
        leaves = [leaf for leaf in self._captured.outputs if isinstance(leaf, fx.Node)]
        shapes = [info.shape for leaf in leaves for info in self._infos[leaf.name] if info.dtype.is_floating_point]
        return self._loss_over(max(shapes, key=prod, default=()), split)

    def _loss_over(self, shape: tuple[int, ...], split: str) -> Work:
        """Return the work of a loss over values of a shape: a row a token, one of them where values are maps."""
        if len(shape) in ROWS and shape[-1]:
            return Work("loss", split, self._rows(shape), outer=shape[-1])
        return Work("loss", split, 1, outer=max(1, prod(shape) // self._size))

    def _rows(self, shape: tuple[int, ...]) -> int:
        """Return the rows of a sample among a value's."""
        return max(1, prod(shape[:-1]) // self._size) if shape else 1

    def _shapes(self, node: fx.Node) -> list[tuple[int, ...]]:
        return [info.shape for info in self._infos.get(node.name, ())]

    def _shape(self, node: Any) -> tuple[int, ...]:
        shapes = self._shapes(node) if isinstance(node, fx.Node) else []
        return shapes[0] if shapes else ()


def _attention_flop(work: Work) -> int:
    """Return the operations of attention: a kernel skips what a window hides, and counts a causal mask's scores."""
    return 2 * work.tokens * work.context * work.heads * (work.inner + work.outer)


def _name(node: fx.Node) -> str:
    """Return the name of a node's operator without namespace and overload."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name).split("::")[-1].strip("_")
    return str(getattr(node.target, "__name__", node.target)).strip("_")


def _patches(node: fx.Node, weight: tuple[int, ...]) -> bool:
    """Whether a convolution's windows do not overlap: it cuts an image, or a sound, into patches."""
    stride = node.args[3] if len(node.args) > 3 else node.kwargs.get("stride", 1)
    steps = stride if isinstance(stride, list | tuple) else [stride] * len(weight[2:])
    return all(isinstance(step, int) and step >= length for step, length in zip(steps, weight[2:], strict=False))
