"""What a model computes in eval mode, as other constants of the calls that it makes in training.

The model is captured once more, in eval mode and without values, when it is first evaluated: dropout that is always on
stays on, a norm that always takes the batch's averages takes them. Both programs are gone through call by call. A model
whose Python takes another way in eval mode is refused by name. Leaves out numbers that are drawn (`evaluation`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture
from costmodel.capture.draws import arguments
from costmodel.capture.shapes import fetch
from costmodel.capture.writes import written_by
from costmodel.errors import DoesNotMatch, InvalidInput

Constants = Mapping[str, Mapping[str, Any] | None]
"""Call, with the names of the regions around it joined by dots -> its arguments that are others in eval mode.

None for a call that eval mode does without.
"""


_Table = tuple[dict[Any, Any], dict[Any, Any]]
"""A table of a module, and what it holds."""


class ModelAsCaptured:
    """What a model was when it was captured: its tensors' shapes, by their ids on meta, and its hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module, stand_ins = module, dict[int, torch.Tensor]()
        for tensor in (*module.parameters(), *module.buffers()):
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            is_parameter = isinstance(tensor, nn.Parameter)
            stand_ins[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        tables: list[dict[str, Any]] = [table for m in module.modules() for table in (m._parameters, m._buffers)]
        self._tensors = [
            (table, {name: stand_ins.get(id(value)) for name, value in table.items()}) for table in tables if table
        ]
        self._hooks = [(row, dict(row)) for m in module.modules() for row in (m._forward_pre_hooks, m._forward_hooks)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have the model in eval mode, on meta, and with the hooks that it had, within the block."""
        modes = [(inner, inner.training) for inner in self.module.modules()]
        then: list[_Table] = [*self._tensors, *self._hooks]
        now: list[_Table] = [(table, {**table}) for table, _ in then]
        _refill(then)
        self.module.eval()
        try:
            yield
        finally:
            for inner, trains in modes:
                inner.training = trains
            _refill(now)


def _refill(tables: Sequence[_Table]) -> None:
    for table, kept in tables:
        table.clear()
        table.update(kept)


def eval_constants(captured: Capture, model: ModelAsCaptured) -> Constants:
    """Return what is another constant in eval mode.

    Raises
    ------
    DoesNotMatch
        When the model takes another way in eval mode.
    """
    with model.evaluating():
        try:
            other = capture(_on_meta(captured.model), captured.static_batch)
        except InvalidInput as error:
            raise _refusal(str(error)) from None
        writes = [one.name for one in written_by(other, other.operators) if one.is_read or one.is_average]
    for name in writes:
        raise DoesNotMatch(
            f"the forward writes {name!r} in eval mode too, and an evaluation leaves nothing behind: evaluate it "
            "in one process, from pipe.state_dict()"
        )
    return _Comparison(captured.program.module, other.program.module).constants


def _on_meta(model: TrainingModel) -> TrainingModel:
    def moved(values: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), values)

    return replace(model, args=moved(model.args), kwargs=moved(model.kwargs), targets=None, device=None)


class _Comparison:
    """Goes through two programs of one model, the one of training and that of eval mode.

    Each call of the latter is sought among the former's, behind the one before it; what is left over is only trained.
    """

    def __init__(self, trained: fx.GraphModule, other: fx.GraphModule, path: str = "") -> None:
        self._trained, self._other, self._path = trained, other, path
        self.constants: dict[str, Mapping[str, Any] | None] = {}
        inputs = (list(module.graph.find_nodes(op="placeholder")) for module in (other, trained))
        self._pairs: dict[fx.Node, fx.Node] = dict(zip(*inputs, strict=True))
        calls = [node for node in trained.graph.nodes if node.op == "call_function"]
        self.constants |= {path + node.name: None for node in calls}
        found = 0
        for node in (node for node in other.graph.nodes if node.op == "call_function"):
            alike = (k for k in range(found, len(calls)) if calls[k].target is node.target)
            place = next((k for k in alike if self._same_tensors(calls[k], node)), None)
            if place is None:
                raise _refusal(f"first at {path}{calls[min(found, len(calls) - 1)].name}")
            self._pairs[node], found = calls[place], place + 1
            self.constants[path + calls[place].name] = self._changed(calls[place], node)
        ends = [pytree.tree_leaves(module.graph.output_node().args) for module in (trained, other)]
        if len(ends[0]) != len(ends[1]) or not all(map(self._agree, *ends)):
            raise _refusal("it returns something else")

    def _same_tensors(self, then: fx.Node, now: fx.Node) -> bool:
        rows = [[leaf for leaf in _leaves(node) if isinstance(leaf, fx.Node)] for node in (then, now)]
        return len(rows[0]) == len(rows[1]) and all(map(self._agree, *rows))

    def _changed(self, then: fx.Node, now: fx.Node) -> Mapping[str, Any]:
        """Return the arguments of a call that are others now, once what regions in it compute is compared."""
        for a, b in zip(_leaves(then), _leaves(now), strict=False):
            bodies = self._values(a, b) if isinstance(a, fx.Node) and isinstance(b, fx.Node) else ()
            if bodies and all(isinstance(body, fx.GraphModule) for body in bodies):
                self.constants |= _Comparison(bodies[0], bodies[1], f"{self._path}{a.name}.").constants
        if not isinstance(now.target, torch._ops.OpOverload):
            if len(_leaves(then)) != len(_leaves(now)) or not all(map(self._agree, _leaves(then), _leaves(now))):
                raise _refusal(f"first at {self._path}{then.name}")
            return {}
        rows = [{n: pytree.tree_leaves([v], _is_none) for n, v in arguments(node).items()} for node in (then, now)]
        different = [
            name for name, row in rows[0].items()
            if len(row) != len(rows[1][name]) or not all(map(self._agree, row, rows[1][name]))
        ]  # fmt: skip
        if any(isinstance(leaf, fx.Node) for name in different for row in rows for leaf in row[name]):
            raise _refusal(f"first at {self._path}{then.name}")
        return {name: arguments(now)[name] for name in different}

    def _values(self, a: fx.Node, b: fx.Node) -> tuple[Any, ...]:
        """Return what two nodes hold, where both hold something."""
        if a.op != "get_attr" or b.op != "get_attr":
            return ()
        return fetch(self._trained, a.target), fetch(self._other, b.target)

    def _agree(self, a: Any, b: Any) -> bool:
        """Whether two arguments are the same; devices never are, for one program has none."""
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
            is_device = isinstance(a, torch.device | str) and isinstance(b, torch.device | str)
            return is_device or (type(a) is type(b) and bool(a == b))
        values = self._values(a, b)
        if not values:
            return self._pairs.get(b) is a
        known = all(isinstance(v, torch.Tensor) and v.device.type == "cpu" and v.numel() for v in values)
        return a.target == b.target and (not known or torch.equal(*values))


def _leaves(node: fx.Node) -> list[Any]:
    leaves: list[Any] = pytree.tree_leaves((node.args, node.kwargs), _is_none)
    return leaves


def _is_none(value: Any) -> bool:
    return value is None


def _refusal(where: str) -> DoesNotMatch:
    return DoesNotMatch(
        f"the model computes something else in eval mode than what was captured ({where}), and stages run what was "
        "captured: evaluate the model in one process, from pipe.state_dict()"
    )
