"""What each command takes, and the file that freezes it.

    PYTHONPATH=. python -m tests.support.frozen_options

renews the file when a flag is meant to change.
"""

import argparse
import json

from planner.commands import COMMANDS, parser_of
from tests.support.repository import GOLDEN

FROZEN = GOLDEN / "options.json"
RENEW = "PYTHONPATH=. python -m tests.support.frozen_options"


def options() -> dict[str, list[dict[str, object]]]:
    """Return what each command takes."""
    return {command: [_option(each) for each in parser_of(command)._actions] for command in COMMANDS}


def _option(action: argparse.Action) -> dict[str, object]:
    return {
        "name": " ".join(action.option_strings) or action.dest,
        "takes": "nothing" if action.nargs == 0 else str(action.nargs or "a value"),
        "again": type(action).__name__ == "_AppendAction",
        "choices": [str(choice) for choice in action.choices or ()],
        "default": str(action.default),
        "required": action.required,
    }


def main() -> None:
    """Write the file, a line an option, so that a change is seen in a diff."""
    rows = [
        f"  {json.dumps(command)}: [\n" + ",\n".join(f"    {json.dumps(row)}" for row in found) + "\n  ]"
        for command, found in options().items()
    ]
    FROZEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
