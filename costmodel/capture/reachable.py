"""What the code of a model reaches: a walk over Python's objects that leaves a flat list of places to look at.

From the methods of the model's classes it goes by the names that their code reads (`code_names`), whatever has them:
objects, classes, modules, slots, the environment; of globals by those that a function reads itself. It goes through
closures, defaults and what containers hold. Functions that it finds are read in turn, but for those of torch, numpy and
the standard library, which are only compared. Leaves out names that are computed, files, clocks, and what compiled code
holds.
"""

import gc
import os
import sys
import types
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from costmodel.capture.code_names import names_in
from costmodel.capture.drawing import state_of
from costmodel.capture.watched_values import PLAIN, WatchedValues

_OWN = frozenset(vars(nn.Module()))
"""Names that every module has; those of the model's modules are looked at elsewhere."""

_ALWAYS = frozenset(("forward", "__wrapped__", "training", "_parameters", "_buffers", "_modules"))
"""What is read although no code names it."""

_NEVER = frozenset(("__init__", "__repr__", "extra_repr", "reset_parameters", "__setstate__", "__getstate__"))
"""Methods of modules that no forward runs."""

_LONGEST, _MOST = 1000, 100_000
"""Elements of a container that are compared, and objects that are walked to."""

_FIXED = (tuple, types.MethodType, classmethod, staticmethod, property)
"""What holds something for good."""

_HOLDING: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((list, deque), iter),
    dict: lambda found: chain(found.values(), found),
    set: lambda found: (frozenset(found),),
    bytearray: lambda found: (bytes(found),),
    array: lambda found: (found.tobytes(),),
    ContextVar: lambda found: (found.get(None),),
    partial: lambda found: (found.func, found.args, found.keywords),
    **dict.fromkeys((types.CellType, *_FIXED), gc.get_referents),
}
"""What objects hold that have no names for it."""

_NUMPYS = "<class 'numpy.ndarray'>"
"""Numpy need not be there."""

_BASES = sys.stdlib_module_names | {"torch", "numpy"}
_USERS, _INSTALLED, _BASE = range(3)
_READ_OF_LIBRARIES = (object, (*PLAIN, Callable, types.ModuleType), (Callable, types.ModuleType))
"""Which values of a module are looked at: all, or numbers and functions, or functions."""

_DEEPEST = 3
"""How many functions of installed packages are read that call each other."""

_UNREACHED = (*PLAIN, torch.Tensor, weakref.ProxyType, weakref.CallableProxyType)


class Reachable:
    """Everything that the code of a model reaches.

    Parameters
    ----------
    model : torch.nn.Module
    left_out : set of str
        What is not gone into, by the names that `told` gives.

    Attributes
    ----------
    places : list of WatchedValues
    drawing : dict
        Generators of random numbers, counters and iterators, by what people call them.
    """

    def __init__(self, model: nn.Module, left_out: Set[str]) -> None:
        self.places: list[WatchedValues] = []
        self.drawing: dict[str, Any] = {}
        self._fixed: list[WatchedValues] = []
        self._left_out = left_out
        self._names, self._new = set[str](), set(_ALWAYS)
        self._spaces: dict[int, _Namespace] = {}
        self._seen: dict[int, Any] = {}
        self._waiting: deque[tuple[str, Any, int]] = deque()
        bases = {base for inner in model.modules() for base in type(inner).__mro__}
        self._own = {base.__module__ for base in bases - {nn.Module, object}}
        self._open(os.environ, "in the environment", os.environ)
        for path, inner in model.named_modules():
            self._seen[id(inner)] = inner
            self._open(inner, f"of the module {path!r}" if path else "of the model", vars(inner), without=_OWN)
            self._reach("", type(inner))
        while self._new - self._names:
            new = self._new - self._names
            self._names |= new
            for space in [each for each in self._spaces.values() if each.is_open]:
                self._find(space, new)
            while self._waiting:
                self._visit(*self._waiting.popleft())
        self.places += [space.place() for space in self._spaces.values() if space.names or space.is_open]

    def told(self) -> dict[str, tuple[Any, ...]]:
        """Return all values by what people call them; for a container its type and what it holds."""
        found: dict[str, tuple[Any, ...]] = {}
        for place in (*self.places, *self._fixed):
            kept = [type(value) if _contents(value) else value for value in place.kept]
            rows: list[tuple[str, tuple[Any, ...]]] = [(place.words, tuple(kept))]
            if place.names is not None:
                rows = [(f"{name} {place.words}", (value,)) for name, value in zip(place.names, kept, strict=True)]
            for words, values in rows:
                found[words] = found.get(words, ()) + values
        return found

    def _open(self, owner: Any, words: str, found: Mapping[str, Any], without: Set[str] = frozenset()) -> None:
        """Look into a namespace for whatever any code reads."""
        space = self._spaces.setdefault(id(owner), _Namespace(words, found))
        if not space.is_open:
            space.is_open, space.without = True, without
            self._find(space, self._names)

    def _find(self, space: "_Namespace", names: set[str] | frozenset[str], depth: int = 0) -> None:
        for name in sorted(names.intersection(space.found) - space.names - space.without):
            value, words = space.found[name], f"{name} {space.words}"
            if words not in self._left_out and isinstance(value, space.kinds):
                space.names.add(name)
                if isinstance(value, str) and value.isidentifier():
                    self._new.add(value)  # getattr(self, self.name)
                if depth or space.kinds is object or isinstance(value, types.ModuleType):
                    self._reach(words, value, depth)

    def _reach(self, words: str, value: Any, depth: int = 0) -> None:
        known = isinstance(value, _UNREACHED) or id(value) in self._seen
        if not known and words not in self._left_out and len(self._seen) < _MOST:
            self._seen[id(value)] = value
            self._waiting.append((words, value, depth))

    def _visit(self, words: str, value: Any, depth: int) -> None:
        if state_of(value):
            self.drawing[words] = value
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth)
        else:
            self._object(words, value, depth)

    def _module(self, module: types.ModuleType) -> None:
        space = self._globals(module.__name__, vars(module))
        self._open(vars(module), space.words, vars(module))

    def _globals(self, name: str, found: dict[str, Any]) -> "_Namespace":
        kinds = _READ_OF_LIBRARIES[self._library(name)]
        made = _Namespace(f"in the module {name}", found, kinds)
        return self._spaces.setdefault(id(found), made)

    def _class(self, kind: type) -> None:
        without = _NEVER if issubclass(kind, nn.Module) else frozenset[str]()
        for base in kind.__mro__:
            is_read = base.__module__ in self._own or not self._library(base.__module__)
            if is_read and id(base) not in self._spaces:
                self._open(base, f"of the class {base.__name__}", vars(base), without)
                special = {name for name in vars(base) if name.startswith("__") and callable(getattr(base, name))}
                self._find(self._spaces[id(base)], special - {"__class__"})

    def _function(self, function: types.FunctionType, depth: int) -> None:
        words = f"around {function.__qualname__}"
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._reach(f"{name} {words}", cell, depth)
        for held in (function.__defaults__, function.__kwdefaults__):
            self._reach(f"a default of {function.__qualname__}", held, depth)
        if vars(function):
            self._open(vars(function), f"of {function.__qualname__}", vars(function))
        name = function.__globals__.get("__name__", "?")
        library = self._library(name)
        if name not in self._own and (library == _BASE or (library and depth == _DEEPEST)):
            return
        read, depth = names_in(function.__code__), depth + 1 if library else 0
        self._new |= read.attributes
        self._find(self._globals(name, function.__globals__), read.variables, depth)
        package = function.__globals__.get("__package__")
        for inner in sorted(read.modules):
            for module in (sys.modules.get(inner), sys.modules.get(f"{package}.{inner}")):
                self._reach("", module, depth)

    def _library(self, name: str) -> int:
        """Return how little of a module is read: all of a user's, and of those that the model's classes are in."""
        return _USERS if name in self._own and name.partition(".")[0] not in _BASES else _library(name)

    def _object(self, words: str, value: Any, depth: int) -> None:
        contents = _contents(value)
        if contents is not None:
            place = WatchedValues(words, value, partial(_elements, contents))
            (self._fixed if isinstance(value, _FIXED) else self.places).append(place)
            for inner in place.kept:
                self._reach(words, inner, depth)
        named = getattr(value, "__dict__", None)
        if isinstance(named, dict):
            self._open(named, f"of {words}", named)
        if any("__slots__" in vars(base) for base in type(value).__mro__ if not self._library(base.__module__)):
            self._open(value, f"of {words}", _Slots(value))
        self._reach("", type(value), depth)


@dataclass(slots=True)
class _Namespace:
    """What is looked up by name; in an open one the names that any code reads, in others those of its own code."""

    words: str
    found: Mapping[str, Any]
    kinds: Any = object
    is_open: bool = False
    without: Set[str] = frozenset()
    names: set[str] = field(default_factory=set)

    def place(self) -> WatchedValues:
        names = tuple(sorted(self.names))
        get = itemgetter(*names) if len(names) > 1 else lambda found: tuple(found[name] for name in names)
        return WatchedValues(self.words, self.found, get, names, len(self.found) if self.is_open else -1)


class _Slots(Mapping[str, Any]):
    """An object's slots as a namespace."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        found = (item for base in type(owner).__mro__ for item in vars(base).items())
        self._slots = {name: slot for name, slot in found if isinstance(slot, types.MemberDescriptorType)}

    def __getitem__(self, name: str) -> Any:
        return self._slots[name].__get__(self._owner)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._slots if hasattr(self._owner, name))

    def __len__(self) -> int:
        return len(self._slots)


def _contents(value: Any) -> Callable[[Any], Iterable[Any]] | None:
    kinds = type(value).__mro__
    return next((_HOLDING[kind] for kind in kinds if kind in _HOLDING), _array if _NUMPYS in map(str, kinds) else None)


def _elements(contents: Callable[[Any], Iterable[Any]], value: Any) -> tuple[Any, ...]:
    found = tuple(islice(contents(value), _LONGEST + 1))
    return found if len(found) <= _LONGEST else (*found[:-1], len(value))


def _array(found: Any) -> Iterable[Any]:
    """Return the values of a numpy array; of a large one a sample at regular distances."""
    return found.shape, found.flat[:: found.size // 4096 | 1].tobytes()


@cache
def _library(name: str) -> int:
    if name.partition(".")[0] in _BASES:
        return _BASE
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return _INSTALLED if "site-packages" in file or "dist-packages" in file else _USERS
