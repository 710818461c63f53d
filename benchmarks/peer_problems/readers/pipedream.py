"""Graphs of PipeDream's profiler (Narayanan et al., SOSP 2019): lines of nodes, then lines of edges.

Times in ms, sizes in bytes. Nodes that stand for inputs, and last nodes that only pick an element of a result, are
dropped, as PipeDream's own optimizer does. Leaves out what nodes are.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_problems.readers.instance_files import check_acyclic
from costmodel.errors import InvalidInput

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True, slots=True)
class LayerNode:
    """A node: ms of its forward and its backward, bytes of its outputs and its parameters."""

    name: str
    text: str
    forward_ms: float
    backward_ms: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True, slots=True)
class LayerInstance:
    """A graph of layers; edges by place in `nodes`."""

    nodes: tuple[LayerNode, ...]
    edges: tuple[tuple[int, int], ...]


def read_pipedream(path: str | Path) -> LayerInstance:
    """Read a graph.

    Raises
    ------
    InvalidInput
        With the line, what was found there and what is allowed.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}; a text file in UTF-8 is needed") from None
    nodes: dict[str, LayerNode] = {}
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        place = f"{path}: line {number}"
        if line.startswith("\t"):
            ends = tuple(part.strip() for part in line.split(" -- "))
            if len(ends) != 2:
                raise InvalidInput(f"{place}: found {line.strip()!r}; an edge is a tab, a node, ' -- ' and a node")
            pairs.append((ends[0], ends[1]))
        elif line.strip():
            node = _node(line, place)
            if node.name in nodes:
                raise InvalidInput(f"{place}: the node {node.name} is listed twice")
            nodes[node.name] = node
    for pair in pairs:
        for name in pair:
            if name not in nodes:
                raise InvalidInput(f"{path}: the edge {' -- '.join(pair)} names {name}, which no line describes")
    return _kept(str(path), nodes, pairs)


def _kept(path: str, nodes: dict[str, LayerNode], pairs: list[tuple[str, str]]) -> LayerInstance:
    """Return the graph without inputs and picked elements."""
    sources, targets = {a for a, _ in pairs}, {b for _, b in pairs}
    dropped = {name for name, node in nodes.items() if node.text.startswith("Input") and name not in targets}
    dropped |= {name for name, node in nodes.items() if node.text.startswith("__getitem__") and name not in sources}
    kept = [node for name, node in nodes.items() if name not in dropped]
    if not kept:
        raise InvalidInput(f"{path}: no node is left; at least one line such as 'node1 -- Conv2d -- ...' is needed")
    place = {node.name: i for i, node in enumerate(kept)}
    edges = [(place[a], place[b]) for a, b in dict.fromkeys(pairs) if a in place and b in place]
    check_acyclic(path, edges, [node.name for node in kept])
    return LayerInstance(tuple(kept), tuple(edges))


def _node(line: str, place: str) -> LayerNode:
    parts = line.split(" -- ")
    found = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,\s]+)", parts[-1])) if len(parts) > 2 else {}
    if len(parts) < 3 or any(name not in found for name in FIELDS):
        raise InvalidInput(f"{place}: found {line[:60]!r}; a node is 'name -- text -- ' and {', '.join(FIELDS)}")
    values = []
    for name in FIELDS:
        try:
            value = sum(map(float, found[name].strip("[]").split(";")))
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e18:
            raise InvalidInput(f"{place}: {name} is {found[name]!r}; a number of 0 or more is needed")
        values.append(value)
    return LayerNode(parts[0].strip(), " -- ".join(parts[1:-1]), *values)
