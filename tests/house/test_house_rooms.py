"""The house: no circle of imports, each public class has a name of its own, and texts that are named exist."""

import re
from itertools import permutations

import grimp
import networkx as nx
import pytest

from tests.support.repository import ROOT

PACKAGES = ("costmodel", "simulator", "planner", "executor")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for annotations count: who reads a module has to know them."""
    imports = grimp.build_graph(*PACKAGES, cache_dir=None)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module in imports.modules:
        graph.add_edges_from((module, other) for other in imports.find_modules_directly_imported_by(module))
    assert [found for found in nx.strongly_connected_components(graph) if len(found) > 1] == []


ROOMS = {"planner/search": 12, "tests": 10}
"""Entries that a room may have at its root."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_few_entries(room: str) -> None:
    entries = [path.name for path in (ROOT / room).iterdir() if path.name != "__pycache__"]
    assert len(entries) <= ROOMS[room], sorted(entries)


def test_the_search_stands_on_few_floors_with_few_arrows_between_its_entries() -> None:
    imports: nx.DiGraph[str] = nx.DiGraph()
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    entries = graph.find_children("planner.search")
    for above, below in permutations(entries, 2):
        if graph.direct_import_exists(importer=above, imported=below, as_packages=True):
            imports.add_edge(above, below)
    floors = nx.dag_longest_path(imports)
    assert len(floors) <= 8, floors
    assert imports.number_of_edges() <= 36


def test_each_module_at_the_root_of_the_benchmarks_is_a_command() -> None:
    """What a command alone needs stands in a package of its name, what several need in `benchmarks/support`."""
    modules = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in modules if '__name__ == "__main__"' not in path.read_text()] == []


def public_classes() -> dict[str, list[str]]:
    """Modules that define each public class."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def test_each_public_class_has_a_name_of_its_own() -> None:
    assert {name: homes for name, homes in public_classes().items() if len(homes) > 1} == {}


def test_each_text_that_a_module_names_is_in_the_repository() -> None:
    """A reader has no other: docstrings cite papers and `docs/`."""
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in (*PACKAGES, "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"[\w/]+\.md\b", path.read_text())
        if not any((ROOT / room / name).is_file() for room in ("", "docs"))
    }
    assert missing == set()
