"""Linear layers that tensor parallelism divides in pairs (Shoeybi et al., Megatron-LM, 2019, section 3).

Found by structure, whatever their names: a linear layer whose input depends on others of its block alone, with nothing
but operators without weights between, is a row to their columns. Proved by numbers: on either half of the columns'
outputs what lies between must give that half of the row's input; so layers packed into one weight, norms over what is
divided, and code that takes the number of heads as fixed make no pair. Leaves out embeddings, heads over a vocabulary,
and whether a model's own code runs on parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import fx

from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.shapes import TensorInfo
from costmodel.model.blocks import block_of

LINEAR = torch.ops.aten.linear.default
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
SIZE = torch.ops.aten.sym_size.int
PARTS = 2
"""Into how many parts the proof divides."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Operators by name: linear layers divided by their outputs, the one divided by its inputs, what lies between.

    `heads` is how many of keys and values attention between has, which divide into parts; 0 without attention.
    """

    columns: tuple[str, ...]
    row: str
    inner: tuple[str, ...]
    heads: int = 0


def pairs_of(captured: Capture) -> tuple[Pair, ...]:
    """Return the pairs of a model, in the order of their rows."""
    size = captured.static_batch or 2
    infos, finder = captured.describe(size), _Finder(captured)
    found: list[Pair] = []
    taken: set[str] = set()
    known: dict[object, bool] = {}
    for name in finder.linears:
        between = finder.between(name)
        if between is None or between.columns & taken:
            continue
        proof = _Proof(captured, between, finder.node(name), infos)
        if proof.signature not in known:
            known[proof.signature] = proof.holds()
        if known[proof.signature]:
            columns = tuple(linear for linear in finder.linears if linear in between.columns)
            keys = [n.all_input_nodes[1] for n in between.nodes if n.target is ATTENTION]
            heads = gcd(*(infos[node.name][0].shape[-3] for node in keys))
            found.append(Pair(columns, name, between.operators, heads))
            taken |= {name, *columns}
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Between:
    """What lies between linear layers and one that depends on them: its nodes in order, and their operators."""

    columns: frozenset[str]
    nodes: tuple[fx.Node, ...]
    operators: tuple[str, ...]


class _Finder:
    """Looks for what lies before linear layers."""

    def __init__(self, captured: Capture) -> None:
        self._groups = captured.groups
        self._operator = {node: name for name, group in captured.groups.items() for node in group.nodes}
        self._order = {node: i for i, node in enumerate(captured.program.module.graph.nodes)}
        self.linears = [name for name, group in captured.groups.items() if _is_linear(group)]

    def node(self, linear: str) -> fx.Node:
        """Return the call of a linear layer."""
        return self._groups[linear].nodes[0]

    def between(self, linear: str) -> _Between | None:
        """Return what lies before a linear layer, if it depends on others of its block and nothing else uses them."""
        start, block = self.node(linear), block_of(self._groups[linear].module)
        columns: set[str] = set()
        seen: dict[fx.Node, bool] = {}

        def depends(node: fx.Node) -> bool:
            if node not in seen:
                name = self._operator.get(node, "")
                inside = bool(name) and block_of(self._groups[name].module) == block
                if name in self._groups and _is_linear(self._groups[name]):
                    columns.update({name} if inside else ())
                    seen[node] = inside
                else:
                    sources = [depends(source) for source in node.all_input_nodes] if inside else []
                    seen[node] = any(sources)
            return seen[node]

        source = start.all_input_nodes[0]
        if not block or not depends(source):
            return None
        calls = {self.node(name) for name in columns}
        nodes = sorted((n for n, flag in seen.items() if flag and n not in calls), key=self._order.__getitem__)
        inside = {*nodes, start}
        if any(user not in inside for node in (*calls, *nodes) for user in node.users):
            return None
        operators = dict.fromkeys(self._operator[node] for node in nodes)
        if any(self._groups[name].parameters for name in operators):
            return None
        return _Between(frozenset(columns), tuple(nodes), tuple(operators))


def _is_linear(group: CapturedOperator) -> bool:
    """Whether an operator is the one call of a linear layer's module, with the module's own weight."""
    own = group.parameters[:1] == (f"{group.module}.weight",)
    return own and len(group.nodes) == 1 and group.nodes[0].target is LINEAR


class _Proof:
    """Whether what lies between gives each part of a row's input from that part of its columns' outputs."""

    def __init__(
        self, captured: Capture, between: _Between, row: fx.Node, infos: Mapping[str, tuple[TensorInfo, ...]]
    ) -> None:
        self._nodes, self._infos, self._input = between.nodes, infos, row.all_input_nodes[0]
        self._columns = [captured.groups[name].nodes[0] for name in sorted(between.columns)]
        number = {node: i for i, node in enumerate((*self._columns, *self._nodes))}
        rows = [
            (str(n.target), repr(fx.map_arg((n.args, n.kwargs), lambda s: number.get(s, -1))), self._shape(n))
            for n in number
        ]
        self.signature = (repr([row[0::2] for row in rows[: len(self._columns)]]), repr(rows[len(self._columns) :]))

    def holds(self) -> bool:
        """Compute both, with random numbers."""
        generator = torch.Generator().manual_seed(0)
        given = {node: self._random(node, generator) for node in self._columns}
        for source in (s for node in self._nodes for s in node.all_input_nodes):
            if source not in given and source not in self._nodes:
                given[source] = self._random(source, generator)
        try:
            whole = self._run(given)
            for part in range(PARTS):
                halves = {node: given[node].chunk(PARTS, -1)[part] for node in self._columns}
                if any(half.shape[-1] * PARTS != given[node].shape[-1] for node, half in halves.items()):
                    return False
                expected, found = whole.chunk(PARTS, -1)[part], self._run({**given, **halves})
                if found.shape != expected.shape or not torch.allclose(found, expected, 1e-2, 1e-3, equal_nan=True):
                    return False
        except (RuntimeError, ValueError, IndexError, TypeError):  # what torch says of shapes that do not fit
            return False
        return True

    def _run(self, given: Mapping[fx.Node, Any]) -> torch.Tensor:
        env = {node: value.clone() if isinstance(value, torch.Tensor) else value for node, value in given.items()}
        with torch.no_grad():
            for node in self._nodes:
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        value = env[self._input]
        assert isinstance(value, torch.Tensor)  # noqa: S101 - a linear layer reads it
        return value

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return self._infos[node.name][0].shape if self._infos.get(node.name) else ()

    def _random(self, node: fx.Node, generator: torch.Generator) -> Any:
        """Return a value of a node's shape and type; of a number its own."""
        if not self._infos.get(node.name):
            return self._number(node)
        info = self._infos[node.name][0]
        if info.dtype.is_floating_point:
            return torch.randn(info.shape, generator=generator).to(info.dtype)
        return torch.ones(info.shape, dtype=info.dtype)

    def _number(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            raise ValueError(f"{node.name} is no number")
        if node.target is SIZE:
            return self._shape(node.all_input_nodes[0])[node.args[1]]  # type: ignore[index]
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._number)
        return node.target(*args, **kwargs)  # type: ignore[operator]
