"""Rows of a benchmark's table, kept in a file as they come: a run that is ended early loses none.

Leaves out how rows are shown.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.jsonl", help="keep the rows there, at once")


def kept(rows: Iterable[dict[str, Any]], path: Path | None) -> Iterator[dict[str, Any]]:
    """Yield rows, each added to the end of the file first, as one line of JSON."""
    for row in rows:
        if path:
            with path.open("a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
        yield row


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """Return the rows of a file; none where there is no file yet. A last line that was cut off is left out."""
    found: list[dict[str, Any]] = []
    if path and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found
