"""Which names a function's bytecode reads: globals, attributes, modules that it imports."""

import dis
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

_SHIFTS = {
    "LOAD_GLOBAL": 1,
    "LOAD_NAME": 0,
    "LOAD_ATTR": int(sys.version_info >= (3, 12)),
    "LOAD_METHOD": 0,
    "LOAD_SUPER_ATTR": 2,
    "IMPORT_NAME": 0,
    "IMPORT_FROM": 0,
}
"""Operations that read a name, and by how many bits its number is shifted in their argument."""

_READING = {dis.opmap[name]: (name, shift) for name, shift in _SHIFTS.items() if name in dis.opmap}


@dataclass(frozen=True, slots=True)
class NamesRead:
    """Names that code reads, that of its inner functions too.

    Attributes
    ----------
    variables : frozenset of str
        Globals.
    attributes : frozenset of str
        Of whatever object; strings that may be names are among them (`getattr(self, "...")`).
    modules : frozenset of str
        As imported.
    """

    variables: frozenset[str]
    attributes: frozenset[str]
    modules: frozenset[str]


@cache
def names_in(code: types.CodeType) -> NamesRead:
    """Return the names that code reads; not those that it only writes."""
    found: dict[str, set[str]] = {name: set() for name in _SHIFTS}
    for inner in _with_inner(code):
        extended = 0
        for operation, argument in zip(inner.co_code[::2], inner.co_code[1::2], strict=True):
            argument |= extended << 8
            extended = argument if operation == dis.EXTENDED_ARG else 0
            if operation in _READING:
                name, shift = _READING[operation]
                found[name].add(inner.co_names[argument >> shift])
    variables, modules = found.pop("LOAD_GLOBAL") | found.pop("LOAD_NAME"), found.pop("IMPORT_NAME")
    words = (word for inner in _with_inner(code) for word in _words(inner.co_consts))
    return NamesRead(frozenset(variables), frozenset(words).union(*found.values()), frozenset(modules))


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _with_inner(value)


def _words(constants: tuple[Any, ...]) -> Iterator[str]:
    for value in constants:
        if isinstance(value, tuple):
            yield from _words(value)
        elif isinstance(value, str) and value.isidentifier():
            yield value
