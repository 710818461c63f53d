"""Kernels of a device's records, each given to the note that the host had written last when it launched it.

A kernel carries its launch's correlation id, and the launch the host's time: so a kernel that runs long after is
still found where it was issued, in the backward and on autograd's thread too. Leaves out writing records
(`costmodel.capture.clock`); reads no torch object.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
NOTE = "user_annotation"


@dataclass(frozen=True, slots=True)
class KernelSums:
    """Time in kernels and their number, up to each note; `unattributed_ns` belongs to no note."""

    ns_before: tuple[int, ...]
    kernels_before: tuple[int, ...]
    unattributed_ns: int


def sum_kernels(events: Iterable[Mapping[str, Any]], prefix: str, num_notes: int) -> KernelSums:
    """Add up what was launched after each of the notes ``prefix0``, ``prefix1``, ... up to the next.

    Parameters
    ----------
    events : iterable of mappings
        Chrome trace events; those of other categories are passed over.

    Raises
    ------
    ValueError
        When a note is missing: the records were cut short.
    """
    notes: dict[int, float] = {}
    launched: dict[int, float] = {}
    kernels = []
    for event in events:
        kind = event.get("cat")
        if kind == NOTE and event["name"].startswith(prefix):
            notes[int(event["name"].removeprefix(prefix))] = event["ts"]
        elif kind in LAUNCHES and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = event["ts"]
        elif kind in KERNELS:
            kernels.append((event["args"].get("correlation"), event["dur"]))
    if len(notes) != num_notes:
        raise ValueError(f"the records hold {len(notes)} of {num_notes} notes")
    times = [notes[i] for i in range(num_notes)]
    ns, counts, lost = [0.0] * (num_notes + 1), [0] * (num_notes + 1), 0.0
    for correlation, microseconds in kernels:
        # note i opens entry i + 1: what was launched before the first one, or by nobody, belongs to none
        place = bisect_right(times, launched[correlation]) if correlation in launched else 0
        lost += 0 if place else 1000 * microseconds
        ns[place] += 1000 * microseconds if place else 0
        counts[place] += 1 if place else 0
    return KernelSums(tuple(_sums_before(ns)), tuple(_sums_before(counts)), round(lost))


def _sums_before(values: list[float] | list[int]) -> Iterable[int]:
    """Return, for each note, the sum of what belongs to the notes before it."""
    total = 0.0
    for value in values[:-1]:
        total += value
        yield round(total)
