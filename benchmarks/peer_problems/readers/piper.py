"""Instances of Piper (Tarnawski et al., NeurIPS 2021): time and memory of each node for each tensor degree and variant.

Times in s, sizes in bytes, bandwidth in bytes a second. Variants of one degree differ in recompute. Leaves out what
the planner makes of them (`benchmarks.peer_problems.piper`).
"""

from collections.abc import Mapping
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
from costmodel.errors import InvalidInput
from costmodel.files import Node


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a node: bytes are `per_microbatch_bytes` for each micro-batch in flight, and `static_bytes`.

    `sync_in` and `sync_out` are bytes that its ranks exchange where a node before or after it is in another stage.
    """

    name: str
    time_s: float
    parameter_bytes: float
    per_microbatch_bytes: float
    static_bytes: float
    sync_in: Mapping[int, float]
    sync_out: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class VariantInstance:
    """A graph of nodes with variants.

    Attributes
    ----------
    names : tuple of str
    variants : tuple of mapping
        Of each node, by tensor degree.
    edges : tuple of (int, int, float)
        Producer, consumer, bytes.
    max_devices : int
    memory_bytes, bandwidth : float
    num_microbatches : int
        Of a batch; replicas divide it.
    """

    names: tuple[str, ...]
    variants: tuple[Mapping[int, tuple[Variant, ...]], ...]
    edges: tuple[tuple[int, int, float], ...]
    max_devices: int
    memory_bytes: float
    bandwidth: float
    num_microbatches: int


def read_piper(path: str | Path) -> VariantInstance:
    """Read an instance.

    Raises
    ------
    InvalidInput
        With the place, what was found there and what is allowed.
    """
    top = read_object(Path(path), ("maxDevices", "maxMemoryPerDevice", "bandwidth", "mbsInBatch", "nodes", "edges"))
    rows = [members(node, ("id", "TMPCs")) for node in top["nodes"].items()]
    if not rows:
        top["nodes"].fail("at least one node is needed")
    ids = number_of([row["id"] for row in rows])
    edges = []
    for edge in top["edges"].items():
        row = members(edge, ("sourceId", "destId", "communicationCost"))
        edges.append((known(row["sourceId"], ids), known(row["destId"], ids), amount(row["communicationCost"])))
    check_acyclic(str(path), ((source, target) for source, target, _ in edges), list(ids))
    return VariantInstance(
        tuple(str(row["name"].value) if "name" in row else str(row["id"].value) for row in rows),
        tuple(_variants(row["TMPCs"], ids) for row in rows),
        tuple(edges),
        top["maxDevices"].integer(1),
        amount(top["maxMemoryPerDevice"]),
        top["bandwidth"].number(1.0, 1e18),
        top["mbsInBatch"].integer(1),
    )


def _variants(node: Node, ids: Mapping[int, int]) -> dict[int, tuple[Variant, ...]]:
    found = {}
    for degree, rows in node.entries().items():
        row = tuple(_variant(each, ids) for each in rows.items())
        if len({variant.parameter_bytes for variant in row}) > 1:
            rows.fail("variants of one degree must have the same parameterSize")
        found[int(_digits(degree, rows))] = row
    if not any(found.values()):
        node.fail("at least one way to run the node is needed")
    return {degree: row for degree, row in found.items() if row}


def _variant(node: Node, ids: Mapping[int, int]) -> Variant:
    row = members(node, ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB", "syncTimeFw", "syncTimeBw"))
    return Variant(
        str(row["id"].value) if "id" in row else "",
        amount(row["timePerSample"]),
        amount(row["parameterSize"]),
        amount(row["memoryUsageA"]),
        amount(row["memoryUsageB"]),
        _sync(row["syncTimeFw"], ids),
        _sync(row["syncTimeBw"], ids),
    )


def _sync(node: Node, ids: Mapping[int, int]) -> dict[int, float]:
    found = {}
    for name, size in node.entries().items():
        if int(_digits(name, size)) not in ids:
            raise InvalidInput(f"{size.file}: {size.pointer}: no node has the id {name}")
        found[ids[int(name)]] = amount(size)
    return found


def _digits(text: str, node: Node) -> str:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
        raise InvalidInput(f"{node.file}: {node.pointer}: the key {text!r} is not a whole number")
    return text
