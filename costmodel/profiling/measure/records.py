"""Kernels of a device's records, each given to the note that the host had written last when it launched it.

A kernel carries its launch's correlation id, and the launch the host's time: so a kernel that runs long after is
still found where it was issued, in the backward and on autograd's thread too. Where the launch was not recorded, the
operator of torch that the kernel's external id names tells the time. Leaves out writing records
(`costmodel.capture.clock`); reads no torch object.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
NOTE = "user_annotation"
CALL = "cpu_op"


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
    called: dict[int, float] = {}
    kernels = []
    for event in events:
        kind = event.get("cat")
        if kind == NOTE and event["name"].startswith(prefix):
            notes[int(event["name"].removeprefix(prefix))] = event["ts"]
        elif kind in LAUNCHES and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = event["ts"]
        elif kind == CALL and "External id" in event.get("args", {}):
            called[event["args"]["External id"]] = event["ts"]
        elif kind in KERNELS:
            kernels.append((event["args"], event["dur"]))
    if len(notes) != num_notes:
        raise ValueError(f"the records hold {len(notes)} of {num_notes} notes")
    times = [notes[i] for i in range(num_notes)]
    ns, counts, lost = [0.0] * (num_notes + 1), [0] * (num_notes + 1), 0.0
    for ids, microseconds in kernels:
        issued = launched.get(ids.get("correlation"), called.get(ids.get("External id")))
        # note i opens entry i + 1: what was launched before the first one, or by nobody, belongs to none
        place = 0 if issued is None else bisect_right(times, issued)
        lost += 0 if place else 1000 * microseconds
        ns[place] += 1000 * microseconds if place else 0
        counts[place] += 1 if place else 0
    return KernelSums(tuple(_sums_before(ns)), tuple(_sums_before(counts)), round(lost))


DOUBTFUL = 0.02


def doubts(
    kernel_ns: float, unattributed_ns: float, plain_kernel_ns: float, before_mhz: float, after_mhz: float
) -> list[str]:
    """Return what makes a device's times doubtful, a sentence each, where it passes 2 %.

    Parameters
    ----------
    kernel_ns, unattributed_ns : float
        Time in kernels of a step with notes, and of it what belongs to no note.
    plain_kernel_ns : float
        Time in kernels of a step without notes.
    before_mhz, after_mhz : float
        The device's clock before and after the steps; 0 where it is not known.
    """
    found = []
    if unattributed_ns > DOUBTFUL * kernel_ns:
        share = unattributed_ns / max(1.0, kernel_ns)
        found.append(
            f"{share:.1%} of the time in kernels could be given to no operator; the others' times are too long"
        )
    apart = kernel_ns / max(1.0, plain_kernel_ns) - 1
    if plain_kernel_ns and abs(apart) > DOUBTFUL:
        found.append(f"kernels took {apart:+.1%} in the steps told apart by operator, against a plain step")
    if abs(after_mhz - before_mhz) > DOUBTFUL * before_mhz:
        found.append(
            f"the device's clock went from {before_mhz:.0f} to {after_mhz:.0f} MHz while it was measured; "
            "let it settle, or lock it, and profile again"
        )
    return found


def _sums_before(values: list[float] | list[int]) -> Iterable[int]:
    """Return, for each note, the sum of what belongs to the notes before it."""
    total = 0.0
    for value in values[:-1]:
        total += value
        yield round(total)
