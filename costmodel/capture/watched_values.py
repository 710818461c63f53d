"""Values that code reads of an object, kept so that a change of them is seen.

Leaves out how they are found (`costmodel.capture.reachable`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), frozenset, torch.Size, torch.dtype, torch.device)
"""Types whose values are compared by what they are; others by identity."""


@dataclass(slots=True)
class WatchedValues:
    """Values that code reads of one object.

    Attributes
    ----------
    words : str
        What it is called; where values have names, what follows them.
    found : object
        What is looked into.
    get : callable
        Returns the values.
    names : tuple of str, optional
        Of the values; None for a container.
    length : int
        Of a namespace, else -1: a name that it lacked may hide what stood behind.
    kept : tuple
        What the values were.
    """

    words: str
    found: Any
    get: Callable[[Any], tuple[Any, ...]]
    names: tuple[str, ...] | None = None
    length: int = -1
    kept: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.kept = self.get(self.found)

    def stands(self) -> bool:
        """Whether nothing has changed, which takes a microsecond. Tensors are compared by identity, never by value."""
        try:
            now = self.get(self.found)
        except (KeyError, AttributeError):
            return False
        if len(now) != len(self.kept) or (self.length >= 0 and len(self.found) != self.length):
            return False
        return all(map(is_, now, self.kept)) or all(map(_alike, now, self.kept))


def equal(then: Any, now: Any) -> bool:
    """Whether two values are one, or alike. Tensors are never alike: a capture would read a number of them."""
    if then is now or isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return then is now
    try:
        return bool(then == now) or (then != then and now != now)
    except (RuntimeError, ValueError, TypeError):
        return False


def _alike(now: Any, then: Any) -> bool:
    return now is then or (isinstance(now, PLAIN) and isinstance(then, PLAIN) and equal(now, then))
