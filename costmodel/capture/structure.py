"""How trainers divide a model of a known configuration: pairs of projections, heads, experts and the vocabulary.

Found in the captured program by structure alone, for trainers divide by code of their own and not by the model's: what
the executor divides, which runs the model's own code, is proved by numbers (`costmodel.capture.pairs`). A projection is
a row where what it reads depends on other projections of its block through operators that treat heads, or single
values, apart; those are its columns (Shoeybi et al., Megatron-LM, 2019, section 3). Of what is left a norm over all
that is divided may stand between: it is a column, too, whose statistics are summed. A value that all heads share
(the rotated keys of latent attention) stays whole, and so does attention of an odd number of heads where others of the
model have an even one (a tower of its own, stages of a pyramid). Leaves out projections that stand alone, positions
that are learned, and that all heads of a state-space layer may share what they read its state by.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import fx

from costmodel.capture.capture import Capture
from costmodel.capture.experts import GROUPED
from costmodel.capture.kernel_attention import ATTENTIONS
from costmodel.capture.shapes import TensorInfo
from costmodel.model.blocks import block_of
from costmodel.model.graph import LOSS

Infos = Mapping[str, tuple[TensorInfo, ...]]
ATEN = torch.ops.aten
PROJECTIONS = frozenset({ATEN.linear.default, ATEN.addmm.default, ATEN.mm.default})
EMBEDDING = ATEN.embedding.default
OVER_LAST = frozenset({
    "mean", "sum", "softmax", "log_softmax", "layer_norm", "rms_norm", "norm", "linalg_vector_norm", "var", "std",
    "topk", "amax", "logsumexp", "sort", "cumsum", "group_norm", "batch_norm",
})  # fmt: skip
"""Operators that put values of one row together."""
STATISTICS = frozenset({"mean", "layer_norm", "rms_norm", "norm", "linalg_vector_norm", "var", "std"})
"""Those whose sums over parts are summed among devices: norms."""
TOKENS_BY_WIDTH = 3
"""Dimensions of values whose heads, if any, are not told apart: samples, tokens, width."""


def splits_by_structure(captured: Capture, infos: Infos) -> dict[str, str]:
    """Return the split of each operator that divides, by name, the loss among them where its vocabulary does.

    `infos` are `Capture.describe`'s. Experts are not among them (`costmodel.capture.experts`).
    """
    finder = _Structure(captured, infos)
    return {**finder.pairs(), **finder.vocabulary()}


_Neighbours = Callable[[str], Iterable[str]]


@dataclass(slots=True)
class _Behind:
    """What lies before a projection, by name: the projections that it depends on, and the operators between."""

    columns: set[str] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)

    def without_shared(self, row: str, before: _Neighbours, after: _Neighbours) -> "_Behind":
        """Return it without what others use too, with all that leads there, and what depends on no column then."""
        inside = {*self.columns, *self.inner}
        waiting = [name for name in inside if any(user not in inside and user != row for user in after(name))]
        while waiting:
            name = waiting.pop()
            if name in inside:
                inside.discard(name)
                waiting += before(name)
        columns, divided = self.columns & inside, set[str]()
        waiting = [*columns]
        while waiting:
            for name in after(waiting.pop()):
                if name in inside and name not in divided:
                    divided.add(name)
                    waiting.append(name)
        return _Behind(columns, divided - columns)


class _Structure:
    def __init__(self, captured: Capture, infos: Infos) -> None:
        self._captured, self._infos, self._groups = captured, infos, captured.groups
        self._owner = {node: name for name, group in captured.groups.items() for node in group.nodes}
        self._projections = {self._owner[node]: None for node in self._owner if self._projects(node)}

    def pairs(self) -> dict[str, str]:
        """Return the splits of projections in pairs, and of what lies between."""
        found: dict[str, str] = {}
        heads: dict[str, int] = {}
        for name, norms in product(reversed(self._projections), (False, True)):  # what is read last may divide most
            behind = self._behind(name, norms) if name not in found else None
            if behind is None or not behind.columns or behind.columns & found.keys():
                continue
            normed = self._normed(name, behind)
            within = {one: "column" if self._groups[one].module in normed else "inner" for one in behind.inner}
            pair = {one: split for one, split in within.items() if one not in found}
            pair |= dict.fromkeys(behind.columns, "column") | {name: "row"}
            heads |= dict.fromkeys(pair, self._heads(behind))
            found |= pair
        some_divide = any(number and number % 2 == 0 for number in heads.values())
        return {one: split for one, split in found.items() if not (some_divide and heads[one] % 2)}

    def _heads(self, behind: _Behind) -> int:
        """Return the heads of the attention between the projections of a pair, 0 where there is none."""
        nodes = (node for one in behind.inner for node in self._groups[one].nodes if node.target in ATTENTIONS)
        return next((self._infos[node.all_input_nodes[0].name][0].shape[-3] for node in nodes), 0)

    def _normed(self, row: str, behind: _Behind) -> set[str]:
        """Return the modules of norms over all that the row reads, or over all heads that a column makes."""
        whole = self._read_width(row)
        columns = {self._width(node) for one in behind.columns for node in self._groups[one].nodes}
        found = set[str]()
        for one in behind.inner:
            for node in self._groups[one].nodes:
                read = self._infos[node.all_input_nodes[0].name] if _name(node) in STATISTICS else ()
                over, dimensions = (read[0].shape[-1], len(read[0].shape)) if read else (0, 0)
                if read and (over == whole or (over in columns and dimensions <= TOKENS_BY_WIDTH)):
                    found.add(self._groups[one].module)
        return found

    def vocabulary(self) -> dict[str, str]:
        """Return the splits of embeddings of the inputs' tokens, of the head over them and of its loss."""
        looked = [n for n in self._owner if n.target is EMBEDDING and self._given(n.all_input_nodes[1])]
        if not looked:
            return {}
        found = {self._owner[node]: "row" for node in looked}
        rows = {self._infos[node.all_input_nodes[0].name][0].shape[0] for node in looked}
        for leaf in self._captured.outputs:
            head = self._made_by(leaf) if isinstance(leaf, fx.Node) else None
            if head is not None and self._width(head) in rows:
                found |= {self._owner[head]: "column", LOSS: "inner"}
        return found

    def _given(self, node: fx.Node) -> bool:
        """Whether a value is one of the inputs, or a view of one."""
        while node.op == "call_function" and self._infos.get(node.name) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node.op == "placeholder"

    def _made_by(self, node: fx.Node) -> fx.Node | None:
        """Return the projection whose values an output holds, if nothing has been done to them but casts and views."""
        while node in self._owner and not self._projects(node) and len(node.all_input_nodes) == 1:
            node = node.all_input_nodes[0]
        return node if self._projects(node) else None

    def _projects(self, node: fx.Node) -> bool:
        return node in self._owner and node.target in PROJECTIONS and any(s.op == "get_attr" for s in _sources(node))

    def _behind(self, row: str, norms: bool) -> _Behind | None:
        """Return what lies before a projection in its block, `norms` among it; None where that cannot be divided."""
        block, width = block_of(self._groups[row].module), self._read_width(row)
        found, waiting = _Behind(), self._before(row) if block else []
        while waiting:
            name = waiting.pop()
            if name in found.inner or name in found.columns:
                continue
            if block_of(self._groups[name].module) != block:
                if self._has_gradient_of(name, width):
                    return None  # values of the block's input are mixed in whole
            elif name in self._projections:
                found.columns.add(name)
            elif any(node.target in GROUPED or self._mixes(node, width, norms) for node in self._groups[name].nodes):
                return None
            else:
                found.inner.add(name)
                waiting += self._before(name)
        found = found.without_shared(row, self._before, self._after)
        read = {name for column in found.columns for name in self._before(column)}
        return None if read & found.inner else found  # a column reads all of its input

    def _before(self, name: str) -> list[str]:
        sources = (s for node in self._groups[name].nodes for s in node.all_input_nodes)
        return [self._owner[s] for s in sources if self._owner.get(s, name) != name]

    def _after(self, name: str) -> list[str]:
        users = (user for node in self._groups[name].nodes for user in node.users)
        return [self._owner.get(user, "") for user in users if self._owner.get(user) != name]

    def _read_width(self, name: str) -> int:
        """Return how wide what a projection reads is."""
        node = next(node for node in self._groups[name].nodes if self._projects(node))
        return next((self._width(s) for s in node.all_input_nodes if s in self._owner and not self._turned(s)), 0)

    def _has_gradient_of(self, name: str, width: int) -> bool:
        """Whether an operator hands on values of a width through which gradients flow."""
        infos = (info for node in self._groups[name].nodes for info in self._infos.get(node.name, ()))
        return any(info.requires_grad and info.shape[-1:] == (width,) for info in infos)

    def _mixes(self, node: fx.Node, width: int, norms: bool) -> bool:
        """Whether an operator puts all that would be divided together, or reads weights as wide; `norms` may."""
        held = (self._infos[s.name][0].shape for s in node.all_input_nodes if s.op == "get_attr" and self._width(s))
        wide = any(shape[-1] == width and not (norms and len(shape) == 1) for shape in held)
        over = self._width(node.all_input_nodes[0]) if node.all_input_nodes else 0
        return wide or (_name(node) in (OVER_LAST - STATISTICS if norms else OVER_LAST) and over == width)

    def _turned(self, node: fx.Node) -> bool:
        return node.target in _TURNED and node.all_input_nodes[0].op == "get_attr"

    def _width(self, node: fx.Node) -> int:
        shapes = self._infos.get(node.name, ())
        return shapes[0].shape[-1] if shapes and shapes[0].shape else 0


def _sources(node: fx.Node) -> list[fx.Node]:
    """Return what a node reads, through views of a weight."""
    return [s.all_input_nodes[0] if s.target in _TURNED else s for s in node.all_input_nodes]


_TURNED = frozenset({ATEN.t.default, ATEN.transpose.int, ATEN.permute.default})


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).split("::")[-1].strip("_") if schema is not None else ""
