"""Reading and writing every file of Penstock: strict on the way in, atomic on the way out.

JSON and TOML become trees of `Node`, each of which knows its file and JSON pointer, so that an error
names the place. Leaves out: what the fields mean (each type reads itself from a `Node`).
"""

import codecs
import gzip
import json
import math
import stat
import tomllib
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from costmodel import limits
from costmodel.errors import InvalidInput, PenstockError
from costmodel.outputs import check_format, place

T = TypeVar("T")

LARGEST_INTEGER = 2**63 - 1
"""Times and sizes must fit a signed 64-bit word: numpy and CP-SAT compute with them."""

PIECE_BYTES = 2**20

MAX_DEPTH = 64
"""No file of ours nests deeper; deeper ones exhaust the interpreter's stack."""


class Node:
    """One value read from a file, with its place in the file: a JSON pointer, or where it is within another node."""

    __slots__ = ("_place", "file", "value")

    def __init__(self, value: object, place: "str | tuple[Node, str | int]", file: str) -> None:
        self.value, self._place, self.file = value, place, file

    @property
    def pointer(self) -> str:
        """The JSON pointer, which is made where it is asked for: most nodes are read without."""
        if isinstance(self._place, str):
            return self._place
        parent, step = self._place
        return f"{parent.pointer}/{str(step).replace('~', '~0').replace('/', '~1')}"

    def fail(self, allowed: str) -> NoReturn:
        """Raise `InvalidInput` naming the place, what was found and what is allowed."""
        raise InvalidInput(f"{self.file}: {self.pointer or '/'}: found {brief(self.value)}; {allowed}")

    def members(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, "Node"]:
        """Return the members of an object; all of `required` and nothing unknown must be there."""
        if not isinstance(self.value, dict):
            self.fail("an object is needed here")
        required, optional = tuple(required), tuple(optional)
        for key in required:
            if key not in self.value:
                raise InvalidInput(
                    f"{self.file}: {self.pointer or '/'}: the key {key!r} is missing; "
                    f"it must hold {', '.join(required)}"
                )
        for key in self.value:
            if key not in required and key not in optional:
                allowed = ", ".join((*required, *optional))
                raise InvalidInput(
                    f"{self.file}: {self.pointer or '/'}: unknown key {key!r}; allowed are {allowed} "
                    "(what is yours goes under 'extra' of the file)"
                )
        return {key: Node(value, (self, key), self.file) for key, value in self.value.items()}

    def entries(self) -> dict[str, "Node"]:
        """Return the members of an object whose keys are names chosen by the writer."""
        if not isinstance(self.value, dict):
            self.fail("an object is needed here")
        return {key: Node(value, (self, key), self.file) for key, value in self.value.items()}

    def items(self) -> list["Node"]:
        """Return the elements of a list."""
        if not isinstance(self.value, list):
            self.fail("a list is needed here")
        return [Node(value, (self, i), self.file) for i, value in enumerate(self.value)]

    def integer(self, minimum: int = 0, maximum: int = LARGEST_INTEGER) -> int:
        """Return a whole number within the bounds (both inclusive)."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.fail("a whole number is needed here")
        if not minimum <= self.value <= maximum:
            self.fail(f"the number must lie between {minimum} and {maximum}")
        return self.value

    def number(self, minimum: float = 0.0, maximum: float = LARGEST_INTEGER) -> float:
        """Return a number within the bounds (both inclusive)."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.fail("a number is needed here")
        if not minimum <= self.value <= maximum:
            self.fail(f"the number must lie between {minimum:g} and {maximum:g}")
        return float(self.value)

    def text(self, allowed: Iterable[str] | None = None) -> str:
        """Return a string, one of `allowed` when that is given."""
        if not isinstance(self.value, str):
            self.fail("a string is needed here")
        if allowed is not None and self.value not in (names := tuple(allowed)):
            self.fail(f"allowed are {', '.join(names)}")
        return self.value

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self.fail("true or false is needed here")
        return self.value

    def integers(self, minimum: int = 0) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        if isinstance(self.value, list) and all(type(v) is int and minimum <= v <= LARGEST_INTEGER for v in self.value):
            return tuple(self.value)  # most of a profile: no node for each
        return tuple(item.integer(minimum) for item in self.items())

    def texts(self) -> tuple[str, ...]:
        """Return a list of strings."""
        if isinstance(self.value, list) and all(isinstance(v, str) for v in self.value):
            return tuple(self.value)
        return tuple(item.text() for item in self.items())

    def build(self, make: Callable[[], T]) -> T:
        """Call `make`; an `InvalidInput` it raises gets this node's file and pointer in front."""
        try:
            return make()
        except InvalidInput as error:
            if str(error).startswith(f"{self.file}: "):
                raise
            raise InvalidInput(f"{self.file}: {self.pointer or '/'}: {error}") from None

    def child(self, key: str) -> "Node":
        """Return a member of an object that has it."""
        return Node(typing.cast(dict[str, object], self.value)[key], (self, key), self.file)


def read_json(path: str | Path) -> Node:
    """Read a JSON file (gzip by the suffix ``.gz``) into a `Node`.

    Raises
    ------
    InvalidInput
        When the file is missing or unreadable, is not UTF-8 JSON, holds NaN, an infinity, a duplicate
        key or more than 64 levels.
    """
    file = str(path)
    text = read_text(Path(path))
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
        _check_depth(value)
    except RecursionError:
        raise InvalidInput(f"{file}: nested too deeply; at most {MAX_DEPTH} levels are allowed") from None
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{file}: not JSON at line {error.lineno}: {error.msg}; was the file cut off?") from None
    except ValueError as error:  # a number of more digits than Python converts
        raise InvalidInput(f"{file}: {error}") from None
    return Node(value, "", file)


def read_toml(path: str | Path) -> Node:
    """Read a TOML file into a `Node`; the same rules as `read_json`."""
    return toml_node(read_text(Path(path)), str(path))


def toml_node(text: str, file: str) -> Node:
    """Read the text of a TOML file into a `Node`; the same rules as `read_json`."""
    try:
        value = tomllib.loads(text, parse_float=_finite)
        _check_depth(value)
    except RecursionError:
        raise InvalidInput(f"{file}: nested too deeply; at most {MAX_DEPTH} levels are allowed") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{file}: not TOML: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"{file}: {error}") from None
    return Node(value, "", file)


def write_json(path: str | Path, kind: str, version: int, body: Mapping[str, object]) -> None:
    """Write a document atomically; the same body gives the same bytes."""
    check_format(path, kind)
    write_text(path, json.dumps({"format": kind, "version": version, **body}, indent=1, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write text (gzip by the suffix ``.gz``) atomically."""
    data = text.encode()
    place(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def read_text(path: Path) -> str:
    """Read a regular file of UTF-8 text (gzip by the suffix ``.gz``).

    Raises
    ------
    InvalidInput
        When it cannot be read, is larger than the limit, or is no such text.
    """
    try:
        data = read_bytes(path)
        if data.startswith(codecs.BOM_UTF8):
            raise InvalidInput(f"{path}: begins with a byte order mark; save it as UTF-8 without one (BOM)")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file; check the name and the working folder") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: byte {error.start} is not UTF-8 text; is this the right file?") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidInput(f"{path}: not a whole gzip file, though its name ends in .gz") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    except PenstockError:
        raise
    except ValueError as error:
        raise InvalidInput(f"{str(path)!r} cannot be the name of a file ({error})") from None


def read_bytes(path: Path) -> bytes:
    """Read a regular file, decompressed if its name says so, as far as the limit and no further."""
    check_regular(path)
    allowed = limits.most("bytes")
    pieces, num_bytes = [], 0
    with gzip.open(path) if path.suffix in (".gz", ".tgz") else path.open("rb") as file:
        while piece := file.read(min(PIECE_BYTES, allowed + 1 - num_bytes)):  # room for all that is allowed is too much
            pieces.append(piece)
            num_bytes += len(piece)
    limits.check("bytes", num_bytes, str(path), at_least=True)
    return b"".join(pieces)


def check_regular(path: Path) -> None:
    """Refuse pipes, devices and sockets, which may never end and are read once alone."""
    kind = path.stat().st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # opening a folder says so
        raise InvalidInput(f"{path}: is no regular file; give the name of a file, which is read as often as needed")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise InvalidInput(f"the key {key!r} occurs twice in one object; keep one of them")
        members[key] = value
    return members


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput(f"found {name}; only finite numbers are allowed")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidInput(f"found {text}; only finite numbers are allowed")
    return value


def _check_depth(value: object, depth: int = 0) -> None:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if depth >= MAX_DEPTH and inside:
        raise RecursionError
    for item in inside:
        if isinstance(item, dict | list):
            _check_depth(item, depth + 1)


def brief(value: object) -> str:
    """Return a value as messages quote it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
