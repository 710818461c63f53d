"""The contiguous problem solved: cuts of many orders, then CP-SAT from the best of them, which improves and proves.

Leaves out the model (`benchmarks.peer_problems.contiguous_model`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

from benchmarks.peer_problems.answer import HEURISTIC, INFEASIBLE, PeerAnswer, status_of
from benchmarks.peer_problems.chains import best_cuts, load_table
from benchmarks.peer_problems.contiguous_model import Solved, solve
from benchmarks.peer_problems.readers.dnn_groups import Groups, groups_of
from benchmarks.peer_problems.readers.dnn_partitioning import LatencyInstance
from planner.search.budget import Deadline

NUM_ORDERS = 12
"""Random orders that are cut besides the file's own."""
CUT_PART = 0.2
"""Most of the time that cutting orders may take."""
GIB = 2**30


def solve_contiguous(
    instance: LatencyInstance,
    num_devices: int,
    memory_bytes: float,
    seconds: float,
    report: Callable[[float], None] = lambda load: None,
) -> PeerAnswer:
    """Minimise the largest load of so many devices; an interrupt ends the search with the best that it has.

    Parameters
    ----------
    memory_bytes : float
        Of each device.
    report : function
        Called with the load of each better cut of an order, before the model improves the best of them.

    Raises
    ------
    KeyboardInterrupt
        When interrupted before there is a cut.
    """
    refused = [node.name for node in instance.nodes if not node.runs]
    if refused:
        return PeerAnswer(None, 0.0, INFEASIBLE, (), f"no accelerator runs {refused[0]}, and there is no CPU device")
    limits = Deadline(seconds)
    groups, limit = groups_of(instance), memory_bytes
    if sum(groups.sizes) <= limit:
        limit = math.inf
    best, found = None, Solved(None, 0.0, is_infeasible=False, interrupted=False)
    joined = groups
    try:
        for best in _better_cuts(groups, num_devices, limit, Deadline(seconds * CUT_PART)):
            report(groups.objective(best))
        most = groups.objective(best) if best else sum(groups.works) + sum(cost for _, cost in groups.tensors)
        joined = _joined(instance, groups, most) if best else groups
        hint = _devices_of(joined, _by_node(groups, best)) if best else None
        found = solve(joined, num_devices, limit, hint, most, limits.remaining_s)
    except KeyboardInterrupt:
        if not best:
            raise
        found = replace(found, interrupted=True)
    if found.is_infeasible and not best:
        return PeerAnswer(None, 0.0, INFEASIBLE, (), _why(groups, num_devices, memory_bytes, limits))
    device_of = _by_node(groups, best) if best else {}
    if found.devices and (not best or joined.objective(found.devices) < groups.objective(best)):
        device_of = _by_node(joined, found.devices)
    if not device_of:
        return PeerAnswer(
            None, found.lower_bound, HEURISTIC, (), "the time limit ended the search before anything fitted"
        )
    devices = [device_of[row[0]] for row in groups.members]
    objective = groups.objective(devices)
    bound = objective if found.is_infeasible else min(objective, found.lower_bound)
    stages = _stages(instance, groups, devices)
    return PeerAnswer(objective, bound, status_of(objective, bound), stages, interrupted=found.interrupted)


def _by_node(groups: Groups, devices: Sequence[int]) -> dict[int, int]:
    """Return the device of each node, from those of the items that nodes are grouped in."""
    return {node: device for row, device in zip(groups.members, devices, strict=True) for node in row}


def _devices_of(groups: Groups, device_of: dict[int, int]) -> list[int] | None:
    """Return the device of each item; None where a cut tears one."""
    return [device_of[row[0]] for row in groups.members] if _keeps(groups, device_of) else None


def _better_cuts(groups: Groups, num_devices: int, limit: float, limits: Deadline) -> Iterator[list[int]]:
    """Yield the device of each item in contiguous cuts of some orders that fit, each better than the one before."""
    least = math.inf
    for order in _orders(groups):
        place = {item: i for i, item in enumerate(order)}
        tensors = [([place[item] for item in row], cost) for row, cost in groups.tensors]
        loads = load_table([groups.works[item] for item in order], tensors)
        if limit < math.inf:
            loads[load_table([groups.sizes[item] for item in order], ()) > limit] = math.inf
        load, cuts = best_cuts(loads, num_devices)
        if load < least:
            least = load
            yield [sum(stop <= place[item] for stop in cuts[:-1]) for item in range(groups.num_items)]
        if limits.expired:
            break


def _orders(groups: Groups) -> Iterator[list[int]]:
    """Yield the listed order, then random ones that follow a branch to its end where they can."""
    yield list(range(groups.num_items))
    after: list[list[int]] = [[] for _ in range(groups.num_items)]
    waits = [0] * groups.num_items
    for a, b in groups.arcs:
        after[a].append(b)
        waits[b] += 1
    for seed in range(NUM_ORDERS):
        dice, left, order = Random(seed), list(waits), list[int]()  # noqa: S311 - no secrets here
        ready = [item for item in range(groups.num_items) if not left[item]]
        dice.shuffle(ready)
        while ready:
            item = ready.pop()
            order.append(item)
            freed = []
            for other in after[item]:
                left[other] -= 1
                if not left[other]:
                    freed.append(other)
            dice.shuffle(freed)
            ready += freed
        yield order


def _joined(instance: LatencyInstance, groups: Groups, most: float) -> Groups:
    """Contract ends of tensors whose cost alone, with one end's work, is over a load that can be reached."""
    while True:
        ends = [(row[0], other, cost) for row, cost in groups.tensors for other in row[1:]]
        far = [(a, b) for a, b, cost in ends if cost + max(groups.works[a], groups.works[b]) > most]
        pairs = [(groups.members[a][0], groups.members[b][0]) for a, b in far]
        same = [(row[0], node) for row in groups.members for node in row[1:]]
        if not pairs:
            return groups
        groups = groups_of(instance, [*same, *pairs])


def _keeps(groups: Groups, device_of: dict[int, int]) -> bool:
    return all(len({device_of[node] for node in row}) == 1 for row in groups.members)


def _why(groups: Groups, num_devices: int, memory_bytes: float, limits: Deadline) -> str:
    """Say by how much memory is short, and what would do: the least limit under which it is divided so."""
    sizes = replace(groups, works=groups.sizes, tensors=())
    found = solve(sizes, num_devices, math.inf, None, sum(groups.sizes), max(1.0, limits.remaining_s))
    text = f"{sum(groups.sizes):.0f} bytes do not fit into {num_devices} devices of {memory_bytes:.0f} bytes"
    if found.devices is None:
        return text
    need = sizes.objective(found.devices)
    enough = math.ceil(need / GIB * 1000) / 1000
    return f"{text}: the fullest has {need:.0f} at least; --memory {enough:g} does, or more devices"


def _stages(instance: LatencyInstance, groups: Groups, devices: Sequence[int]) -> tuple[dict[str, object], ...]:
    rows = []
    for device in sorted(set(devices)):
        items = [item for item, place in enumerate(devices) if place == device]
        nodes = sorted(node for item in items for node in groups.members[item])
        rows.append(
            {
                "device": device,
                "nodes": [instance.nodes[node].name for node in nodes],
                "load_ms": groups.load_of(items),
                "memory_bytes": sum(groups.sizes[item] for item in items),
            }
        )
    return tuple(rows)
