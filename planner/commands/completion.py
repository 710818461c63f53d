"""Print what makes a shell complete commands, flags and their values; files where a flag takes one.

    penstock completion bash > penstock.bash

For this shell alone: source penstock.bash. For good: bash reads ~/.local/share/bash-completion/completions/penstock,
fish ~/.config/fish/completions/penstock.fish; for zsh, source the file in ~/.zshrc behind compinit.
"""

import argparse

from planner.commands.answer import Answer

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> Answer:
    """Make the script from the parsers of all commands."""
    import shtab

    from planner.commands import COMMANDS, parser_of

    whole = argparse.ArgumentParser("penstock", allow_abbrev=False)
    whole.add_argument("--version", action="store_true")
    subparsers = whole.add_subparsers()
    for command, text in COMMANDS.items():
        parser = subparsers.add_parser(command, parents=[parser_of(command)], add_help=False, help=text)
        for action in parser._actions:
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(whole, args.shell)
    return Answer({"shell": args.shell, "script": script}, [script])
