"""The house's words: names that were retired stay away, and texts are sentences that say what they mean.

CONTRIBUTING's glossary has the words that are used. Leaves out words inside of functions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PACKAGES = ("costmodel", "simulator", "planner", "executor")

RETIRED = {
    "modules": {
        "again", "companions", "fold", "halves", "halving", "highest", "inside", "issuing", "jobs", "kept", "launching",
        "likeness", "line_list", "lines", "old_plan", "ours", "prospects", "ratio", "repriced", "screen", "setting",
        "spread", "together", "unions", "varied", "waists", "working", "written",
    },
    "classes": {
        "AnnealingRounds", "AroundPins", "Asked", "Bounding", "Changes", "Cuts", "Fold", "FoldProgress", "InLine",
        "Incumbent", "Issuing", "Jobs", "Kept", "Launching", "Likeness", "Limits", "Outcome", "Place", "PlaceCosts",
        "Prospects", "Restart", "Rising", "Screen", "Search", "Setting", "Solving", "Spread", "UnionSums", "Whole",
        "Working", "Writing",
    },
    "functions": {
        "balanced", "best_fold", "better_if", "device_orders", "first_cuts", "fold", "heed", "held_back",
        "highest_bytes", "host_lacks", "jobs_of", "lacking_bytes", "may_vary", "no_plan",
        "of_few_cuts", "pressed_ns", "seeks_halves", "seeks_in_flight", "shake", "start_from", "under_other_options",
        "waists", "ways_out",
    },
}  # fmt: skip
"""Names that the field has another word for; the design's table has both."""
RIDDLES = (
    r"so many",
    r"\bwhat holds? least",
    r"lacks? least",
    r"\bbeside\b",
    r"\bstands? (twice|beside|behind|nowhere)\b",
)
"""Phrases that a reader has to guess at."""
READ = ("costmodel", "simulator", "planner")
KERNELS = ("annealing/data.py", "annealing/kernels.py", "lattice/graph.py", "lattice/kernels.py", "solvers/compiled.py")
"""Files that compiled kernels are kept by: a change of a word would have them compiled anew."""


def modules() -> Iterator[Path]:
    """Yield all modules."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def definitions(path: Path, kinds: tuple[type[ast.AST], ...]) -> set[str]:
    """Return the public names that a module defines, methods included."""
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))
    names = {str(getattr(node, "name", "")) for node in found}
    return {name for name in names if not name.startswith("_")}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their lines: docstrings, messages and what stands under constants."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def test_no_module_has_a_retired_name() -> None:
    found = [str(path.relative_to(ROOT)) for path in modules() if path.stem in RETIRED["modules"]]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [("classes", (ast.ClassDef,)), ("functions", (ast.FunctionDef, ast.AsyncFunctionDef))],
)
def test_no_public_name_is_a_retired_one(kind: str, nodes: tuple[type[ast.AST], ...]) -> None:
    found = {str(path.relative_to(ROOT)): definitions(path, nodes) & RETIRED[kind] for path in modules()}
    assert {path: names for path, names in found.items() if names} == {}


def test_texts_of_the_cost_model_simulator_and_planner_are_no_riddles() -> None:
    found = []
    for path in modules():
        name = str(path.relative_to(ROOT))
        if name.startswith(READ) and not name.endswith(KERNELS):
            found += [f"{name}:{line}: {text}" for line, text in texts(path) if re.search("|".join(RIDDLES), text)]
    assert found == []


def test_each_word_of_the_glossary_has_one_meaning() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(
        r"^\| ([^|]+?) \| [^|]+ \|$", text.partition("## Glossary")[2].partition("\n## ")[0], re.MULTILINE
    )
    words = [word.strip() for row in rows for word in row.split(",")]
    assert len(words) > 20
    assert [word for word in words if words.count(word) > 1] == []
