"""Print what makes a shell complete commands, flags and their values; files where a flag takes one.

    penstock completion bash > penstock.bash

For this shell alone: source penstock.bash. For good: bash reads ~/.local/share/bash-completion/completions/penstock,
fish ~/.config/fish/completions/penstock.fish; for zsh, source the file in ~/.zshrc behind compinit.
"""

import argparse
from collections.abc import Iterator

from planner.commands.answer import Answer

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> Answer:
    """Make the script from the parsers of all commands."""
    lines = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]()
    script = "\n".join(lines)
    return Answer({"shell": args.shell, "script": script}, [script])


def _actions() -> Iterator[tuple[str, list[argparse.Action]]]:
    """Yield each command with what its parser takes."""
    from planner.commands import COMMANDS, parser_of

    for command in COMMANDS:
        yield command, parser_of(command)._actions


def _words(action: argparse.Action) -> list[str]:
    """Return the values that an action takes, where they are few."""
    return [str(choice) for choice in action.choices or ()]


def _bash() -> Iterator[str]:
    """Write one function: words of a flag's values, else flags, else files (readline's default)."""
    from planner.commands import COMMANDS

    yield "_penstock() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" flags="" values="" first=""'
    yield "  COMPREPLY=()"
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$cur")); return'
    yield "  fi"
    yield '  case "${COMP_WORDS[1]}" in'
    for command, actions in _actions():
        flags = [flag for action in actions for flag in action.option_strings]
        first = next((" ".join(_words(a)) for a in actions if not a.option_strings), "")
        yield f'    {command}) flags="{" ".join(flags)}" first="{first}"'
        yield '      case "$prev" in'
        for action in actions:
            if action.option_strings and action.nargs != 0:
                values = " ".join(_words(action))
                said = f'values="{values}"' if values else "return"  # nothing of ours: files
                yield f"        {'|'.join(action.option_strings)}) {said} ;;"
        yield "      esac ;;"
    yield "  esac"
    yield '  if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$cur"))'
    yield '  elif [ "${cur#-}" != "$cur" ]; then COMPREPLY=($(compgen -W "$flags" -- "$cur"))'
    yield '  elif [ "$COMP_CWORD" -eq 2 ]; then COMPREPLY=($(compgen -W "$first" -- "$cur")); fi'
    yield "}"
    yield "complete -o default -F _penstock penstock"


def _zsh() -> Iterator[str]:
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from _bash()


def _fish() -> Iterator[str]:
    from planner.commands import COMMANDS

    for command, text in COMMANDS.items():
        yield f"complete -c penstock -n __fish_use_subcommand -a {command} -d {_quoted(text)}"
    for command, actions in _actions():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        for action in actions:
            words = f" -a {_quoted(' '.join(_words(action)))}" if action.choices else ""
            names = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in action.option_strings
            )
            value = " -r" if names and action.nargs != 0 else ""
            if names or words:
                yield f"complete -c penstock {seen}{names}{value}{words}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
