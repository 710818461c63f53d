"""``python -m benchmarks.peer_problems`` (`benchmarks.peer_problems.command`)."""

import sys
from collections.abc import Sequence

from benchmarks.peer_problems import command
from planner.commands import main_of
from planner.interrupts import defer


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return main_of(command, "python -m benchmarks.peer_problems", argv)


if __name__ == "__main__":
    defer()
    sys.exit(main(sys.argv[1:]))
