"""Plain Python values that a model's code reads: numbers, flags, lists, tensors that are no buffers, settings.

A captured program holds them as they were. Which of them code reads is told by its bytecode: names in the methods of
the model's classes, and in the functions that these call by a global name; so what a loop keeps on a model for itself
is none of them. Looked at are attributes of modules, of their classes and of the plain objects that they refer to
(a configuration), globals and cells of closures. Leaves out what code finds in any other way, and torch's own modules'
inner state.
"""

import itertools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any

import torch
from torch import nn

_OWN = frozenset(vars(nn.Module()))
"""Names that every module has; modes and hooks are looked at elsewhere."""

_ONCE = frozenset(("__init__", "__repr__", "extra_repr", "reset_parameters", "__setstate__", "__getstate__"))
"""Methods that no forward runs."""

_LONGEST, _DEEPEST = 64, 3
"""Elements of containers that are compared, and levels of containers and of functions that call each other."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(slots=True)
class _Place:
    """Values of one namespace that code reads.

    Attributes
    ----------
    what : str
        The namespace, for people.
    found : mapping
        Where they are looked up by name.
    names : tuple of str
    kept : tuple
        What they were.
    length : int
        Of the namespace: a value of a class may be hidden by one of an instance.
    behind : mapping
        What stands for names that the namespace lacks.
    """

    what: str
    found: Mapping[str, Any]
    names: tuple[str, ...]
    behind: Mapping[str, Any]
    kept: tuple[Any, ...] = ()
    length: int = 0
    get: Callable[[Any], Any] = tuple
    here: tuple[str, ...] = ()

    def keep(self) -> None:
        """Take the values as they are now."""
        self.here = tuple(name for name in self.names if name in self.found)
        self.get = _getter(self.here)
        self.kept, self.length = _copy(self.get(self.found)), len(self.found) if self.behind else 0

    def stands(self) -> bool:
        """Whether nothing has changed, which takes a microsecond. Tensors are compared by identity, never by value."""
        try:
            now = self.get(self.found)
        except KeyError:
            return False
        if self.behind and len(self.found) != self.length:
            return False
        return all(map(is_, now, self.kept)) or all(map(_same, self.kept, now))


class Attributes:
    """What the code of a model reads beside its parameters and buffers, as it was when this was made."""

    def __init__(self, module: nn.Module) -> None:
        self._places: list[_Place] = []
        self._seen: set[int] = set()
        named = list(module.named_modules())
        codes = _Codes(dict.fromkeys(type(inner) for _, inner in named))
        kinds = {type(inner): frozenset((codes.of(type(inner)) - _OWN) | {"forward"}) for _, inner in named}
        classes = {kind: _of_class(kind, names) for kind, names in kinds.items()}
        everything = frozenset(name for names in kinds.values() for name in names)
        for path, inner in named:
            words, kind = f"of the module {path!r}" if path else "of the model", type(inner)
            self._add(words, vars(inner), kinds[kind], classes[kind])
            for value in [value for name, value in vars(inner).items() if name not in _OWN]:
                codes.follow(value)
                self._add_settings(value, everything, 2)
        for kind, names in kinds.items():
            if not kind.__module__.startswith("torch."):
                self._add(f"of the class {kind.__name__}", vars(kind), names, {})
        for words, namespace, read in codes.namespaces():
            self._add(words, namespace, frozenset(read), {})
        self._states = self._moving()

    def changed(self) -> list[tuple[str, Any, Any]]:
        """Return what is no longer as it was: (its name and place, then, now)."""
        found = []
        for place in self._places:
            if not place.stands():
                different = list(_differences(place))
                found += different
                if not different:  # what nobody reads has come or gone
                    place.keep()
        return found

    def drawn(self) -> list[str]:
        """Return the generators and counters among the values that have been drawn from since this was made."""
        now = self._moving()
        return [name for name, state in self._states.items() if now.get(name, state) != state]

    @contextmanager
    def as_moved(self, moved: Iterable[tuple[str, Any, Any]]) -> Iterator[None]:
        """Within the block values that a forward has changed are as it left them."""
        now = {name: value for name, _, value in moved}
        changed = []
        for place in self._places:
            for name in place.names:
                words = f"{name} {place.what}"
                if words in now and isinstance(place.found, dict) and not isinstance(now[words], _Absent):
                    changed.append((place.found, name, place.found.get(name, _ABSENT)))
                    place.found[name] = now[words]
        try:
            yield
        finally:
            for found, name, value in changed:
                found[name] = value
                if isinstance(value, _Absent):
                    del found[name]

    def _moving(self) -> dict[str, str]:
        found = {}
        for place in self._places:
            for name in place.here:
                state = _state(place.found.get(name))
                if state:
                    found[f"{name} {place.what}"] = state
        return found

    def leave_out(self, names: set[str]) -> None:
        """Look at some of them, by name and place, no more, and take all others as they are now."""
        for place in self._places:
            place.names = tuple(name for name in place.names if f"{name} {place.what}" not in names)
            place.keep()

    def _add_settings(self, value: Any, names: frozenset[str], depth: int) -> None:
        if not depth or not _is_settings(value) or id(vars(value)) in self._seen:
            return
        self._add(f"of {type(value).__name__}", vars(value), names, {})
        for inner in list(vars(value).values()):
            self._add_settings(inner, names, depth - 1)

    def _add(self, words: str, namespace: Mapping[str, Any], names: frozenset[str], behind: Mapping[str, Any]) -> None:
        self._seen.add(id(namespace))
        kept = tuple(name for name in sorted(names) if name in behind or _may_change(namespace.get(name, _ABSENT)))
        place = _Place(words, namespace, kept, {name: behind[name] for name in kept if name in behind})
        if kept:
            place.keep()
            self._places.append(place)


def random_states() -> dict[str, int]:
    """Return what tells whether anybody has drawn from Python's or numpy's random numbers, by what they are called."""
    found = {"Python's random": hash(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, *rest = numpy.random.get_state()
        found["numpy.random"] = hash((keys.tobytes(), *rest))
    return found


def _state(value: Any) -> str:
    """Return what a generator of random numbers or a counter stands at; nothing for what is neither."""
    if isinstance(value, random.Random):
        return str(hash(value.getstate()))
    if isinstance(value, itertools.count):
        return repr(value)
    source = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)  # numpy's
    return str(getattr(source, "state", "")) if source is not None else ""


class _Absent:
    """Stands for a name that a namespace lacks."""


_ABSENT = _Absent()


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what looks names up, as a tuple however many there are."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda found: tuple(found[name] for name in names)


def _of_class(kind: type, names: frozenset[str]) -> dict[str, Any]:
    """Return what a class has for names that an instance may lack."""
    found = ((name, getattr(kind, name, _ABSENT)) for name in names)
    return {name: value for name, value in found if isinstance(value, _PLAIN) or name == "forward"}


def _differences(place: _Place) -> Iterator[tuple[str, Any, Any]]:
    kept = dict(zip(place.here, place.kept, strict=True))
    for name in place.names:
        then = kept.get(name, place.behind.get(name, _ABSENT))
        now = place.found[name] if name in place.found else place.behind.get(name, _ABSENT)
        if not _same(then, now):
            yield f"{name} {place.what}", then, now


def _same(then: Any, now: Any) -> bool:
    if then is now:
        return True
    if isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return False
    try:
        return bool(then == now) or (then != then and now != now)
    except (RuntimeError, ValueError, TypeError):
        return False


def _copy(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a value with copies of its small containers, so that what changes inside them is seen."""
    if not depth or not isinstance(value, tuple | list | dict | set) or len(value) > _LONGEST:
        return value
    if type(value) is dict:
        return {key: _copy(inner, depth - 1) for key, inner in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_copy(inner, depth - 1) for inner in value)
    return value


def _is_settings(value: Any) -> bool:
    """Whether a value is a plain object that holds settings."""
    if isinstance(value, nn.Module | torch.Tensor | type | types.FunctionType | types.ModuleType):
        return False
    return isinstance(getattr(value, "__dict__", None), dict) and not callable(value)


def _may_change(value: Any) -> bool:
    return not isinstance(value, _Absent | nn.Module | nn.Parameter | type | types.ModuleType | property)


class _Codes:
    """Names that forwards of some classes read, and the namespaces in which they look up others.

    From each `forward` on methods are followed by the names that code reads, whosever they are: one module may call
    another's method.
    """

    def __init__(self, kinds: Iterable[type]) -> None:
        self._globals: dict[int, tuple[str, Mapping[str, Any], set[str]]] = {}
        self._seen: set[int] = set()
        self._methods = {kind: _methods(kind) for kind in kinds}
        self._read_by: dict[type, set[str]] = {kind: set() for kind in self._methods}
        waiting, asked = {"forward"}, set[str]()
        while waiting:
            found: set[str] = set()
            for kind, methods in self._methods.items():
                for name in waiting & methods.keys():
                    for function in methods[name]:
                        names = self._read(function, _DEEPEST)
                        self._read_by[kind] |= names
                        found |= names
            asked |= waiting
            waiting = found - asked

    def of(self, kind: type) -> set[str]:
        """Return the names that a class's code reads."""
        return self._read_by[kind]

    def follow(self, value: Any) -> None:
        """Look at what a function that a module has been given reads, too."""
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and id(function) not in self._seen:
            self._seen.add(id(function))
            self._read(function, _DEEPEST)

    def namespaces(self) -> Iterator[tuple[str, Mapping[str, Any], set[str]]]:
        """Yield the globals and closures that code reads plain values from, with the values' names."""
        for words, namespace, names in self._globals.values():
            yield words, namespace, {name for name in names if isinstance(namespace.get(name), (*_PLAIN, list, dict))}

    def _read(self, function: types.FunctionType, depth: int) -> set[str]:
        """Return the names in the code of a function, and of those that it calls by global names."""
        names = set(_names(function.__code__))
        if not depth or function.__module__ is None or function.__module__.startswith(("torch", "builtins")):
            return names
        where = function.__globals__
        known = self._globals.setdefault(id(where), (f"in the module {function.__module__}", where, set()))
        known[2].update(name for name in names if name in where and not name.startswith("__"))
        for cell_name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._globals.setdefault(id(cell), (f"around {function.__qualname__}", _Cell(cell_name, cell), {cell_name}))
        for name in list(names):
            called = where.get(name)
            if isinstance(called, types.FunctionType) and id(called) not in self._seen:
                self._seen.add(id(called))
                names |= self._read(called, depth - 1)
        return names


def _methods(kind: type) -> dict[str, list[types.FunctionType]]:
    """Return the functions of a class by name, those of its bases too; not what torch's base class does."""
    found: dict[str, list[types.FunctionType]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items() if base not in (nn.Module, object) else ():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            function = getattr(function, "__wrapped__", function)
            if name not in _ONCE and isinstance(function, types.FunctionType):
                found.setdefault(name, []).append(function)
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _names(value)
        elif isinstance(value, str) and value.isidentifier():
            yield value  # getattr(self, "...")


class _Cell(Mapping[str, Any]):
    """A variable of a closure as a namespace of one name."""

    def __init__(self, name: str, cell: Any) -> None:
        self._name, self._cell = name, cell

    def __getitem__(self, name: str) -> Any:
        if name != self._name:
            raise KeyError(name)
        try:
            return self._cell.cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter((self._name,))

    def __len__(self) -> int:
        return 1
