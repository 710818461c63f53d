"""What a command answers, printed for people or as one JSON object.

Uses rich for tables where it is installed, plain lines where it is not (GPU boxes). All that people read goes through
here, so that names from files reach no terminal with control characters in them, nor as rich's own markup.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING

from costmodel.limits import SECONDS_UNANNOUNCED
from costmodel.printing import printable
from planner.report.summary.text import Table

if TYPE_CHECKING:
    from planner.plan import Plan

INTERRUPTED = 130
"""Exit code of what was interrupted, the best so far kept."""
LABEL = 13
"""Columns of a line's label."""
LOOK_NS, LOOK_BYTES = 60_000, 1_200
"""Of an action of a plan that is explained, compared or changed: 30 to 85 us on plans of one to two million."""


@dataclass(frozen=True)
class Answer:
    """One command's result: the JSON object, and what people read (lines and tables)."""

    json: Mapping[str, object]
    text: Sequence[str | Table] = field(default=())
    exit_code: int = 0
    width: int = 0


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the JSON object, or the lines and tables, on stdout."""
    if as_json:
        print(json.dumps(answer.json, allow_nan=False))
        return
    for part in answer.text:
        print(wrapped(printable(part, kept="\n"), answer.width)) if isinstance(part, str) else _print_table(part)


def wrapped(text: str, width: int) -> str:
    """Break a line that is wider, what follows under the text behind its label; nothing where the width is 0."""
    if not width:
        return text
    indent = " " * LABEL if text[LABEL - 1 : LABEL] == " " and "  " in text[:LABEL] else ""
    return "\n".join(
        wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
    )


def print_error(message: str, exit_code: int, as_json: bool) -> int:
    """Print an error on stderr, under ``--json`` as an object on stdout too; return the exit code."""
    say(f"penstock: {message}")
    if as_json:
        print(json.dumps({"error": message, "exit": exit_code}))
    return exit_code


def say(line: str) -> None:
    """Print a line on stderr."""
    print(printable(line, kept="\n"), file=sys.stderr, flush=True)


def say_size(*plans: "Plan") -> None:
    """Say beforehand about how long it takes to look at plans action by action, where that is long.

    Ranks in lockstep count once.
    """
    number = sum(len(order) for plan in plans for order in plan.lead_orders)
    seconds = number * LOOK_NS / 1e9
    if seconds > SECONDS_UNANNOUNCED:
        room = number * LOOK_BYTES / 2**30
        say(f"{number} actions are simulated again and told apart: about {seconds:.0f} s and {room:.1f} GiB")


def _print_table(table: Table) -> None:
    rows = [tuple(map(printable, row)) for row in table.rows]
    shown = Table(tuple(map(printable, table.columns)), rows, printable(table.title, kept="\n"), table.width)
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        print(shown)
        return

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # where nobody reads any more, the command as a whole says so

    drawn = RichTable()
    for i, column in enumerate(shown.columns):
        drawn.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in shown.rows:
        drawn.add_row(*row)
    # A pipe has no width; a table squeezed into 80 columns there would be broken for every reader.
    out = Pipe(width=table.width or (None if sys.stdout.isatty() else 200), markup=False, emoji=False, highlight=False)
    if shown.title:  # as a title of the table it would be broken to the table's width
        out.print(shown.title)
    out.print(drawn)
