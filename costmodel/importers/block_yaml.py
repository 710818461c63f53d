"""The part of YAML that Slurm's ``topology.yaml`` is written in: lists and maps by indentation, and plain values.

Values are text, quoted or not, or lists in brackets on one line; comments and blank lines count for nothing. What
else YAML has (anchors, tags, maps in braces, text over several lines, several documents) is refused with its line.
"""

import re
from dataclasses import dataclass
from typing import NoReturn

from costmodel.errors import InvalidInput

MOST_INDENT = 200
"""Of a line; what nests deeper is no topology."""
_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s:#'"\[{&*!|>%@`-][^:#]*?)\s*:(?:\s+(.*))?$""")
_UNKNOWN = re.compile(r"[{&*!|>%@`]")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


class _Reader:
    """The lines of a document and the next one to read."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.lines: list[_Line] = []
        self.next = 0
        for number, raw in enumerate(text.splitlines(), 1):
            line = _without_comment(raw).rstrip()
            if line.strip() in ("", "---"):
                continue
            if "\t" in line[: len(line) - len(line.lstrip())]:
                self.fail(number, "a tab; YAML is indented by spaces")
            self.lines.append(_Line(number, len(line) - len(line.lstrip()), line.strip()))

    def fail(self, number: int, why: str) -> NoReturn:
        raise InvalidInput(f"{self.path}: line {number}: {why}")

    def block(self, indent: int) -> object:
        """Read the list or map that begins at the next line, whose entries are indented so."""
        if indent > MOST_INDENT:
            self.fail(self.lines[self.next].number, f"indented by more than {MOST_INDENT}")
        is_list = self.lines[self.next].text.startswith("-")
        rows: list[object] = []
        members: dict[str, object] = {}
        while self.next < len(self.lines) and self.lines[self.next].indent == indent:
            line = self.lines[self.next]
            if (line.text == "-" or line.text.startswith("- ")) != is_list:
                break
            if is_list:
                rows.append(self._entry(line))
                continue
            self.next += 1
            found = _KEY.fullmatch(line.text)
            if not found:
                self.fail(line.number, f"{line.text[:60]!r} is no 'key: value'")
            key = _plain(found[1])
            if key in members:
                self.fail(line.number, f"the key {key!r} occurs twice; keep one of them")
            members[key] = self._value(found[2] or "", line)
        if self.next < len(self.lines) and self.lines[self.next].indent > indent:
            self.fail(self.lines[self.next].number, "indented more than what it belongs to")
        return rows if is_list else members

    def _entry(self, line: _Line) -> object:
        """Read an entry of a list: what follows its dash is a line of its own, indented by what it stands at."""
        rest = line.text[1:].lstrip()
        if not rest:
            self.next += 1
            return self._value("", line)
        indent = line.indent + len(line.text) - len(rest)
        if _KEY.fullmatch(rest) or rest.startswith("- "):
            self.lines[self.next] = _Line(line.number, indent, rest)
            return self.block(indent)
        self.next += 1
        return self._value(rest, line)

    def _value(self, text: str, line: _Line) -> object:
        """Read what a key holds: text on its line, or the block below it."""
        if text:
            if text[0] == "[":
                try:
                    return read_flow_list(text)
                except InvalidInput as error:
                    self.fail(line.number, str(error))
            if _UNKNOWN.match(text):
                self.fail(line.number, f"{text[:60]!r}: text, numbers and lists are read of YAML")
            return _plain(text)
        below = self.lines[self.next] if self.next < len(self.lines) else None
        is_inside = below and (below.indent > line.indent or (below.indent == line.indent and below.text[0] == "-"))
        if not below or not is_inside or (line.text[0] == "-" and below.indent == line.indent):
            self.fail(line.number, f"{line.text[:60]!r} holds nothing")
        return self.block(below.indent)


def read_block_yaml(text: str, path: str) -> object:
    """Return a document as lists, maps and text.

    Raises
    ------
    InvalidInput
        With the line that is no such YAML.
    """
    reader = _Reader(text, path)
    if not reader.lines:
        raise InvalidInput(f"{path}: nothing in it")
    found = reader.block(reader.lines[0].indent)
    if reader.next < len(reader.lines):
        reader.fail(reader.lines[reader.next].number, "indented less than what it belongs to")
    return found


def read_flow_list(text: str) -> list[object]:
    """Return a list in brackets, of text and of lists.

    Raises
    ------
    InvalidInput
        Where brackets do not close.
    """
    top: list[object] = []
    open_ones = [top]
    for sign in re.findall(r"\[|\]|\"[^\"]*\"|'[^']*'|[^\[\],\s][^\[\],]*", text):
        if sign == "[":
            inner: list[object] = []
            open_ones[-1].append(inner)
            open_ones.append(inner)
        elif sign == "]" and len(open_ones) > 1:
            open_ones.pop()
        else:
            open_ones[-1].append(_plain(sign.strip()))
    if len(open_ones) > 1 or len(top) != 1 or not isinstance(top[0], list):
        raise InvalidInput(f"{text[:60]!r} is no list in brackets that close")
    return top[0]


def _without_comment(line: str) -> str:
    """Take off what follows a ``#`` at the beginning or behind a space, outside quotes."""
    quote = ""
    for place, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and (place == 0 or line[place - 1] in " :-[,"):
            quote = sign
        elif sign == "#" and (place == 0 or line[place - 1].isspace()):
            return line[:place]
    return line


def _plain(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
