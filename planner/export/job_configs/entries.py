"""Configurations of trainers as lists of keys with their values: JSON, TOML, YAML, and arguments as shells have them.

Arguments may stand in a launch script: lines are continued by backslashes, ``NAME=value`` is put in for ``$NAME``, and
what is no flag is passed over. Nothing is run. Leaves out what keys mean (`planner.export.job_configs.facts`).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json, read_text, read_toml
from costmodel.importers.block_yaml import read_block_yaml

_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_ASSIGNED = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--?([A-Za-z][\w.-]+)(?:=(.*))?", re.DOTALL)
_OF_A_SHELL = re.compile(r"[|;&<]+|[12&]?>.*")
"""What ends the arguments of a command: a pipe, another command, a file for its output."""
_OF_PYTHON = re.compile(r"-[A-Za-z]")
"""Flags of the interpreter or launcher before the script; trainers have none of one letter."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a configuration; the value of a flag that has none is True."""

    key: str
    value: object
    place: str


def read_entries(path: str | Path, trainer: str) -> list[Entry]:
    """Read a configuration in the form that a trainer takes.

    Raises
    ------
    InvalidInput
        When it cannot be read, or holds nothing.
    """
    if trainer == "deepspeed":
        found = list(_of_node(read_json(path)))
    elif trainer == "torchtitan":
        found = list(_of_node(read_toml(path)))
    elif Path(path).suffix in (".yaml", ".yml"):
        found = list(_of_node(Node(read_block_yaml(read_text(Path(path)), str(path)), "", str(path))))
    else:
        found = list(_arguments(read_text(Path(path)), str(path)))
    if not found:
        raise InvalidInput(f"{path}: no key of {trainer}'s in it; is this the job's configuration?")
    return found


def _of_node(node: Node, above: str = "") -> Iterator[Entry]:
    """Yield what is no map, by its path of keys."""
    if not isinstance(node.value, dict):
        yield Entry(above, node.value, f"{node.file}: {node.pointer}")
        return
    for key, inner in node.entries().items():
        yield from _of_node(inner, f"{above}.{key}" if above else key)


def _arguments(text: str, path: str) -> Iterator[Entry]:
    known: dict[str, str] = {}
    number, lines = 0, text.split("\n")
    while number < len(lines):
        place, line = f"{path}: line {number + 1}", lines[number]
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = f"{line[:-1]} {lines[number]}"
        number += 1
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InvalidInput(f"{place}: {error}; close it on its line") from None
        yield from _line(words, known, place)


def _line(words: list[str], known: dict[str, str], place: str) -> Iterator[Entry]:
    """Yield the flags and overrides of one line; take over what it assigns."""
    key, values = "", list[str]()
    for word in (_put_in(word.strip("()"), known) for word in words):
        if _OF_A_SHELL.fullmatch(word):
            break
        flag, override, assigned = _FLAG.fullmatch(word), _OVERRIDE.fullmatch(word), _ASSIGNED.fullmatch(word)
        if not (flag or override or assigned or word.endswith(".py") or _OF_PYTHON.fullmatch(word)):
            values += [word] if word and key else []
            continue
        if key:
            yield Entry(key, _value(values), place)
        key, values = "", []
        if assigned:
            name, rest = assigned[1], assigned[2].strip("()")
            known[name] = rest
            if "--" in rest:  # NAME="--flag 1 --other 2"
                yield from _line(shlex.split(rest), known, place)
        elif flag and flag[2] is None:
            key = flag[1]
        elif flag or override:
            found = flag or override
            yield Entry(found[1], found[2], place) if found else Entry("", "", place)
    if key:
        yield Entry(key, _value(values), place)


def _value(values: list[str]) -> object:
    return True if not values else values[0] if len(values) == 1 else list(values)


def _put_in(word: str, known: Mapping[str, str]) -> str:
    """Put assigned values in for variables; lists of flags were read where they were assigned."""

    def of(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return known.get(name, found[2] if found[2] is not None else found[0])

    text = _VARIABLE.sub(of, word) if "[@]" not in word and "[*]" not in word else ""
    return "" if text.lstrip().startswith("--") and " " in text.strip() else text
