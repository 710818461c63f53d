"""A journal of measured items, one JSON line each, flushed to disk: profiling resumes where it was cut off.

The first line says what is measured and how; a journal of anything else is not continued. Each line carries a
checksum, and what follows one that is not as it was written is measured again. Leaves out what an item means:
its key and value are the caller's.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from costmodel.errors import InvalidInput, UsageError
from costmodel.files import read_bytes

T = TypeVar("T")
BEGIN = b'["penstock-journal", '


class Journal:
    """Measured items by key, kept in a file when there is one.

    Parameters
    ----------
    path : Path, optional
        Without it nothing outlives the process.
    heading : mapping
        What is measured and how.
    resume : bool
        Insist on taking over what the file holds. Otherwise that happens when its heading agrees, and
        a journal of anything else begins anew.

    Attributes
    ----------
    num_lost : int
        Lines that were not as they had been written, and those behind them; without a last one that a kill cut short.

    Raises
    ------
    UsageError
        When a journal to be resumed is of another model or other options; says which.
    InvalidInput
        When the file cannot be written, or is none of ours.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.items: dict[str, Any] = {}
        self.num_lost = 0
        heading = json.loads(json.dumps(heading))  # as it will be read back
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines, self.num_lost = _whole_lines(path)
            path.touch()
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}; name another output") from None
        differing = [name for name in heading if lines and lines[0].get(name) != heading[name]]
        if differing and resume:
            name = differing[0]
            raise UsageError(
                f"{path} was begun with {name} {lines[0].get(name)!r}, now it is {heading[name]!r}; "
                "run with the same options, or without --resume to begin anew"
            )
        if differing or not lines:
            path.write_text("")
            self._append(heading)
        else:
            self.items.update((key, value) for key, value in lines[1:])

    def item(self, key: str, measure: Callable[[], T]) -> T:
        """Return the item that is there, or measure it and write it down.

        The value must be what JSON gives back unchanged: numbers, strings, lists, dicts by string.
        """
        if key not in self.items:
            self.items[key] = measure()
            self._append([key, self.items[key]])
        found: T = self.items[key]
        return found

    def remove(self) -> None:
        """Remove the file: everything is in the profile now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _append(self, line: object) -> None:
        if self.path is None:
            return
        with self.path.open("ab") as file:
            file.write(_written(json.dumps(line).encode()))
            file.flush()
            os.fsync(file.fileno())


def begin_journal(path: Path | None, heading: Mapping[str, Any], resume: bool, say: Callable[[str], None]) -> Journal:
    """Return the journal, and say what is taken over from it."""
    journal = Journal(path, heading, resume)
    if journal.num_lost:
        say(f"{path}: {journal.num_lost} lines are damaged, or follow a damaged one; what they held is measured again")
    if journal.items:
        say(f"resumed: {len(journal.items)} measured items are taken over from {path}")
    elif resume and path is not None:
        say(f"--resume: there is no measured item in {path}; beginning anew")
    return journal


def _whole_lines(path: Path) -> tuple[list[Any], int]:
    """Read the heading and all items up to the first line that is none, cut the file off there, and count what is lost.

    A kill leaves half a line, a machine that loses its power may leave anything.
    """
    if not path.exists():
        return [], 0
    data = read_bytes(path)
    if data[: len(BEGIN)] != BEGIN[: len(data)]:
        raise InvalidInput(f"{path}: is no journal of this version of penstock; remove it, or name another output")
    found: list[Any] = []
    lines = data.splitlines(keepends=True)
    for line in lines:
        content = _parsed(line)
        is_item = isinstance(content, list) and len(content) == 2 and isinstance(content[0], str)
        if not (is_item if found else isinstance(content, dict)):
            break
        found.append(content)
    rest = lines[len(found) :]
    if rest:
        os.truncate(path, len(data) - sum(map(len, rest)))
    return found, sum(line.endswith(b"\n") for line in rest)


def _written(text: bytes) -> bytes:
    return BEGIN + b"%d, %s]\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> Any:
    """Return what a line holds, None where it is not as it was written."""
    text = line.removeprefix(BEGIN).partition(b", ")[2][: -len(b"]\n")]
    try:
        return json.loads(text) if line == _written(text) else None
    except (ValueError, RecursionError):
        return None
