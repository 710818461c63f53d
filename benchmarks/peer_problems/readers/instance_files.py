"""What readers of other planners' instance files share: where something stands, and whether a graph is one.

These files are not ours: keys that we do not know are passed over. Leaves out what the fields mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import networkx as nx

from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json

LARGEST = 1e18
"""No time, in its file's unit, and no size in bytes is larger."""


def read_object(path: Path, required: Iterable[str]) -> dict[str, Node]:
    """Return the members of a JSON file's one object."""
    return members(read_json(path), required)


def members(node: Node, required: Iterable[str]) -> dict[str, Node]:
    """Return the members of an object that holds at least the required ones."""
    found = node.entries()
    for key in required:
        if key not in found:
            raise InvalidInput(f"{node.file}: {node.pointer or '/'}: the key {key!r} is missing")
    return found


def amount(node: Node) -> float:
    """Return a time or a size: a number that is not below 0."""
    return node.number(0.0, LARGEST)


def number_of(nodes: Sequence[Node]) -> dict[int, int]:
    """Return the place of each node's id in a list of ids, which must be unique."""
    found: dict[int, int] = {}
    for place, node in enumerate(nodes):
        name = node.integer()
        if name in found:
            node.fail("ids must be unique")
        found[name] = place
    return found


def known(node: Node, ids: Mapping[int, int]) -> int:
    """Return the place of the node that an id names."""
    found = ids.get(node.integer())
    if found is None:
        node.fail("no node has this id")
    return found


def check_acyclic(file: str, edges: Iterable[tuple[int, int]], names: Sequence[object]) -> None:
    """Refuse (`InvalidInput`) edges that form a cycle, which is named."""
    graph: nx.DiGraph[int] = nx.DiGraph(list(edges))
    if not nx.is_directed_acyclic_graph(graph):
        cycle = [str(names[source]) for source, _ in nx.find_cycle(graph)]
        raise InvalidInput(
            f"{file}: the nodes {' -> '.join([*cycle, cycle[0]])} form a cycle; a graph without is needed"
        )
