"""What a callable can reach of its own, kept and put back: variables of closures, globals, attributes, tensors.

Whoever calls a user's function once more than a plain loop does leaves nothing behind so, and sees what a call changes.
Followed are functions, partials, modules and objects of classes that are neither torch's nor the standard library's, to
all that they hold: what a call only writes has to be put back, too. (`costmodel.capture.reachable` asks another thing
of a whole model: which values its code reads, so that none is another one later. It follows the names in code, through
installed packages too, and keeps no copies.) Leaves out what lies deeper than a few levels, files, and locks.
"""

import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

_DEEPEST, _MOST, _LONGEST, _SMALL, _LARGE = 6, 2000, 4096, 2**12, 2**24
"""Levels and holders that are followed, parts of one, bytes of a tensor that is always kept, and of one if in doubt."""

_TENSORS = (torch.Tensor, nn.Parameter)
_TABLES = ("_parameters", "_buffers", "_modules")
_PLAIN = (bool, int, float, complex, str, bytes)
_FOREIGN = sys.stdlib_module_names | {"torch", "numpy", "costmodel", "simulator", "planner", "executor"}

Parts = dict[Any, Any]


@dataclass(slots=True)
class _Holder:
    """Something that holds values by names or numbers: how they are read and put back, and what they were."""

    source: Any
    words: str
    read: Callable[[], Parts]
    write: Callable[[Parts], object]
    kept: Parts

    def changed(self) -> list[str]:
        """Return the names of what is no longer as it was."""
        now, absent = self.read(), object()
        names = [n for n in {**self.kept, **now} if not _same(self.kept.get(n, absent), now.get(n, absent))]
        return [f"{name} {self.words}" if isinstance(name, str) else self.words.removeprefix("of ") for name in names]


class ReachableState:
    """What a callable can reach, as it was when this was made.

    Parameters
    ----------
    root : callable
    without : collection of int
        Ids of objects that are not followed.
    moving : collection of int, optional
        Ids of tensors that are known to change: their values are kept, and those of small ones.
    """

    def __init__(self, root: Any, without: Collection[int] = (), moving: Collection[int] | None = None) -> None:
        self._holders: list[_Holder] = []
        seen = set(without)
        waiting: list[tuple[Any, str, int]] = [(root, "", 0)]
        for value, words, depth in waiting:  # which grows meanwhile
            if id(value) in seen or depth > _DEEPEST or len(self._holders) > _MOST or _is_long(value):
                continue
            seen.add(id(value))
            copies = type(value) not in _TENSORS or value.nbytes <= (_LARGE if moving is None else _SMALL)
            for found, read, write in _holders(value, words, copies or id(value) in (moving or ())):
                holder = _Holder(value, found, read, write, read())
                self._holders.append(holder)
                for name, inner in holder.kept.items():
                    is_named = isinstance(name, str) and name not in _TABLES
                    waiting.append((inner, f"of {name} {found}" if is_named else found, depth + 1))

    def changed(self) -> list[str]:
        """Return the names of what is no longer as it was."""
        return [name for holder in self._holders for name in holder.changed()]

    def moving(self) -> set[int]:
        """Return the ids of the objects that are no longer as they were."""
        return {id(holder.source) for holder in self._holders if holder.changed()}

    def restore(self) -> None:
        """Put back what has changed."""
        for holder in self._holders:
            if holder.changed():
                holder.write(holder.kept)


@contextmanager
def left_alone(root: Any, without: Collection[int] = (), moving: Collection[int] | None = None) -> Iterator[None]:
    """Put back what the block changes within a callable's reach, and random numbers that it draws."""
    state, numbers, numpy = ReachableState(root, without, moving), random.getstate(), sys.modules.get("numpy")
    others = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(numbers)
        if numpy is not None:
            numpy.random.set_state(others)
        state.restore()


_Access = tuple[str, Callable[[], Parts], Callable[[Parts], object]]
"""Words for people, how parts are read, and how they are put back."""


def _holders(value: Any, words: str, copies: bool) -> Iterator[_Access]:
    """Yield what holds the parts of an object."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(value, words) if _is_users(value) else ()
    elif isinstance(value, types.MethodType):
        yield words, lambda: {0: value.__self__, 1: value.__func__}, _leave
    elif isinstance(value, partial):
        yield words, lambda: {0: value.func, 1: value.args, 2: value.keywords}, _leave
    elif isinstance(value, dict):
        yield words, value.copy, partial(_refill, value)
    elif isinstance(value, list | deque | set):
        yield words, lambda: dict(enumerate(value)), partial(_refill_row, value)
    elif isinstance(value, tuple):
        yield words, lambda: dict(enumerate(value)), _leave
    elif isinstance(value, random.Random):
        yield words, lambda: {0: hash(value.getstate()), "": value.getstate()}, lambda kept: value.setstate(kept[""])
    elif type(value) in _TENSORS:
        copy = value.detach().clone() if copies else value.detach()
        yield words, lambda: {0: value._version}, partial(_rewind, value, copy)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        array = value.copy()
        yield words, lambda: {0: value.tobytes()}, lambda _: value.__setitem__(..., array)
    elif isinstance(value, nn.Module | types.SimpleNamespace) or _is_users(type(value)):
        yield from _of_object(value, f"of {type(value).__name__}")
    elif isinstance(value, type) and _is_users(value):
        own = vars(value)
        names = [name for name, part in own.items() if not name.startswith("__") and not callable(part)]
        yield f"of the class {value.__name__}", lambda: {name: own[name] for name in names}, partial(_set, value)


def _of_function(value: types.FunctionType, words: str) -> Iterator[_Access]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        yield f"around {value.__qualname__}", partial(_contents, cell, name), partial(_set_contents, cell, name)
    where = value.__globals__
    read = sorted(set(_names(value.__code__)) & where.keys())
    yield f"in the module {value.__module__}", lambda: {name: where[name] for name in read}, where.update
    yield f"of {value.__qualname__}", vars(value).copy, partial(_refill, vars(value))
    yield words, lambda: dict(enumerate((value.__defaults__, value.__kwdefaults__))), _leave


def _of_object(value: Any, words: str) -> Iterator[_Access]:
    kind, own = type(value), getattr(value, "__dict__", {})
    names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ()) if hasattr(value, name)]
    code = [vars(each)[name] for each in kind.__mro__ for name in ("forward", "__call__") if name in vars(each)]
    yield words, lambda: dict(enumerate((*code, kind))), _leave
    yield words, own.copy, partial(_refill, own)
    yield words, lambda: {name: getattr(value, name) for name in names}, partial(_set, value)


def _is_users(code: Any) -> bool:
    """Whether a class or function is defined in somebody else's code."""
    return str(code.__module__).split(".")[0] not in _FOREIGN


def _is_long(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | deque) and len(value) > _LONGEST


def _same(then: Any, now: Any) -> bool:
    return then is now or (type(then) is type(now) and isinstance(then, _PLAIN) and (then == now or then != then))


def _leave(_: Parts) -> None:
    """Do nothing: this never changes."""


def _refill(table: Parts, kept: Parts) -> None:
    table.clear()
    table.update(kept)


def _refill_row(row: Any, kept: Parts) -> None:
    row.clear()
    (row.update if isinstance(row, set) else row.extend)(kept.values())


def _rewind(tensor: torch.Tensor, values: torch.Tensor, kept: Parts) -> None:
    """Put values back so that autograd, which may have saved the tensor, sees no change."""
    with torch.no_grad():
        tensor.copy_(values)
    torch._C._autograd._unsafe_set_version_counter((tensor,), (kept[0],))


def _set(value: Any, kept: Parts) -> None:
    for name, part in kept.items():
        setattr(value, name, part)


def _contents(cell: types.CellType, name: str) -> Parts:
    try:
        return {name: cell.cell_contents}
    except ValueError:  # nothing is in it yet
        return {}


def _set_contents(cell: types.CellType, name: str, kept: Parts) -> None:
    if kept:
        cell.cell_contents = kept[name]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _names(value)
