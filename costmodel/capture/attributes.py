"""Python values that a model's code reads: numbers, flags, containers, tensors that are no buffers, settings.

A captured program holds them as they were. What the model's code reaches (`reachable`) is kept as a flat list of places
that each step looks at, and is walked anew where one of them differs: an equal object in its place is no change.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from costmodel.capture.drawing import state_of
from costmodel.capture.reachable import Reachable
from costmodel.capture.watched_values import equal

Change = tuple[str, str, str]
"""What is no longer as it was, by name and place; what it was and what it is now, in words."""


class Attributes:
    """What the code of a model reads besides its parameters and buffers, as it was when this was made."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._left_out: frozenset[str] = frozenset()
        self._then = self._latest = Reachable(module, self._left_out)
        self._states = {name: state_of(value) for name, value in self._then.drawing.items()}

    def changed(self) -> list[Change]:
        """Return what is no longer as it was."""
        if all(place.stands() for place in self._then.places):
            return []
        self._latest = Reachable(self._module, self._left_out)
        then, now = self._then.told(), self._latest.told()
        found = [name for name in {**then, **now} if not _same(then.get(name), now.get(name))]
        if not found:  # what nobody reads has come or gone, or an equal object is there
            self._then = self._latest
        return [(name, _shown(then.get(name)), _shown(now.get(name))) for name in found]

    def drawn(self) -> list[str]:
        """Return the generators and counters among the values that have been drawn from since this was made."""
        return [name for name, value in self._then.drawing.items() if state_of(value) != self._states[name]]

    @contextmanager
    def as_moved(self) -> Iterator[None]:
        """Within the block modules have the values that `changed` has found last; other objects nobody has put back."""
        own = {id(vars(inner)): vars(inner) for inner in self._module.modules()}
        moved = [
            (own[id(place.found)], name, value)
            for place in self._latest.places
            if id(place.found) in own
            for name, value in zip(place.names or (), place.kept, strict=False)
            if own[id(place.found)].get(name, _ABSENT) is not value
        ]
        before = [found.get(name, _ABSENT) for found, name, _ in moved]
        for found, name, value in moved:
            found[name] = value
        try:
            yield
        finally:
            for (found, name, _), value in zip(moved, before, strict=True):
                found[name] = value
                if value is _ABSENT:
                    del found[name]

    def leave_out(self, names: Iterable[str]) -> None:
        """Look at some of them, by name and place, no more, and take all others as they are now."""
        self._left_out |= frozenset(names)
        self._then = Reachable(self._module, self._left_out)


_ABSENT = object()
"""Stands for a name that a namespace lacks."""


def _shown(told: tuple[Any, ...] | None) -> str:
    """Return values for people: one for itself, what a container holds as a list."""
    if told is None:
        return "not there"
    held = ["a tensor" if isinstance(value, torch.Tensor) else repr(value) for value in told if type(value) is not type]
    held = held or [repr(value) for value in told]  # a class, or an empty container of it
    text = held[0] if len(told) == len(held) == 1 else f"[{', '.join(held)}]"
    return text if len(text) < 80 else f"{text[:77]}..."


def _same(then: tuple[Any, ...] | None, now: tuple[Any, ...] | None) -> bool:
    if then is None or now is None or len(then) != len(now):
        return False
    return all(map(equal, then, now))
