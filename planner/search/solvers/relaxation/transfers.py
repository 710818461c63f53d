"""What flows between atoms, and the least time that it takes, on the way and from the stages at its ends.

A message between two stages holds at least its largest tensor, so that tensor's least time on any link is a
bound, whatever travels with it. Leaves out the other tensors of a message.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import networkx as nx

from costmodel.machines.cluster import Cluster
from costmodel.machines.links import LinkClass
from planner.candidate.candidate import StagePlacement
from planner.candidate.messages import pairs, slowest_ns, unlike_lanes
from planner.question.problem import Problem
from planner.search.solvers.relaxation.data import SLOPE, Crossing, Sent, SentTensors, SizeTime
from planner.search.space.partitions import FamilyPartitions

LONG = 1 << 30
"""Bytes of a message by which the time of a byte is told."""
LARGEST = 1 << 56
"""Most that a time may be in the solver's numbers."""
MOST_PLACES = 64
"""Places up to which it is asked which of them a slow link parts."""
MOST_LEVELS = 6
"""Transfer times that are told apart; each tensor counts with the largest level that it reaches."""


def transfers(cuts: FamilyPartitions) -> tuple[list[int], tuple[Crossing, ...]]:
    """Return the levels in ns, and each pair of atoms joined by tensors with the largest level that these reach."""
    atoms, tensors = cuts.atoms, cuts.atoms.graph.tensors
    least = {f.tensor: least_transfer_ns(cuts, _bytes(cuts, f.tensor)) for f in atoms.flows}
    levels = _levels(sorted(set(least.values())))
    pairs: dict[tuple[int, int], tuple[int, bool]] = {}
    for flow in atoms.flows:
        reached = sum(level <= least[flow.tensor] for level in levels) - 1
        for consumer in flow.consumers:
            level, gradient = pairs.get((flow.producer, consumer), (0, False))
            pairs[flow.producer, consumer] = max(level, reached), gradient or tensors[flow.tensor].gradient
    everywhere = all(gradient for _, gradient in pairs.values())
    kept = [
        Crossing(u, v, level, gradient)
        for (u, v), (level, gradient) in pairs.items()
        # Where a longer way leads, a direct one of the least level adds nothing to any path.
        if level or not everywhere or v in atoms.reduction[u]
    ]
    return levels, tuple(kept)


def _levels(times: list[int]) -> list[int]:
    """Choose a few of the distinct times, the least among them."""
    step = -(-len(times) // MOST_LEVELS)
    return times[::step] if times else [0]


def _bytes(cuts: FamilyPartitions, tensor: int) -> int:
    """Return what one rank sends of a tensor."""
    return cuts.evaluator.pricer.message_bytes((tensor,), cuts.family.config, 1)


def least_transfer_ns(cuts: FamilyPartitions, size_bytes: int) -> int:
    """Least time between two of the ranks of a message of at least this number of bytes.

    One pair of each kind counts (`Problem.pairs_alike`).
    """
    problem = cuts.evaluator.problem
    cluster = problem.machines
    sizes = [size_bytes]
    if cluster.links and "p2p" in cluster.links.classes:
        sizes += _later_starts(cluster.links.classes["p2p"], size_bytes)
    return min((cluster.p2p_ns(i, j, size) for i, j in problem.pairs_alike for size in sizes), default=0)


def far_message(cuts: FamilyPartitions) -> tuple[int, int]:
    """Return what messages between bottlenecks take at least over the slowest link, and how many places it never parts.

    These are the most that are together in any arrangement of the devices, for bounds of one stand for all. Two zeros
    where no link parts any, where links were measured, and for more places than are worth it. A way from a bottleneck
    to the next one crosses a cut with its smallest tensor at least.
    """
    problem, count = cuts.evaluator.problem, cuts.num_places
    alike = problem.machines.links or len(problem.machines.groups) < 2
    if alike or cuts.family.chunks > 1 or cuts.pinned.places or not 1 < count <= MOST_PLACES:
        return 0, 0
    numbers = range(len(cuts.families.arrangements))
    arranged = (replace(cuts, family=replace(cuts.family, arrangement=number)) for number in numbers)
    size = _widest_bytes(cuts)
    rows = [_parted(problem.machines, each.places_in_loop(count), size) for each in arranged]
    far_ns, together = min(far for far, _ in rows), max(number for _, number in rows)
    return (far_ns, together) if together < count else (0, 0)


def _parted(machines: Cluster, places: Sequence[StagePlacement], size_bytes: int) -> tuple[int, int]:
    """Return the time of a message between the places farthest apart, and how many places are together at most."""
    times = {
        (i, j): slowest_ns(machines, unlike_lanes(machines, pairs(a, b, LONG)), size_bytes)
        for (i, a), (j, b) in combinations(enumerate(places), 2)
    }
    far_ns = max(times.values())
    near: nx.Graph[int] = nx.Graph([pair for pair, ns in times.items() if ns < far_ns])
    near.add_nodes_from(range(len(places)))
    return far_ns, max(map(len, nx.connected_components(near)))


def _widest_bytes(cuts: FamilyPartitions) -> int:
    """Return the least, over bottlenecks in a row, of the smallest tensor on the way whose smallest one is largest."""
    atoms, tensors = cuts.atoms, cuts.atoms.graph.tensors
    sent: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(len(atoms))]
    for flow in atoms.flows:
        if tensors[flow.tensor].gradient:
            sent[flow.producer].append((_bytes(cuts, flow.tensor), tuple(flow.consumers)))
    found = []
    for first, last in pairwise(sorted(atoms.gradient_bottlenecks)):  # atoms are listed in a topological order
        widest = {first: LARGEST}
        for atom in range(first, last):
            for size, consumers in sent[atom]:
                for consumer in consumers:
                    widest[consumer] = max(widest.get(consumer, 0), min(size, widest.get(atom, 0)))
        found.append(widest.get(last, 0))
    return min(found, default=0)


def least_host_ns(cuts: FamilyPartitions) -> int:
    """Least time that a stage loses to one end of any message; 0 where it was not measured."""
    links = cuts.evaluator.problem.machines.links
    if not links or "p2p_host" not in links.classes:
        return 0
    sizes = [_bytes(cuts, flow.tensor) for flow in cuts.atoms.flows]
    return min((_least_ns(links.classes["p2p_host"], max(1, size)) for size in sizes), default=0)


def messages(cuts: FamilyPartitions, *, line: bool) -> SentTensors:
    """Return what stages in a line, or in a graph, send, and what messages take at least."""
    problem, tensors = cuts.evaluator.problem, cuts.atoms.graph.tensors
    sent = tuple(
        Sent(flow.producer, flow.consumers, _bytes(cuts, flow.tensor), tensors[flow.tensor].gradient)
        for flow in cuts.atoms.flows
    )
    links, steepest = problem.machines.links, LARGEST // max(1, sum(tensor.size for tensor in sent))
    host = links.classes.get("p2p_host") if links else None
    return SentTensors(
        line,
        sent,
        tuple(_limited(time, steepest) for time in _transfer_times(problem)),
        tuple(_limited(time, steepest) for time in (_size_times(host, max(problem.speeds)) if host else ())),
    )


def _limited(time: SizeTime, steepest: int) -> SizeTime:
    return replace(time, slope=min(time.slope, steepest))


def _transfer_times(problem: Problem) -> tuple[SizeTime, ...]:
    """Return what was measured, where it holds for all pairs of ranks; else the least latency and time of a byte."""
    cluster, pairs = problem.machines, problem.pairs_alike
    measured = cluster.links.classes.get("p2p") if cluster.links else None
    if measured and all(cluster.link_between(*pair) is cluster.link_between(0, 1) for pair in pairs):
        return _size_times(measured, 1.0)
    times = list(_size_times(measured, 1.0)) if measured else []
    for i, j in pairs:
        first, last = (cluster.p2p_ns(i, j, size) for size in (1, LONG))
        slope = max(0, last - first - 1) * SLOPE // LONG
        times.append(SizeTime(0, max(0, first - slope // SLOPE - 2), slope))
    if not times:
        return ()
    return (SizeTime(0, min(time.fixed_ns for time in times), min(time.slope for time in times)),)


def _size_times(link: LinkClass, speed: float) -> tuple[SizeTime, ...]:
    """Return a measured class on a device of this speed; what is rounded there is rounded down here."""
    return tuple(
        SizeTime(part.min_bytes, max(0, int(part.latency_ns / speed) - 1), int(SLOPE / (part.bandwidth_gbs * speed)))
        for part in link.ranges
    )


def _least_ns(link: LinkClass, size_bytes: int) -> int:
    return min(link.time_ns(size) for size in (size_bytes, *_later_starts(link, size_bytes)))


def _later_starts(link: LinkClass, size_bytes: int) -> list[int]:
    return [part.min_bytes for part in link.ranges if part.min_bytes > size_bytes]
