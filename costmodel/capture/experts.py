"""Experts of a mixture, as far as a captured program shows them: grouped matrix products over rows that were routed.

One weight holds all experts, and rows that are sorted by expert are multiplied each by its own (torch's grouped
product, transformers' experts). What lies between two such products of a block, the views of their weights and rows of
their biases belong to the experts; how many take each token is the width of the router's choice, the table of whole
numbers with a row a token and a number a routed row. Leaves out mixtures that loop over experts in Python: a branch on
values, which no capture takes, or all experts for all tokens, which they compute.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from costmodel.capture.capture import Capture
from costmodel.capture.passes import module_path
from costmodel.capture.shapes import TensorInfo
from costmodel.model.blocks import block_of

Infos = Mapping[str, tuple[TensorInfo, ...]]

GROUPED = tuple(
    getattr(getattr(torch.ops, space), name).default
    for space, name in (("aten", "_grouped_mm"), ("transformers", "grouped_mm_fallback"))
    if hasattr(getattr(torch.ops, space), name)
)
"""Products of sorted rows with a weight that holds all experts; both are called with (rows, weight, ends)."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts of one block: operators by name, how many experts take each token, operators that look biases up."""

    operators: tuple[str, ...]
    active: int
    biases: frozenset[str] = frozenset()


def grouped_flop(args: tuple[Any, ...]) -> int:
    """Return the floating-point operations of a grouped product: each row meets one expert's weight."""
    rows, inner = args[0].shape
    return int(2 * rows * inner * args[1].shape[-1])


def routed_experts(captured: Capture, infos: Infos) -> tuple[Routed, ...]:
    """Return the experts of each block that has any, in the order of the program; `infos` are `Capture.describe`'s."""
    owner = {node: name for name, group in captured.groups.items() for node in group.nodes}
    blocks: dict[str, list[fx.Node]] = {}
    for node, name in owner.items():
        if node.target in GROUPED:
            blocks.setdefault(block_of(captured.groups[name].module), []).append(node)
    return tuple(_routed(products, owner, infos) for products in blocks.values())


def _routed(products: list[fx.Node], owner: dict[fx.Node, str], infos: Infos) -> Routed:
    behind = {node for product in products for node in _reached(product, owner, forwards=True)}
    before = {node for product in products for node in _reached(product, owner, forwards=False)}
    weights = {node for product in products for node in _views(product.args[1], owner)}
    inside = {*products, *weights, *(behind & before)}
    num = infos[products[0].all_input_nodes[1].name][0].shape[0]
    named = {owner[node] for node in inside}
    biases = {node for node in owner if _reads_all(node, num, infos) and named.issuperset(map(owner.get, node.users))}
    names = dict.fromkeys(name for node, name in owner.items() if name in named or node in biases)
    rows = infos[products[0].all_input_nodes[0].name][0].shape[0]
    numbers = (info for node in before for info in infos.get(node.name, ()) if not info.dtype.is_floating_point)
    chosen = (info.shape for info in numbers if len(info.shape) == 2 and prod(info.shape) == rows)
    active = max((shape[1] for shape in chosen), default=1)
    return Routed(tuple(names), active, frozenset(owner[node] for node in biases))


def _reads_all(node: fx.Node, num: int, infos: Infos) -> bool:
    """Whether a node looks rows of a weight up that holds all experts: their biases, say."""
    held = (info for source in node.all_input_nodes if source.op == "get_attr" for info in infos[source.name])
    return any(info.shape[:1] == (num,) for info in held)


def _reached(start: fx.Node, owner: dict[fx.Node, str], *, forwards: bool) -> Iterator[fx.Node]:
    """Yield what a node leads to, or what leads to it, in one block."""
    waiting, seen = [start], {start}
    while waiting:
        node = waiting.pop()
        for other in node.users if forwards else node.all_input_nodes:
            if other in owner and other not in seen and _same_block(other, start):
                seen.add(other)
                waiting.append(other)
                yield other


def _same_block(one: fx.Node, other: fx.Node) -> bool:
    return block_of(module_path(one)) == block_of(module_path(other))


def _views(weight: object, owner: dict[fx.Node, str]) -> Iterator[fx.Node]:
    """Yield the calls between a weight and its product."""
    node = weight
    while isinstance(node, fx.Node) and node in owner:
        yield node
        node = node.all_input_nodes[0] if node.all_input_nodes else None
