"""The contiguous problem solved: cuts of many orders, then CP-SAT from the best of them, which improves and proves.

Leaves out the model (`planner.search.peers.contiguous_model`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from costmodel.importers.dnn_groups import Groups, groups_of
from costmodel.importers.dnn_partitioning import LatencyInstance
from planner.search.limits import Limits
from planner.search.peers.answer import HEURISTIC, INFEASIBLE, PeerAnswer, status_of
from planner.search.peers.chains import best_cuts, load_table
from planner.search.peers.contiguous_model import solve

NUM_ORDERS = 12
"""Random orders that are cut besides the file's own."""
CUT_PART = 0.2
"""Most of the time that cutting orders may take."""
GIB = 2**30


def solve_contiguous(instance: LatencyInstance, num_devices: int, memory_bytes: float, seconds: float) -> PeerAnswer:
    """Minimise the largest load of so many devices.

    Parameters
    ----------
    memory_bytes : float
        Of each device.
    """
    refused = [node.name for node in instance.nodes if not node.runs]
    if refused:
        return PeerAnswer(None, 0.0, INFEASIBLE, (), f"no accelerator runs {refused[0]}, and there is no CPU device")
    limits = Limits(seconds)
    groups, limit = groups_of(instance), memory_bytes
    if sum(groups.sizes) <= limit:
        limit = math.inf
    best = _cut_orders(groups, num_devices, limit, Limits(seconds * CUT_PART))
    most = groups.objective(best) if best else sum(groups.works) + sum(cost for _, cost in groups.tensors)
    joined = _joined(instance, groups, most) if best else groups
    device_of = {node: best[i] for i, row in enumerate(groups.members) for node in row} if best else {}
    hint = [device_of[row[0]] for row in joined.members] if best and _keeps(joined, device_of) else None
    found = solve(joined, num_devices, limit, hint, most, limits.left_s)
    if found.is_infeasible and not best:
        return PeerAnswer(None, 0.0, INFEASIBLE, (), _why(groups, num_devices, memory_bytes, limits))
    if found.devices and joined.objective(found.devices) < most:
        device_of = {node: found.devices[i] for i, row in enumerate(joined.members) for node in row}
    if not device_of:
        return PeerAnswer(
            None, found.lower_bound, HEURISTIC, (), "the time limit ended the search before anything fitted"
        )
    devices = [device_of[row[0]] for row in groups.members]
    objective = groups.objective(devices)
    bound = objective if found.is_infeasible else min(objective, found.lower_bound)
    stages = _stages(instance, groups, devices)
    return PeerAnswer(objective, bound, status_of(objective, bound), stages, interrupted=found.interrupted)


def _cut_orders(groups: Groups, num_devices: int, limit: float, limits: Limits) -> list[int] | None:
    """Return the best device of each item that contiguous cuts of some orders give; None where none fits."""
    best, least = None, math.inf
    for order in _orders(groups):
        place = {item: i for i, item in enumerate(order)}
        tensors = [([place[item] for item in row], cost) for row, cost in groups.tensors]
        loads = load_table([groups.works[item] for item in order], tensors)
        if limit < math.inf:
            loads[load_table([groups.sizes[item] for item in order], ()) > limit] = math.inf
        load, cuts = best_cuts(loads, num_devices)
        if load < least:
            device = [sum(stop <= place[item] for stop in cuts[:-1]) for item in range(groups.num_items)]
            best, least = device, load
        if limits.over:
            break
    return best


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


def _why(groups: Groups, num_devices: int, memory_bytes: float, limits: Limits) -> str:
    """Say by how much memory is short, and what would do: the least limit under which it is divided so."""
    sizes = replace(groups, works=groups.sizes, tensors=())
    found = solve(sizes, num_devices, math.inf, None, sum(groups.sizes), max(1.0, limits.left_s))
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
