"""Every kernel's owner by marks and launch times, against its owner by the profiler's own links.

Forward: the CPU operator that the kernel's external id names, and the mark that stood before it. Backward: that
operator's sequence number, which the forward operator has too, and the mark that stood before that one.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from costmodel.profiling.measure.records import CALL, KERNELS, LAUNCHES, NOTE

Event = Mapping[str, Any]
Owner = tuple[str, str]
"""F or B, and an operator."""

_NOBODY: Owner = ("?", "?")


class _Owned(NamedTuple):
    """A kernel whose launch was recorded; `mate` is the forward operator of its sequence number, "" for none."""

    us: float
    early: bool
    ours: Owner
    theirs: Owner
    mate: str


def marked_owners(forward: Iterable[tuple[str, int, int]], backward: Sequence[tuple[str, int]]) -> dict[int, Owner]:
    """Return the owner of what follows each mark, from an observed step's marks."""
    spans = [(("F", name), start, end) for name, start, end in forward]
    spans += [(("B", name), start, end) for (name, start), (_, end) in pairwise(backward)]
    return {mark: owner for owner, start, end in spans for mark in range(start, end)}


def compared(
    events: Sequence[Event], prefix: str, owners: Mapping[int, Owner], backward_from: int
) -> dict[str, object]:
    """Return how far the two ways to find a kernel's owner are apart, in per cent of the time in kernels.

    Parameters
    ----------
    events : sequence of mappings
        Chrome trace events of one step in context, whose notes are `prefix` and a number.
    owners : mapping of int to (str, str)
        Of what follows each note.
    backward_from : int
        The first note of the backward.
    """
    kernels = [event for event in events if event.get("cat") in KERNELS]
    found = _owned(kernels, events, prefix, owners, backward_from)
    us = sum(kernel["dur"] for kernel in kernels)
    total, backward = max(us, 1e-9), [kernel for kernel in found if kernel.ours[0] == "B"]
    linked_us = sum(kernel.us for kernel in backward if kernel.mate)
    apart_us = sum(kernel.us for kernel in backward if kernel.mate not in ("", kernel.ours[1]))
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        times[kernel["name"][:60]] += kernel["dur"]
    return {
        "kernels": len(kernels),
        "kernel_ms": round(us / 1e3, 3),
        "unlinked_%": round(100 * (us - sum(kernel.us for kernel in found)) / total, 3),
        "before_launch": sum(kernel.early for kernel in found),
        "overlap_%": round(100 * (1 - _covered(kernels) / total), 3),
        "attribution_apart_%": round(100 * sum(k.us for k in found if k.ours != k.theirs) / total, 3),
        "backward_by_sequence_apart_%": round(100 * apart_us / max(linked_us, 1e-9), 3),
        "backward_linked_%": round(100 * linked_us / max(sum(kernel.us for kernel in backward), 1e-9), 1),
        "categories": dict(sorted(Counter(str(event.get("cat")) for event in events).items())),
        "worst": _worst(found, total),
        "top_kernels": [(n, round(us / 1e3, 3)) for n, us in sorted(times.items(), key=lambda row: -row[1])[:6]],
    }


def _owned(
    kernels: Iterable[Event], events: Sequence[Event], prefix: str, owners: Mapping[int, Owner], backward_from: int
) -> list[_Owned]:
    """Find both owners of every kernel whose launch was recorded."""
    notes = [event for event in events if event.get("cat") == NOTE and event["name"].startswith(prefix)]
    times = [note["ts"] for note in sorted(notes, key=lambda note: int(note["name"].removeprefix(prefix)))]
    launched = {e["args"]["correlation"]: e["ts"] for e in events if _has(e, LAUNCHES, "correlation")}
    call_of = {e["args"]["External id"]: e for e in events if _has(e, (CALL,), "External id")}

    def note_before(time: float) -> int:
        return bisect_right(times, time) - 1

    mates: dict[int, str] = {}  # by the forward operators in order: the last one made the node
    for call in (event for event in events if _has(event, (CALL,), "Sequence number")):
        place = note_before(call["ts"])
        if 0 <= place < backward_from and place in owners and call["args"].get("Fwd thread id", 0) == 0:
            mates[call["args"]["Sequence number"]] = owners[place][1]
    found = []
    for kernel in kernels:
        launch = launched.get(kernel["args"].get("correlation"))
        made_by = call_of.get(kernel["args"].get("External id"))
        if launch is not None:
            theirs = owners.get(note_before(made_by["ts"]), _NOBODY) if made_by else _NOBODY
            mate = mates.get(made_by["args"].get("Sequence number"), "") if made_by else ""
            ours = owners.get(note_before(launch), _NOBODY)
            found.append(_Owned(kernel["dur"], kernel["ts"] < launch, ours, theirs, mate))
    return found


def _has(event: Event, categories: Collection[str], key: str) -> bool:
    return event.get("cat") in categories and key in event.get("args", {})


def _covered(kernels: Iterable[Event]) -> float:
    """Return the time in which at least one kernel runs, in us."""
    union, reach = 0.0, 0.0
    for start, end in sorted((kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels):
        union += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return union


def _worst(kernels: Iterable[_Owned], total: float) -> list[tuple[float, str, float, float]]:
    """Return the three owners of 1 % or more whose two sums differ most: share, name, ours and theirs in us."""
    sums: dict[Owner, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in kernels:
        sums[kernel.ours][0] += kernel.us
        sums[kernel.theirs][1] += kernel.us
    large = [(" ".join(owner), a, b) for owner, (a, b) in sums.items() if max(a, b) >= 0.01 * total]
    return sorted(
        ((abs(a - b) / max(a, b, 1e-9), name, round(a, 1), round(b, 1)) for name, a, b in large), reverse=True
    )[:3]
