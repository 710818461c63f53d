"""Balanced cuts of one order whose messages take no longer than stages work, where links are slow.

Found by bisection on the longest of both: positions are reached stage by stage, from the nearest position before that
was reached. Leaves out tensors that pass a stage by, which count at every border between, and what a pipeline fills.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from planner.candidate.messages import pairs
from planner.graph.atoms import Partition
from planner.search.space.partitions import FamilyPartitions

NEAR_ENOUGH = 0.01
"""Part of the longest work or message by which a cut may miss the best."""
TYPICAL_BYTES = 2**20
"""Size of the message by which the slowest pair of ranks of a border is told."""


def low_traffic_partition(cuts: FamilyPartitions, order: Sequence[int], balanced: Partition) -> Partition | None:
    """Return a cut of an order into as many stages as a balanced one has, where the messages of that one take longest.

    None where they do not, or no other cut has shorter ones.
    """
    num_stages = max(balanced) + 1
    borders = BorderTimes(cuts, order, num_stages)
    stages = np.array([balanced[atom] for atom in order])
    longest = max(borders.times[k][np.searchsorted(stages, k + 1)] for k in range(num_stages - 1))
    works = np.concatenate([[0], np.cumsum([cuts.shares_ns[atom] for atom in order])])
    speeds = cuts.stage_speeds[:num_stages]
    loads = np.diff(works[np.searchsorted(stages, np.arange(num_stages + 1))])
    low, high, found = float(max(loads / speeds)), float(longest), None
    if longest <= low:
        return None
    while high - low > NEAR_ENOUGH * high:
        middle = (low + high) / 2
        ends = _ends(works, borders.times, speeds, middle)
        low, high, found = (low, middle, ends) if ends else (middle, high, found)
    if not found:
        return None
    stage_of = dict(zip(order, np.searchsorted(found, np.arange(len(order)), side="right").tolist(), strict=True))
    return tuple(stage_of[atom] for atom in range(len(order)))


def _ends(works: np.ndarray, times: Sequence[np.ndarray], speeds: Sequence[float], most: float) -> list[int] | None:
    """Return where stages end such that none works, and no message takes, longer; None if they cannot."""
    positions = np.arange(len(works))
    reached, nearest = positions == 0, []
    for speed, time in zip(speeds, [*times, np.zeros(len(works))], strict=True):
        last = np.maximum.accumulate(np.where(reached, positions, -1))
        before = np.concatenate([[-1], last[:-1]])
        reached = (before >= 0) & (works - works[before] <= most * speed) & (time <= most)
        nearest.append(before)
    if not reached[-1]:
        return None
    ends = [len(works) - 1]
    for before in reversed(nearest):
        ends.append(int(before[ends[-1]]))
    return ends[-2::-1]


class BorderTimes:
    """What messages take across the borders of stages, there and back, by the position in an order of each border."""

    def __init__(self, cuts: FamilyPartitions, order: Sequence[int], num_stages: int) -> None:
        self._machines = cuts.evaluator.problem.machines
        sizes = self._sizes(cuts, order)
        places = cuts.places_in_loop(num_stages)
        rows: dict[int, np.ndarray] = {}
        self.times: list[np.ndarray] = []
        for source, target in pairwise(places):
            joined = pairs(source, target, cuts.evaluator.num_microbatches)
            first_and_last = [(mine[0], theirs[0]) for mine, theirs in (joined[0], joined[-1])]  # one leaves its host
            slowest = max(first_and_last, key=lambda pair: self._ns(pair, TYPICAL_BYTES))
            kind = self._ns(slowest, TYPICAL_BYTES)  # of the same links
            if kind not in rows:
                known = {size: self._ns(slowest, size) for size in np.unique(sizes).tolist()}
                rows[kind] = np.array([[known[size] for size in row] for row in sizes.tolist()]).sum(axis=0)
            self.times.append(rows[kind])

    def _ns(self, pair: tuple[int, int], size: int) -> int:
        return self._machines.p2p_ns(*pair, size) if size else 0

    @staticmethod
    def _sizes(cuts: FamilyPartitions, order: Sequence[int]) -> np.ndarray:
        """Return the bytes that pass each position, forward in the first row and backward in the second."""
        position = {atom: number for number, atom in enumerate(order)}
        sizes = cuts.evaluator.pricer.tensor_bytes(1, cuts.family.config)
        tensors = cuts.evaluator.problem.profile.graph.tensors
        found = np.zeros((2, len(order) + 1), dtype=np.int64)
        for tensor, producer, consumers in cuts.atoms.flows:
            first, last = position[producer], max(position[consumer] for consumer in consumers)
            for row in range(1 + tensors[tensor].gradient):
                found[row, first + 1 : last + 1] += sizes[tensor]
        return found
