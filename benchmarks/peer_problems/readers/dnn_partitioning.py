"""Instances of dnn-partitioning (Tarnawski et al., NeurIPS 2020): latency and size of nodes, a cost of each tensor.

Times in ms, sizes in bytes. A tensor costs the same on each of its edges; where a file differs, the most counts. Leaves
out devices that are not accelerators.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_problems.readers.instance_files import (
    amount,
    check_acyclic,
    known,
    members,
    number_of,
    read_object,
)
from costmodel.files import Node


@dataclass(frozen=True, slots=True)
class LatencyNode:
    """A node of the instance; nodes of one colour share a device."""

    name: str
    latency_ms: float
    size_bytes: float
    is_backward: bool
    colour: int | None
    runs: bool


@dataclass(frozen=True, slots=True)
class CostedTensor:
    """What a node makes: those that read it, and what a device pays that has some of them, but not all."""

    producer: int
    consumers: tuple[int, ...]
    cost_ms: float


@dataclass(frozen=True, slots=True)
class LatencyInstance:
    """A graph for identical accelerators.

    Attributes
    ----------
    nodes : tuple of LatencyNode
    tensors : tuple of CostedTensor
    max_devices : int
    memory_bytes : float
        Of each device.
    """

    nodes: tuple[LatencyNode, ...]
    tensors: tuple[CostedTensor, ...]
    max_devices: int
    memory_bytes: float


def read_dnn_partitioning(path: str | Path) -> LatencyInstance:
    """Read an instance.

    Raises
    ------
    InvalidInput
        With the place, what was found there and what is allowed.
    """
    top = read_object(Path(path), ("maxSizePerFPGA", "maxFPGAs", "nodes", "edges"))
    rows = [members(node, ("id", "fpgaLatency", "isBackwardNode", "size")) for node in top["nodes"].items()]
    if not rows:
        top["nodes"].fail("at least one node is needed")
    ids = number_of([row["id"] for row in rows])
    readers: dict[int, dict[int, float]] = {}
    for edge in top["edges"].items():
        row = members(edge, ("sourceId", "destId", "cost"))
        source, target = known(row["sourceId"], ids), known(row["destId"], ids)
        readers.setdefault(source, {})[target] = amount(row["cost"])
    check_acyclic(str(path), ((s, t) for s, row in readers.items() for t in row), list(ids))
    tensors = [CostedTensor(s, tuple(row), max(row.values())) for s, row in sorted(readers.items())]
    nodes = tuple(map(_node, rows))
    return LatencyInstance(nodes, tuple(tensors), top["maxFPGAs"].integer(1), amount(top["maxSizePerFPGA"]))


def _node(row: dict[str, Node]) -> LatencyNode:
    colour = row.get("colorClass")
    return LatencyNode(
        str(row["name"].value) if "name" in row else str(row["id"].value),
        amount(row["fpgaLatency"]),
        amount(row["size"]),
        _flag(row["isBackwardNode"]),
        colour.integer() if colour and colour.value is not None else None,
        _flag(row["supportedOnFpga"]) if "supportedOnFpga" in row else True,
    )


def _flag(node: Node) -> bool:
    """Return a flag that is written as true and false, or as 1 and 0."""
    return node.value == 1 if node.value in (0, 1) else node.fail("true or false is needed here")
