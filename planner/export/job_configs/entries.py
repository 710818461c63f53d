"""Configurations of trainers as lists of keys with their values: JSON, TOML, YAML, and arguments as shells have them.

Arguments may stand in a launch script (`planner.export.job_configs.shell`). Leaves out what keys mean
(`planner.export.job_configs.facts`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json, read_text, read_toml
from costmodel.importers.block_yaml import read_block_yaml
from planner.export.job_configs.shell import Word, commands_of

_OVERRIDE = re.compile(r"\+{0,2}([a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"(?:--|-(?=\w[\w.-]))([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_FURTHER = re.compile(r"\$[@*]|\$\{?\w*(ARG|OPT|FLAG|EXTRA)\w*(\[[@*]\])?\}?", re.IGNORECASE)
"""A variable that holds flags by its name."""
_TORCHRUN = re.compile(r"torchrun$|torch\.distributed\.(run|launch)$")
_OF_PYTHON = re.compile(r"-[A-Za-z]")
"""Flags of the interpreter or launcher before the script; trainers have none of one letter."""

OF_A_TARGET = {"_target_", "_call_", "_args_", "_name_", "_partial_"}
"""How Megatron-Bridge and Hydra write a value that is an object: its name, and whether it is called."""


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
    if Path(path).suffix == ".py":
        raise InvalidInput(
            f"{path}: Python is not run; write the values that it sets as {trainer} prints or takes them"
        )
    if trainer == "deepspeed":
        found = list(_of_node(read_json(path)))
    elif trainer == "torchtitan":
        found = list(_of_node(read_toml(path)))
    elif Path(path).suffix in (".yaml", ".yml"):
        found = list(_of_node(Node(read_block_yaml(read_text(Path(path)), str(path)), "", str(path))))
    else:
        found = list(_arguments(read_text(Path(path)), str(path), trainer))
    if not found:
        raise InvalidInput(f"{path}: no key of {trainer}'s in it; is this the job's configuration?")
    return found


def _of_node(node: Node, above: str = "") -> Iterator[Entry]:
    """Yield what is no map, by its path of keys."""
    if isinstance(node.value, dict) and "_target_" in node.value and node.value.keys() <= OF_A_TARGET:
        yield Entry(above, node.value["_target_"], f"{node.file}: {node.pointer}")
        return
    if above and not isinstance(node.value, dict):
        yield Entry(above, node.value, f"{node.file}: {node.pointer}")
        return
    for key, inner in node.entries().items():
        yield from _of_node(inner, f"{above}.{key}" if above else key)


def _arguments(text: str, path: str, trainer: str) -> Iterator[Entry]:
    for command in commands_of(text, path, overrides=trainer != "megatron"):
        yield from _flags(_of_the_trainer(command), path)


def _of_the_trainer(words: list[Word]) -> list[Word]:
    """Return the words for torchrun and for the trainer's own script, or those of a line that holds flags alone."""
    texts = [word.text for word in words]
    script = next((i for i, text in enumerate(texts) if text.endswith(".py") or _is_module(texts[i - 1 : i + 1])), None)
    if script is None:
        return words if texts and (texts[0].startswith("-") or _OVERRIDE.fullmatch(texts[0])) else []
    torchrun = next((i for i, text in enumerate(texts[:script]) if _TORCHRUN.search(text)), script)
    return [*words[torchrun + 1 : script], *words[script:]]


def _is_module(words: list[str]) -> bool:
    return len(words) > 1 and words[0] == "-m" and not _TORCHRUN.search(words[1])


def _flags(words: list[Word], path: str) -> Iterator[Entry]:
    """Yield flags with the values behind them, and overrides."""
    key, values, place = "", list[str](), ""
    for word in words:
        text = word.text
        flag, override = _FLAG.fullmatch(text), _OVERRIDE.fullmatch(text)
        if not (flag or override or text.endswith(".py") or _OF_PYTHON.fullmatch(text)):
            if _FURTHER.fullmatch(text) or (text.startswith("$") and (values or not key)):
                yield Entry(text, None, f"{path}: line {word.line}")
            else:
                values += [text] if text and key else []
            continue
        if key:
            yield Entry(key, _value(values), place)
        key, values, place = "", [], f"{path}: line {word.line}"
        if flag and flag[2] is None:
            key = flag[1]
        elif found := flag or override:
            yield Entry(found[1], found[2], place)
    if key:
        yield Entry(key, _value(values), place)


def _value(values: list[str]) -> object:
    return True if not values else values[0] if len(values) == 1 else list(values)
