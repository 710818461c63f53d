"""Orders as plan files hold them: in full, or in short where a plan is long.

In short, an order that an earlier rank has too is ``{"same_as": rank}``, and of a part that comes again and again, each
time `step` micro-batches on, the first is alone: ``{"repeat": n, "step": k, "actions": [...]}``. Leaves out what
the actions mean.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from costmodel.codec import Positive, record
from costmodel.files import Node
from costmodel.forms import Definitions, JsonForm, Schema

LONG = 50_000
"""Actions of all ranks together from which on a file holds them in short: below it people can read what they find."""
MOST_ACTIONS = 10_000_000
"""Of all orders together that are read: a few characters of a file may ask for any number."""
_AROUND = re.compile(r"([0-9]+[A-Z_]+?)([0-9]+)((?:\.[0-9]+)?(?:[<>][0-9]+)?)", re.ASCII)
_TRIES = 128
ENOUGH = 0.5
"""Part of an order that is repeated: nothing longer is looked for."""
Parts = tuple[str, int, str]
"""An action's text before its micro-batch, that (-1 where there is none), and the text after it."""


@dataclass(frozen=True, slots=True)
class _SameAs:
    """The order of an earlier rank."""

    same_as: int


@dataclass(frozen=True, slots=True)
class _Block:
    """The actions, `repeat` times in all, each time with micro-batches `step` higher."""

    repeat: Positive
    step: Positive
    actions: tuple[str, ...]


def orders_to_json(orders: Sequence[tuple[str, ...]]) -> list[object]:
    """Return the JSON form of each rank's order."""
    if sum(map(len, orders)) < LONG:
        return list(map(list, orders))
    first: dict[tuple[str, ...], int] = {}
    same = [first.setdefault(order, rank) for rank, order in enumerate(orders)]
    return [
        _in_short(order) if rank == known else {"same_as": known}
        for rank, (known, order) in enumerate(zip(same, orders, strict=True))
    ]


def _in_short(order: Sequence[str]) -> list[object]:
    """Put the most that is repeated around the middle of an order in short."""
    parts = list(map(_parts, order))
    found = [_Repeated(0, 1, 0, 1)]
    for length in _lengths(parts):
        if found[-1].saved >= ENOUGH * len(parts):
            break  # what comes again later is most often the same, several times over
        start, stop = _stretch(parts, length)
        found.append(_Repeated(start, length, _step(parts, length), (stop - start) // length))
    best = max(found, key=lambda each: each.saved)
    if not best.saved:
        return list(order)
    first, behind = best.start + best.length, best.start + best.times * best.length
    block = record(_Block).write(_Block(best.times, best.step, tuple(order[best.start : first])))
    return [*order[: best.start], block, *order[behind:]]


class _Repeated(NamedTuple):
    """A part of an order that comes several times."""

    start: int
    length: int
    step: int
    times: int

    @property
    def saved(self) -> int:
        """Actions that need not be written."""
        return (self.times - 1) * self.length


def _lengths(parts: Sequence[Parts]) -> list[int]:
    """Return how far on the action in the middle comes again, with a later micro-batch: its next few times."""
    middle = len(parts) // 2
    if not parts or parts[middle][1] < 0:
        return []
    head, _, tail = parts[middle]
    found = [i - middle for i in range(middle + 1, len(parts)) if (parts[i][0], parts[i][2]) == (head, tail)]
    return [length for length in found[:_TRIES] if _step(parts, length) > 0]


def _step(parts: Sequence[Parts], length: int) -> int:
    middle = len(parts) // 2
    return parts[middle + length][1] - parts[middle][1]


def _stretch(parts: Sequence[Parts], length: int) -> tuple[int, int]:
    """Return from where to where each action comes again `length` later, as many micro-batches on as in the middle."""
    step = _step(parts, length)

    def again(i: int) -> bool:
        (head, k, tail), (later_head, later_k, later_tail) = parts[i], parts[i + length]
        return head == later_head and tail == later_tail and k >= 0 and later_k - k == step

    start = stop = len(parts) // 2
    while start > 0 and again(start - 1):
        start -= 1
    while stop + length < len(parts) and again(stop):
        stop += 1
    return start, stop + length


def _parts(text: str) -> Parts:
    match = _AROUND.fullmatch(text)
    return (match[1], int(match[2]), match[3]) if match else (text, -1, "")


def orders_from_nodes(nodes: Sequence[Node]) -> tuple[tuple[str, ...], ...]:
    """Read each rank's order."""
    found: list[tuple[str, ...]] = []
    room = MOST_ACTIONS
    for node in nodes:
        if isinstance(node.value, Mapping):
            rank = record(_SameAs).read(node).same_as
            if rank >= len(found):
                node.child("same_as").fail(
                    f"a rank before this one, {len(found)}, has the order that another is the same as"
                )
            found.append(found[rank])
        else:
            found.append(_order(node, room))
            room -= len(found[-1])
    return tuple(found)


def _schema(known: Definitions) -> Schema:
    actions = {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": f"^{_AROUND.pattern}$"}}
    block = record(_Block).schema(known)
    known[_Block.__name__.strip("_")]["properties"]["actions"] = actions
    in_full = {"type": "array", "items": {"oneOf": [{"type": "string"}, block]}}
    return {"oneOf": [in_full, record(_SameAs).schema(known)]}


ACTIONS = JsonForm[object](lambda node: node.value, schema=_schema)
"""One rank's order, which `orders_from_nodes` reads with those of the ranks before it."""


def _order(node: Node, room: int) -> tuple[str, ...]:
    order: list[str] = []
    for item in node.items():
        if isinstance(item.value, Mapping):
            order += _repeated(item, room - len(order))
        else:
            order.append(item.text())
    return tuple(order)


def _repeated(node: Node, room: int) -> list[str]:
    block: _Block = record(_Block).read(node)
    parts = list(map(_parts, block.actions))
    if not parts or any(k < 0 for _, k, _ in parts):
        node.child("actions").fail("what is repeated are actions that name a micro-batch")
    if block.repeat * len(parts) > room:
        node.child("repeat").fail(f"the orders of a plan hold at most {MOST_ACTIONS} actions")
    return [f"{head}{k + time * block.step}{tail}" for time in range(block.repeat) for head, k, tail in parts]
