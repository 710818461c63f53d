"""The user's modules in a part: which of their calls lie in it whole, and how such a call is made.

A call is whole where all that it computes is the part's, all that it reads is among its arguments, and all that others
read of it is among its outputs. Outer calls come before those inside them. Modules that draw random numbers are not
called: what they draw would depend on the cut. Leaves out how calls are found (`calls`), and what a part does else.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.attention import configs_with_cache, no_cache
from costmodel.capture.calls import ModuleCall
from costmodel.capture.capture import Capture
from costmodel.capture.draws import draws_anywhere
from costmodel.errors import DoesNotMatch

_NOTHING = nullcontext()
EMPTY: Mapping[fx.Node, int] = {}
_aten = torch.ops.aten


def whole_calls(
    capture: Capture, inside: Collection[fx.Node], sends: Iterable[str], run_of: Mapping[fx.Node, int] = EMPTY
) -> tuple[tuple[ModuleCall, ...], dict[str, str]]:
    """Return the calls that a part of these nodes can make, outer ones in place of those inside them.

    And why it cannot make others that it holds, or of which it holds something, by the path of their module.
    """
    leaving = {node for node in capture.outputs if isinstance(node, fx.Node)}
    sent, entering = set(sends), entering_nodes(capture, inside)
    taken: set[fx.Node] = set()
    found, left = [], {}
    for call in capture.calls:
        own = [node for node in call.nodes if node not in capture.replicated]
        held = [node for node in own if node in inside]
        if not held or taken.intersection(held):
            continue
        reason = CUT if len(held) < len(own) else _open_reason(capture, call, sent, leaving)
        if len({run_of.get(node) for node in own}) > 1:
            reason = reason or "a part of it is computed again by itself"
        unread = [node.name for node in call.inputs.nodes if not _is_there(capture, node, inside, entering)]
        if unread and not reason:
            reason = f"it is given {unread[0]}, which it does not read and no stage sends"
        if reason:
            left[call.path] = reason
        else:
            taken.update(own)
            found.append(call)
    return tuple(found), left


CUT = "a cut goes through it"


def entering_nodes(capture: Capture, inside: Collection[fx.Node]) -> dict[fx.Node, None]:
    """Return what a part of these nodes reads and does not compute: raw inputs, and values that other parts send it."""
    found: dict[fx.Node, None] = {}
    waiting, seen = list(inside), set(inside)
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source in seen or source.op == "get_attr":
                continue
            seen.add(source)
            if source in capture.replicated:
                waiting.append(source)
            else:
                found[source] = None
    return found


def _is_there(capture: Capture, node: fx.Node, inside: Collection[fx.Node], entering: Collection[fx.Node]) -> bool:
    """Whether a part has a value: it computes or receives it, or can have it from raw inputs."""
    own = node in inside or node in capture.replicated or node in entering
    return own or node.op in ("get_attr", "placeholder")


def _open_reason(capture: Capture, call: ModuleCall, sent: Collection[str], leaving: Collection[fx.Node]) -> str:
    """Return why a part cannot make a call that it holds whole; nothing where it can."""
    if any(map(draws_anywhere, call.nodes)):
        return "it draws random numbers, which would depend on the cut"
    nodes, given, returned = set(call.nodes), set(call.inputs.nodes), set(call.outputs.nodes)
    for node in call.nodes:
        for source in node.all_input_nodes:
            other = source.op != "get_attr" and source not in nodes and source not in given
            if other and isinstance(source.meta.get("val"), torch.Tensor):
                return f"it reads {source.name}, which is none of its arguments"
        outside = node.name in sent or node in leaving or not nodes.issuperset(node.users)
        known = node in capture.replicated or node in returned or passed_on(node, nodes) not in nodes
        if outside and not known:
            return f"{node.name} is read behind it and none of what it returns"
    return ""


def passed_on(node: fx.Node, nodes: Collection[fx.Node]) -> fx.Node:
    """Return what a node of a call is before the call, where the call has only cast it to what it was.

    Export takes the cast for the value from there on, and so would those who read the value behind the call.
    """
    while node in nodes and node.target in _CASTS:
        source: Any = node.args[0]
        before, after = source.meta["val"], node.meta["val"]
        if (before.dtype, before.device) != (after.dtype, after.device):
            break
        node = source
    return node


_CASTS = frozenset((_aten.to.dtype, _aten.to.dtype_layout, _aten.to.device, _aten.to.other, _aten.type_as.default))


class MadeCall(nn.Module):
    """One call of a user's module, by the tensors and sizes among its arguments.

    Raises
    ------
    DoesNotMatch
        When the module returns something of another structure than when it was captured.
    """

    def __init__(self, module: nn.Module, call: ModuleCall) -> None:
        super().__init__()
        self.module, self.path = module, call.path
        self._given = [isinstance(leaf, fx.Node) for leaf in call.inputs.leaves]
        self._constants = [leaf for leaf in call.inputs.leaves if not isinstance(leaf, fx.Node)]
        self._spec, self._out_spec = call.inputs.spec, call.outputs.spec
        self._returned = [i for i, leaf in enumerate(call.outputs.leaves) if isinstance(leaf, fx.Node)]
        self._cached = configs_with_cache(module)
        self._around: Callable[[], AbstractContextManager[Any]] | None = None
        # The usual call, of single tensors that give one, is spared what takes microseconds each time.
        positions = range(len(self._given))
        args, kwargs = pytree.tree_unflatten(positions, self._spec)
        self._plain = all(self._given) and not kwargs and list(args) == list(positions)

    def forward(self, *values: Any) -> list[Any]:
        """Return the tensors and sizes among what the module returns."""
        with no_cache(self._cached) if self._cached else _NOTHING, self._around() if self._around else _NOTHING:
            result = self.module(*values) if self._plain else self._made(values)
        if isinstance(result, torch.Tensor) and self._out_spec.is_leaf():
            return [result]
        found, spec = pytree.tree_flatten(result)
        if spec != self._out_spec:
            raise DoesNotMatch(
                f"the module {self.path or type(self.module).__name__} returns {spec} in a stage, and {self._out_spec} "
                "when it was captured: what it returns must follow from its arguments"
            )
        return [found[i] for i in self._returned]

    __call__ = forward  # nothing hooks into these calls, and nn.Module's look for hooks takes microseconds in each

    def within(self, around: Callable[[], AbstractContextManager[Any]]) -> "MadeCall":
        """Return the same call, made within a block each time."""
        other = copy(self)
        other._around = around
        return other

    def _made(self, values: Sequence[Any]) -> Any:
        nodes, constants = iter(values), iter(self._constants)
        leaves = [next(nodes) if given else next(constants) for given in self._given]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self.module(*args, **kwargs)


class Reading(nn.Module):
    """A parameter of a model by its name, as it is when it is read: whoever divides it may put it together by then."""

    def __init__(self, root: nn.Module, name: str) -> None:
        super().__init__()
        path, _, self._name = name.rpartition(".")
        self._owner = (root.get_submodule(path),)  # in a tuple it is hidden from nn.Module

    def forward(self) -> Any:
        """Return it."""
        return getattr(self._owner[0], self._name)
