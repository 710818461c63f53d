"""Which calls of a program draw random numbers, and the arguments of a call by name. Leaves out how they are seeded."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from costmodel.capture.shapes import fetch


def arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a node that calls torch's library by name, defaults included."""
    return named_arguments(node.target, node.args, node.kwargs)


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of an operator of torch's library by name, defaults included."""
    schema = target._schema.arguments
    given = dict(zip((argument.name for argument in schema), args, strict=False))
    return {**{a.name: a.default_value for a in schema if a.has_default_value()}, **given, **kwargs}


_DRAW_NONE = ("aten", "prims", "prim", "transformers")
"""Libraries of operators that draw nothing without saying so; transformers' are products of experts."""


def draws_numbers(node: fx.Node) -> bool:
    """Whether a call draws random numbers, or may; dropout in eval mode or with probability 0 does not."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return target.namespace not in _DRAW_NONE
    given = arguments(node)
    return not any(given.get(name, 1) in (0, False) for name in ("p", "dropout_p", "dropout", "train", "training"))


def draws_anywhere(node: fx.Node) -> bool:
    """Whether a call, or one in a region that it runs (autocast's, say), draws random numbers."""
    owner = node.graph.owning_module
    assert owner is not None  # noqa: S101 - a program's
    regions = [fetch(owner, source.target) for source in node.all_input_nodes if source.op == "get_attr"]
    inner = (each for region in regions if isinstance(region, fx.GraphModule) for each in region.graph.nodes)
    return draws_numbers(node) or any(map(draws_anywhere, inner))
