"""The measured timeline of a step: every rank's spans on one clock.

Clocks of ranks on one host are one clock (Linux: CLOCK_MONOTONIC); between hosts the offset to rank 0 is
estimated from the quickest of a few round trips. A send's span is the call; a receive has two, the call that
posts it and the time that its user waited for it. A sum of gradients (or of the losses' weights) likewise has its
start and its wait. On a GPU all of these lie in its stream (`recording`). Leaves out memory.
"""

import json
import time
from collections.abc import Sequence

import torch

from executor.communication.groups import ProcessGroups
from executor.observe.recording import RawSpan
from executor.plan_match.devices import boot_id
from simulator.actions import parse_action
from simulator.timeline import Span, Timeline

_ROUND_TRIPS = 8


def gather_timeline(spans: Sequence[RawSpan], groups: ProcessGroups) -> Timeline | None:
    """Return the spans of all ranks as one timeline on rank 0, None elsewhere; collective.

    Time 0 is the first start.
    """
    offset = _clock_offset_ns(groups)
    own = [[str(action), stream, start + offset, end + offset] for action, stream, start, end in spans]
    rows = groups.gather_bytes(json.dumps(own).encode())
    if rows is None:
        return None
    read = [(r, *entry) for r, row in enumerate(rows) for entry in json.loads(row)]
    first = min((entry[3] for entry in read), default=0)
    found = [Span(parse_action(text), r, stream, start - first, end - first) for r, text, stream, start, end in read]
    return Timeline(groups.size, tuple(sorted(found, key=lambda s: (s.rank, s.stream, s.start_ns, s.end_ns))))


def _clock_offset_ns(groups: ProcessGroups) -> int:
    """Return what to add to this rank's clock to get rank 0's."""
    if len(set(groups.all_gather_bytes(boot_id().encode()))) == 1:
        return 0
    offset = 0
    for peer in range(1, groups.size):
        if groups.rank in (0, peer):
            with groups.waiting((0, peer)):
                offset += _answer(groups, peer) if groups.rank == 0 else _ask(groups)
    return offset


def _ask(groups: ProcessGroups) -> int:
    best, offset = 2**62, 0
    for _ in range(_ROUND_TRIPS):
        clock = torch.tensor([0])
        sent = time.perf_counter_ns()
        groups.control.send([clock], 0, 0).wait()
        groups.control.recv([clock], 0, 0).wait()
        back = time.perf_counter_ns()
        if back - sent < best:
            best, offset = back - sent, int(clock) - (sent + back) // 2
    return offset


def _answer(groups: ProcessGroups, peer: int) -> int:
    for _ in range(_ROUND_TRIPS):
        clock = torch.tensor([0])
        groups.control.recv([clock], peer, 0).wait()
        clock[0] = time.perf_counter_ns()
        groups.control.send([clock], peer, 0).wait()
    return 0
