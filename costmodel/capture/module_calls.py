"""The user's modules in a part: which of their calls lie in it whole, and how such a call is made.

A call is whole where all that it computes is the part's, all that it reads is among its arguments, and all that others
read of it is among its outputs. Outer calls come before those inside them. Modules that draw random numbers are not
called: what they draw would depend on the cut. Leaves out how calls are found (`calls`), and what a part does else.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
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


def whole_calls(capture: Capture, inside: Collection[fx.Node], sends: Iterable[str]) -> tuple[ModuleCall, ...]:
    """Return the calls that a part of these nodes can make, outer ones in place of those inside them."""
    leaving = {node for node in capture.outputs if isinstance(node, fx.Node)}
    sent = set(sends)
    taken: set[fx.Node] = set()
    found = []
    for call in capture.calls:
        own = [node for node in call.nodes if node not in capture.replicated]
        if not own or taken.intersection(own) or not all(node in inside for node in own):
            continue
        if _is_closed(capture, call, sent, leaving) and not any(map(draws_anywhere, call.nodes)):
            taken.update(own)
            found.append(call)
    return tuple(found)


def _is_closed(capture: Capture, call: ModuleCall, sent: Collection[str], leaving: Collection[fx.Node]) -> bool:
    """Whether tensors enter a call as its arguments alone, and leave it as its outputs alone."""
    nodes, given, returned = set(call.nodes), set(call.inputs.nodes), set(call.outputs.nodes)
    read = {source for node in call.nodes for source in node.all_input_nodes} - nodes - given
    if any(source.op != "get_attr" and isinstance(source.meta.get("val"), torch.Tensor) for source in read):
        return False
    for node in call.nodes:
        outside = node.name in sent or node in leaving or not nodes.issuperset(node.users)
        if outside and node not in capture.replicated and node not in returned:
            return False
    return True


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
        # The usual call, of tensors that stand alone and give one, is spared what takes microseconds each time.
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
