"""What attention masks leave to be seen, by computing them: how many keys, and whether only earlier ones.

While a model is exported masks are made of positions and of the inputs' sizes, so they have values without any weight.
Leaves out masks that hang on the inputs' values (padding): what they hide nobody knows beforehand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from costmodel.capture.capture import Capture
from costmodel.capture.kernel_attention import ATTENTIONS
from costmodel.capture.pairs import SIZE
from costmodel.capture.shapes import TensorInfo, fetch

Infos = Mapping[str, tuple[TensorInfo, ...]]

LARGEST = 2**28
"""Numbers of a mask beyond which it is not computed."""


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """Keys that a query sees at most, and whether none lies behind it."""

    keys: int
    causal: bool


def seen_keys(captured: Capture, infos: Infos) -> Mapping[fx.Node, SeenKeys]:
    """Return what each mask of an attention leaves to be seen, where that hangs on sizes alone.

    `infos` are `Capture.describe`'s.
    """
    found: dict[fx.Node, SeenKeys] = {}
    values: dict[fx.Node, Any] = {}
    for node in captured.program.module.graph.nodes:
        if node.target not in ATTENTIONS:
            continue
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        if not isinstance(mask, fx.Node) or mask in found or mask not in captured.replicated:
            continue
        if prod(infos[mask.name][0].shape) > LARGEST:
            continue
        try:
            found[mask] = _seen(_Sized(captured, infos, values).value(mask))
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # it reads what has no value here
            continue
    return found


def _seen(mask: torch.Tensor) -> SeenKeys:
    """Return what one mask, of truth values or added to scores, leaves."""
    shown = mask if mask.dtype is torch.bool else mask > torch.finfo(mask.dtype).min / 2
    first = shown.reshape(-1, *shown.shape[-2:])[0]
    most = int(first.sum(-1).max())
    return SeenKeys(max(1, most), not bool(first.triu(1).any()))


class _Sized:
    """Computes nodes of a program that hang on its inputs' sizes, and refuses those that read the inputs themselves."""

    def __init__(self, captured: Capture, infos: Infos, values: dict[fx.Node, Any]) -> None:
        self._captured, self._infos, self._values = captured, infos, values

    def value(self, node: fx.Node) -> Any:
        """Return a node's value."""
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            held = fetch(self._captured.program.module, node.target)
            if isinstance(held, torch.Tensor) and held.is_meta:
                raise ValueError(f"{node.name} has no values")
            return held
        if node.op != "call_function":
            raise ValueError(f"{node.name} is an input")
        if node.target is SIZE:
            return self._infos[node.args[0].name][0].shape[node.args[1]]  # type: ignore[union-attr,index]
        args, kwargs = pytree.tree_map(_here, fx.map_arg((node.args, node.kwargs), self.value))
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _here(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value
