"""The words that a launch script hands to its trainer; nothing is run.

A script is read as a shell reads it, as far as no decision is made: quotes over several lines, continued lines,
variables and lists of flags where they are used, whole numbers in ``$(( ))``. Flags that depend on a condition are
refused, and variables that the file does not set stay as they are written. A file of flags alone is such a script, too.
Leaves out which words are keys (`planner.export.job_configs.entries`).
"""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from costmodel.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the line that it is written in."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a word: as it is in single quotes, else with variables put in, and divided at blanks without quotes."""

    text: str
    quote: str
    line: int


_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\r?\n)+)|(?P<end>\n)|(?P<comment>\#[^\n]*)"
    r"|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\(?P<escaped>.)"
    r"|(?P<plain>\$\(\((?:[^()\n]|\([^()\n]{0,300}\)){0,300}\)\)"
    r"|\$\([^()\n]{0,300}\)|\$\{[^}\n]{0,300}\}|\$(?:\w+|[@*#?!-])|`[^`\n]{0,300}`|[^\s\\'\"`;&()<>|$\#]+|[$`\#])"
    r"|(?P<stop>;+|&+|\|+|[()]|[<>]+&?)",
    re.DOTALL,
)
_LIST = re.compile(
    r"\((?:[^()'\"\#]|\#[^\n]*|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\(\([^\n]{0,300}?\)\)|\([^()\n]{0,300}\))*\)", re.DOTALL
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$\(\((?P<sum>(?:[^()\n]|\([^()\n]*\))*)\)\)"
    r"|\$\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}]*))?\}|\$(?P<bare>\w+)"
)
_WHOLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?\}|(\w+))")
_NESTED = re.compile(r"\s--\w|\.py\s")
_OPENS, _CLOSES = ("if", "case", "for", "while", "until", "select"), ("fi", "esac", "done")
_BETWEEN = ("then", "else", "do", "{", "}", "time", "exec", "eval", "nohup", "export", "local", "readonly", "declare")
_TESTS = ("[", "[[", "test")
_GOES_ON = re.compile(r"[^\n]*\\\r?\n|[^\n]*\n[ \t]*-")
MOST_LETTERS = 100_000
"""Of what variables become, which may hold each other."""
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
         ast.Mod: operator.mod}  # fmt: skip
MOST_DIGITS = 18
"""Of a number in a sum."""


def commands_of(text: str, path: str, *, overrides: bool) -> Iterator[list[Word]]:
    """Yield the words of each command of a script, variables put in; without commands, those of its lists of flags.

    Parameters
    ----------
    text, path : str
    overrides : bool
        Whether ``name=value`` may be a key of the trainer's: it is, in small letters, unless ``$name`` is used.

    Raises
    ------
    InvalidInput
        Names the line of what is not closed, or of flags that a condition decides on.
    """
    script = _Script(path, text if overrides else "")
    has_flags = False
    for command in script.run(text):
        has_flags |= any(word.text.startswith("-") or "=" in word.text for word in command)
        yield command
    if not has_flags:
        yield [word for words in script.known.values() for word in words]


@dataclass
class _Script:
    """What has been read of a script: its variables, and how deep in conditions the next command stands."""

    path: str
    overridden: str
    known: dict[str, list[Word]] = field(default_factory=dict)
    depth: int = 0

    def run(self, text: str) -> Iterator[list[Word]]:
        """Yield commands, with assignments carried out in their order."""
        words: list[list[_Piece]] = []
        tested = False
        for kind, piece in _tokens(text, self.path):
            if kind == "word":
                words.append(piece if isinstance(piece, list) else [])
                continue
            stop, first = kind, words[0][0].text if words else ""
            yield from self._command(words, tested)
            tested = first in _TESTS and stop in ("&&", "||")
            words = []

    def _command(self, words: list[list[_Piece]], tested: bool) -> Iterator[list[Word]]:
        while words and not words[0][0].quote and (word := words[0][0].text) in (*_OPENS, *_CLOSES, *_BETWEEN):
            self.depth = max(0, self.depth + (word in _OPENS) - (word in _CLOSES))
            words = words[1:]
        while words and self._assign(words[0], tested):
            words = words[1:]
        command = [word for pieces in words for word in self._expanded(pieces)]
        if command:
            if self.depth or tested:
                self._check_decided(command)
            yield command

    def _assign(self, pieces: list[_Piece], tested: bool) -> bool:
        """Take over what a word assigns; say whether it does."""
        found = None if pieces[0].quote else _ASSIGNED.fullmatch(pieces[0].text)
        if not found or not self._is_variable(found[1]):
            return False
        rest = [_Piece(found[3], "", pieces[0].line), *pieces[1:]]
        if len(pieces) > 1 and pieces[1].quote == "(":
            values = [word for inner in _array(pieces[1], self.path) for word in self._expanded(inner)]
        else:
            values = _split("".join(map(self._put_in, rest)), pieces[0].line)
        if self.depth or tested:
            self._check_decided(values)
            self.known.pop(found[1], None)
        else:
            if len(values) > MOST_LETTERS:
                raise InvalidInput(f"{self.path}: line {pieces[0].line}: more than {MOST_LETTERS} words in {found[1]}")
            self.known[found[1]] = [*(self.known.get(found[1], []) if found[2] else []), *values]
        return True

    def _is_variable(self, name: str) -> bool:
        return not self.overridden or name.isupper() or bool(re.search(rf"\$\{{?{name}\b", self.overridden))

    def _check_decided(self, words: list[Word]) -> None:
        flag = next((word for word in words if re.match(r"--\w", word.text)), None)
        if flag:
            raise InvalidInput(
                f"{self.path}: line {flag.line}: whether {flag.text} is given is decided when the script runs; write "
                "the flags as they come out (with `set -x` a shell prints them)"
            )

    def _expanded(self, pieces: list[_Piece]) -> list[Word]:
        """Return the words that a word becomes."""
        if len(pieces) == 1 and (whole := _WHOLE.fullmatch(pieces[0].text)) and pieces[0].quote != "'":
            found = self.known.get(whole[1] or whole[2])
            if found is not None:
                return list(found)
        text = "".join(map(self._put_in, pieces))
        is_divided = not any(piece.quote for piece in pieces) or _NESTED.search(text)
        return _split(text, pieces[0].line) if is_divided else [Word(text, pieces[0].line)]

    def _put_in(self, piece: _Piece) -> str:
        if piece.quote == "'":
            return piece.text

        def of(found: re.Match[str]) -> str:
            if found["sum"] is not None:
                return _sum(self._put_in(replace(piece, text=found["sum"])), self.known, found[0])
            words = self.known.get(found["braced"] or found["bare"])
            if words is None:
                return found["default"] if found["default"] is not None else found[0]
            return " ".join(word.text for word in words)

        text = _VARIABLE.sub(of, piece.text)
        if len(text) > max(MOST_LETTERS, len(piece.text)):
            raise InvalidInput(f"{self.path}: line {piece.line}: more than {MOST_LETTERS} letters in one variable")
        return text


def _tokens(text: str, path: str) -> Iterator[tuple[str, list[_Piece] | None]]:
    """Yield words, and what ends a command by its sign."""
    place, line = 0, 1
    word: list[_Piece] = []
    redirected, before = False, ""
    while place < len(text):
        found = _TOKEN.match(text, place)
        if not found:
            raise InvalidInput(f"{path}: line {line}: No closing quotation; close the quote that begins here")
        kind, part = found.lastgroup or "", found[0]
        if kind == "comment" and word:
            kind, part = "plain", "#"
        elif part == "(" and word and (inner := _list(text, place)):
            kind, part = "list" if word[-1].text.endswith("=") else "plain", inner
        elif part.startswith("|") and word:
            kind = "plain"
        is_redirection = kind == "stop" and part[0] in "<>"
        if kind in ("blank", "end", "stop", "comment"):
            if word and not redirected and not (is_redirection and word[0].text.isdigit()):
                yield "word", word
            redirected = is_redirection or (redirected and not word)
            word = []
            if kind == "comment" and "\\" in before:
                _check_comment(text, place, f"{path}: line {line}")
            if kind in ("end", "stop") and not is_redirection:
                yield part, None
        else:
            word.append(_piece(kind, part, found, line))
        before, place, line = part, place + len(part), line + part.count("\n")
    if word and not redirected:
        yield "word", word
    yield "\n", None


def _piece(kind: str, part: str, found: re.Match[str], line: int) -> _Piece:
    if kind == "double":
        return _Piece(re.sub(r"\\([\\\"$`\n])", r"\1", found["double"]), '"', line)
    quote = {"single": "'", "escaped": "'", "list": "("}.get(kind, "")
    return _Piece(found[kind] if kind in ("single", "escaped") else part, quote, line)


def _check_comment(text: str, place: int, where: str) -> None:
    """Refuse a comment within a continued command, behind which further flags stand."""
    if _GOES_ON.match(text, place):
        raise InvalidInput(f"{where}: a comment within a continued command ends it for a shell; take the comment out")


def _list(text: str, place: int) -> str:
    """Return the text from a bracket to the one that closes it, nothing where none does."""
    found = _LIST.match(text, place)
    return found[0] if found else ""


def _array(piece: _Piece, path: str) -> Iterator[list[_Piece]]:
    for kind, word in _tokens(piece.text[1:-1], path):
        if kind == "word" and word:
            yield [_Piece(part.text, part.quote, part.line + piece.line - 1) for part in word]


def _split(text: str, line: int) -> list[Word]:
    return [
        Word(found[0].strip("'\""), line + text.count("\n", 0, found.start())) for found in re.finditer(r"\S+", text)
    ]


def _sum(text: str, known: Mapping[str, list[Word]], written: str) -> str:
    """Return the whole number that a sum of numbers and variables comes to, else as it is written."""

    def of(found: re.Match[str]) -> str:
        words = known.get(found[1], [])
        return words[0].text if len(words) == 1 else found[0]

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < 10**MOST_DIGITS:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
            return int(_SUMS[type(node.op)](value(node.left), value(node.right)))
        raise ValueError

    try:
        return str(value(ast.parse(re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", of, text).strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return written
