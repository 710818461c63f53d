"""What a rank's allocator held, read from torch's memory snapshot written as JSON.

    torch.cuda.memory._record_memory_history(context=None)      # before the steps
    json.dump(torch.cuda.memory._snapshot(), file)              # after them

A snapshot is the end; its trace is walked back to the peak. torch itself pickles snapshots, and no pickle is read.
Leaves out who asked for what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.files import Node, read_json

USED = "active_allocated"
TENSORS = {"alloc": 1, "free_requested": -1}
SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Actions of a trace that add to what tensors hold, or the allocator keeps, and those that take from it."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Bytes of a rank's tensors at the peak and at the end, and the most that the allocator kept for them."""

    peak_bytes: int
    end_bytes: int
    reserved_bytes: int


def read_memory_snapshot(path: str | Path) -> MemorySnapshot:
    """Read a snapshot of one device.

    Raises
    ------
    InvalidInput
        When the file is none, holds several devices, or nothing was recorded before it.
    """
    root = read_json(path)
    segments = _member(root, "segments").items()
    traces = [trace for trace in _member(root, "device_traces").items() if trace.items()]
    if len(traces) != 1:
        _member(root, "device_traces").fail(
            f"{len(traces)} devices have a trace and one is needed: call "
            "torch.cuda.memory._record_memory_history(context=None) on the rank's device before its steps"
        )
    blocks = [block for segment in segments for block in _member(segment, "blocks").items()]
    used = (block for block in blocks if _member(block, "state").text() == USED)
    end = sum(_member(block, "requested_size").integer() for block in used)
    kept = sum(_member(segment, "total_size").integer() for segment in segments)
    entries = [(_member(entry, "action").text(), entry) for entry in traces[0].items()]
    moved = [(action, _member(entry, "size").integer()) for action, entry in entries if action in TENSORS | SEGMENTS]
    return MemorySnapshot(_most(end, moved, TENSORS), end, _most(kept, moved, SEGMENTS))


def _member(node: Node, name: str) -> Node:
    fields = node.entries()
    if name not in fields:
        node.fail(f"no {name!r}, which a snapshot has here: json.dump(torch.cuda.memory._snapshot(), file) writes one")
    return fields[name]


def _most(end: int, moved: Sequence[tuple[str, int]], signs: dict[str, int]) -> int:
    """Return the most that was held before an end."""
    most = held = end
    for action, size in reversed(moved):
        held -= signs.get(action, 0) * size
        most = max(most, held)
    return most
