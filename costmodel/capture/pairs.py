"""Linear layers that tensor parallelism divides in pairs (Shoeybi et al., Megatron-LM, 2019, section 3).

Found by structure, whatever their names: a linear layer whose input depends on others of its block alone, with nothing
but operators without weights between, is a row to their columns, if nothing else uses their weights and the block can
be called as it is. Proved by numbers: on each part of the columns' outputs what lies between must give that part of the
row's input; so layers packed into one weight, norms over what is divided, and code that takes the number of heads as
fixed make no pair. That hangs on widths alone, so long sequences are proved on a few tokens, and attention, which
treats each head by itself, by what takes no scores. Leaves out embeddings, heads over a vocabulary, and whether a
model's own code runs on parts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import fx, nn

from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.kernel_attention import ATTENTION
from costmodel.capture.parts import extract
from costmodel.capture.shapes import TensorInfo
from costmodel.model.blocks import block_of

LINEAR = torch.ops.aten.linear.default
SIZE = torch.ops.aten.sym_size.int
PARTS = (2, 4, 8, 16, 32, 64)
"""Into how many parts a proof divides."""
NEAR, NEAR_IN_SIXTEEN_BITS = 1e-4, 2e-2
"""Part of the largest value by which numbers may differ."""
SHORT = 16
"""Tokens of a sample on which a proof computes, where there are more."""
LARGE, LARGE_IN_FLOAT16 = 1e3, 30.0
"""By how much numbers are enlarged when a proof is repeated: what clips at a norm or a maximum shows in large ones."""


@dataclass(frozen=True, slots=True)
class LinearPair:
    """Operators by name: linear layers divided by their outputs, the one divided by its inputs, what lies between.

    `parts` is the most into which it is proved to divide, a power of two.
    """

    columns: tuple[str, ...]
    row: str
    inner: tuple[str, ...]
    parts: int = 0


def pairs_of(captured: Capture) -> tuple[LinearPair, ...]:
    """Return the pairs of a model, in the order of their rows."""
    size = captured.static_batch or 2
    infos, finder = captured.describe(size), _Finder(captured)
    whole = extract(captured, captured.operators, with_modules=True)
    found: list[LinearPair] = []
    taken: set[str] = set()
    known: dict[object, int] = {}
    for name in finder.linears:
        between = finder.between(name)
        if between is None or between.columns & taken or not whole.calls_module(block_of(captured.groups[name].module)):
            continue
        proof = _Proof(captured, between, finder.node(name), infos)
        if proof.signature not in known:
            known[proof.signature] = proof.most_parts()
        if known[proof.signature]:
            columns = tuple(linear for linear in finder.linears if linear in between.columns)
            found.append(LinearPair(columns, name, between.operators, known[proof.signature]))
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
        readers = Counter(parameter for group in captured.groups.values() for parameter in group.parameters)
        self.linears = [
            name
            for name, group in captured.groups.items()
            if _is_linear(group, captured.model.module) and all(readers[p] == 1 for p in group.parameters)
        ]
        self._linear = frozenset(self.linears)

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
                if name in self._linear:
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


def _is_linear(group: CapturedOperator, model: nn.Module) -> bool:
    """Whether an operator is the one call of a linear layer's module, with the module's own weight."""
    if group.parameters[:1] != (f"{group.module}.weight",) or [node.target for node in group.nodes] != [LINEAR]:
        return False
    module = model.get_submodule(group.module)
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


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
        self._length, self._everywhere = 0, True
        self.signature = (repr([row[0::2] for row in rows[: len(self._columns)]]), repr(rows[len(self._columns) :]))

    def most_parts(self) -> int:
        """Return the most parts of `PARTS` into which it divides, as it does into all fewer; 0 for none."""
        self._shorten()
        return max(takewhile(self.holds, PARTS), default=0)

    def _shorten(self) -> None:
        """Take fewer tokens where the columns' outputs have a dimension of them and what lies between runs so."""
        lengths = {shape[1] if len(shape) == 3 else 0 for shape in map(self._shape, self._columns)}
        length = lengths.pop() if len(lengths) == 1 else 0
        if length <= SHORT:
            return
        whole = self._shape(self._input)
        for self._everywhere in (True, False):
            self._length = length
            try:
                if self._run(self._given(torch.Generator().manual_seed(0), 1.0)).shape == (whole[0], SHORT, *whole[2:]):
                    return
            except (RuntimeError, ValueError, IndexError, TypeError):  # a number that only looks like the length
                pass
            self._length = 0

    def holds(self, num_parts: int) -> bool:
        """Compute all and each part, with random numbers and with large ones."""
        infos = [info for node in (*self._columns, *self._nodes) for info in self._infos.get(node.name, ())]
        large = LARGE_IN_FLOAT16 if any(info.dtype is torch.float16 for info in infos) else LARGE
        return self._holds_of(num_parts, 1.0) and self._holds_of(num_parts, large)

    def _given(self, generator: torch.Generator, scale: float) -> dict[fx.Node, Any]:
        """Return values for the columns' outputs and for what else is read from outside."""
        given = {node: scale * self._random(node, generator) for node in self._columns}
        for source in (s for node in self._nodes for s in node.all_input_nodes):
            if source not in given and source not in self._nodes:
                given[source] = self._random(source, generator)
        return given

    def _holds_of(self, num_parts: int, scale: float) -> bool:
        generator = torch.Generator().manual_seed(num_parts)
        if any(self._shape(node)[-1] % num_parts for node in self._columns):
            return False
        try:
            given = self._given(generator, scale)
            whole = self._run(given)
            if scale > 1 and not whole.isfinite().all():  # an exponential, say: it shows nothing there
                return True
            return all(self._same(whole, given, num_parts, part) for part in range(num_parts))
        except (RuntimeError, ValueError, IndexError, TypeError):  # what torch says of shapes that do not fit
            return False

    def _same(self, whole: torch.Tensor, given: Mapping[fx.Node, Any], num_parts: int, part: int) -> bool:
        parts = {node: given[node].chunk(num_parts, -1)[part] for node in self._columns}
        expected, found = whole.chunk(num_parts, -1)[part].double(), self._run({**given, **parts}).double()
        coarse = any(info.dtype.itemsize == 2 for node in self._nodes for info in self._infos.get(node.name, ()))
        limit = (NEAR_IN_SIXTEEN_BITS if coarse else NEAR) * float(expected.abs().max())
        return found.shape == expected.shape and bool((found - expected).abs().max() <= limit)  # False for NaN

    def _run(self, given: Mapping[fx.Node, Any]) -> torch.Tensor:
        env = {node: value.clone() if isinstance(value, torch.Tensor) else value for node, value in given.items()}
        with torch.no_grad():
            for node in self._nodes:
                args, kwargs = fx.map_arg((self._shorter(node), node.kwargs), env.__getitem__)
                if node.target is ATTENTION:
                    query, key, value, *rest = args
                    env[node] = _by_heads(query, key, value, rest[0] if rest else kwargs.get("attn_mask"))
                else:
                    env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        made = env[self._input]
        assert isinstance(made, torch.Tensor)  # noqa: S101 - a linear layer reads it
        return made

    def _shorter(self, node: fx.Node) -> Any:
        """Return a node's arguments with the tokens of a proof in place of the sequence's, in lists of lengths."""
        if not self._length:
            return node.args
        return tuple(self._cut(value) if isinstance(value, list | tuple) else value for value in node.args)

    def _cut(self, lengths: Any) -> Any:
        """Return lengths with `SHORT` for the sequence's: wherever that number stands, or in the second place alone."""
        return type(lengths)(
            SHORT if value == self._length and (self._everywhere or i == 1) and isinstance(value, int) else value
            for i, value in enumerate(lengths)
        )

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return self._infos[node.name][0].shape if self._infos.get(node.name) else ()

    def _random(self, node: fx.Node, generator: torch.Generator) -> Any:
        """Return a value of a node's shape and type; of a number its own."""
        if not self._infos.get(node.name):
            return self._number(node)
        info = self._infos[node.name][0]
        shape = self._cut(info.shape) if self._length else info.shape
        if info.dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(info.dtype)
        found = torch.randint(2, shape, generator=generator)
        if info.dtype is torch.bool and found.dim() and found.shape[-1] > 1:
            found[..., 0], found[..., -1] = 1, 0  # a mask of all or of nothing shows nothing
        return found.to(info.dtype)

    def _number(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            raise ValueError(f"{node.name} is no number")
        if node.target is SIZE:
            lengths = self._shape(node.all_input_nodes[0])
            return (self._cut(lengths) if self._length else lengths)[node.args[1]]  # type: ignore[index]
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._number)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _by_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> torch.Tensor:
    """Return what stands for attention in a proof: of each head what its own queries, keys and values make.

    Heads share those of keys and values in groups, in order, as the kernels do it.
    """
    heads, shared = query.shape[-3], key.shape[-3]
    if not shared or heads % shared or (isinstance(mask, torch.Tensor) and mask.dim() > 2 and mask.shape[-3] > 1):
        raise ValueError("heads that do not divide, or a mask of their own")
    groups = heads // shared
    keys, values = (one.mean(-2, keepdim=True).repeat_interleave(groups, -3) for one in (key, value))
    return values * torch.tanh((query * keys).mean(-1, keepdim=True))
