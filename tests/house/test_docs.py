"""The documentation: the site builds, commands parse, code compiles, and what an example prints is what it does."""

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.__main__ import _parser as executor_parser
from planner.commands import form_of, main, parser_of
from tests.support.repository import ROOT
from tests.support.schema_corpus import schema

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SEPARATORS = {";", "&&", "||", "|", ">", "(", ")"}
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z]")
"""What stands for a word of a user's."""


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of shell blocks, and indented lines that are commands of ours."""
    text = text.replace("\\\n", " ")
    for language, body in BLOCK.findall(text):
        if language == "sh":
            yield from body.splitlines()
    yield from re.findall(r"^    ((?:penstock|torchrun) .*)$", BLOCK.sub("", text), re.MULTILINE)


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each command in a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in SEPARATORS:
            words.append(word)
            continue
        yield words[words[:1] == ["do"] :]
        words = []


def ours() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for line in lines_of(page.read_text()):
            for words in commands_of(line):
                is_ours = words[:1] == ["penstock"] or (words[:1] == ["torchrun"] and "executor" in words)
                if is_ours and not any(PLACEHOLDER.fullmatch(word) for word in words):
                    yield f"{page.name}: {shlex.join(words)}", words


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in ours()])
def test_a_command_in_the_docs_parses(words: list[str]) -> None:
    if words[0] == "penstock":
        rest = words[2:]
        parser_of(form_of(words[1], rest)).parse_args(rest)
    else:
        executor_parser().parse_args(words[words.index("executor") + 1 :])


def test_code_in_the_docs_compiles_and_what_it_imports_is_there() -> None:
    for page in PAGES:
        for language, body in BLOCK.findall(page.read_text()):
            if language == "python":
                tree = ast.parse(body + "    ..." * body.endswith(":\n"), page.name)
                tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
                exec(compile(tree, page.name, "exec"), {})


def printed_examples() -> list[tuple[str, str]]:
    """Commands of `concepts.md` with the output that stands behind each."""
    pattern = r"^```sh\n(penstock .*)\n```\n+```text\n((?:.*\n)*?)```$"
    return re.findall(pattern, (DOCS / "concepts.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("command", "output"), printed_examples())
def test_an_example_prints_what_stands_behind_it(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)[1:]) == 0
    assert output in capsys.readouterr().out


def test_each_picture_that_a_page_shows_is_there_and_shown() -> None:
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"\]\((?:docs/)?pictures/([\w.-]+\.(?:png|svg))\)", page.read_text())
    }
    assert shown == {path.name for path in (DOCS / "pictures").iterdir() if path.suffix in (".png", ".svg")}


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_what_a_page_outside_the_site_links_is_there(name: str) -> None:
    """The site's own links are held by its build."""
    targets = re.findall(r"\]\(([\w./-]+)[^)]*\)", (ROOT / name).read_text())
    assert targets or name == "CONTRIBUTING.md"
    assert [each for each in targets if not (ROOT / each).exists()] == []


def test_the_schema_in_the_docs_is_the_one_that_is_tested() -> None:
    (name,) = re.findall(r"^```\{literalinclude\} (.*)$", (DOCS / "plan-format.md").read_text(), re.MULTILINE)
    assert json.loads((DOCS / name).read_text()) == schema("plan")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    flags = ["-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", "-d"]
    folders = [tmp_path / "trees", DOCS, tmp_path / "site"]
    done = subprocess.run([sys.executable, *flags, *map(str, folders)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
