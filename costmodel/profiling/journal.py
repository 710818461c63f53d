"""A journal of measured items, one JSON line each, flushed to disk: profiling resumes where it was cut off.

The first line says what is measured and how; a journal of anything else is not continued. Leaves out
what an item means: its key and value are the caller's.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from costmodel.errors import UsageError

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
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.items: dict[str, Any] = {}
        heading = json.loads(json.dumps(heading))  # as it will be read back
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(path)
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


def _whole_lines(path: Path) -> list[Any]:
    """Read all whole lines, and cut off the one that a kill left half written."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        os.truncate(path, len(whole.encode()))
    return [json.loads(line) for line in whole.splitlines()]
