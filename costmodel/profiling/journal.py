"""A journal of measured items, one JSON line each, flushed to disk: profiling resumes where it was cut off.

The first line says what is measured and how; a journal of anything else is not continued. Leaves out
what an item means: its key and value are the caller's.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from costmodel.errors import InvalidInput, UsageError

T = TypeVar("T")


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

    Raises
    ------
    UsageError
        When a journal to be resumed is of another model or other options; says which.
    InvalidInput
        When the file cannot be written.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.items: dict[str, Any] = {}
        heading = json.loads(json.dumps(heading))  # as it will be read back
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = _whole_lines(path)
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
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def begin_journal(path: Path | None, heading: Mapping[str, Any], resume: bool, say: Callable[[str], None]) -> Journal:
    """Return the journal, and say what is taken over from it."""
    journal = Journal(path, heading, resume)
    if journal.items:
        say(f"resumed: {len(journal.items)} measured items are taken over from {path}")
    elif resume and path is not None:
        say(f"--resume: there is no measured item in {path}; beginning anew")
    return journal


def _whole_lines(path: Path) -> list[Any]:
    """Read the heading and all items up to the first line that is none, and cut the file off there.

    A kill leaves half a line, a machine that loses its power may leave anything.
    """
    if not path.exists():
        return []
    found: list[Any] = []
    length = 0
    for line in path.read_bytes().splitlines(keepends=True):
        value = _parsed(line)
        is_item = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
        if not (is_item if found else isinstance(value, dict)):
            break
        found.append(value)
        length += len(line)
    if length < path.stat().st_size:
        os.truncate(path, length)
    return found


def _parsed(line: bytes) -> Any:
    """Return a whole line's value, None when it has none."""
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
