"""What flows between atoms, and the least time that it takes, on the way and from the stages at its ends.

A message between two stages holds at least its largest tensor, so that tensor's least time on any link is a
bound, whatever travels with it. Leaves out the other tensors of a message.
"""

from costmodel.machines.links import LinkClass
from planner.search.cut.data import Crossing
from planner.search.cuts import Cuts

MOST_LEVELS = 6
"""Transfer times that are told apart; each tensor counts with the largest level that it reaches."""


def transfers(cuts: Cuts) -> tuple[list[int], tuple[Crossing, ...]]:
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


def _bytes(cuts: Cuts, tensor: int) -> int:
    """Return what one rank sends of a tensor."""
    return cuts.evaluator.pricer.message_bytes((tensor,), cuts.family.config, 1)


def least_transfer_ns(cuts: Cuts, size_bytes: int) -> int:
    """Least time between two of the ranks of a message that holds at least so many bytes.

    One pair of each kind counts (`Problem.pairs_alike`).
    """
    problem = cuts.evaluator.problem
    cluster = problem.machines
    if cluster.links and "p2p" in cluster.links.classes:
        return _least_ns(cluster.links.classes["p2p"], size_bytes)
    return min((cluster.p2p_ns(i, j, size_bytes) for i, j in problem.pairs_alike), default=0)


def least_host_ns(cuts: Cuts) -> int:
    """Least time that a stage loses to one end of any message; 0 where it was not measured."""
    links = cuts.evaluator.problem.machines.links
    if not links or "p2p_host" not in links.classes:
        return 0
    sizes = [_bytes(cuts, flow.tensor) for flow in cuts.atoms.flows]
    return min((_least_ns(links.classes["p2p_host"], max(1, size)) for size in sizes), default=0)


def _least_ns(link: LinkClass, size_bytes: int) -> int:
    starts = [r.min_bytes for r in link.ranges if r.min_bytes > size_bytes]
    return min(link.time_ns(size) for size in (size_bytes, *starts))
