"""The best ways to cut one topological order into segments: dynamic programming over labels with a beam.

A label is a prefix of the order cut into k stages; it holds its largest stage t and the longest path of
the stage graph so far, for the stages need not form a line: two segments without a tensor between them
run at once. `beam` labels are kept for each k and prefix, ranked by the estimate (m - 1) t + longest path
(tight for few micro-batches in flight) or by the bound, the largest path up to a stage + m t (tight for
many). Leaves out bytes and memory: simulation ranks what is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.graph.atoms import Atoms

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Labels:
    """Labels of one k; the first two axes are the prefix length and the place in the beam.

    Attributes
    ----------
    cuts : array of shape (prefixes, beam, k + 1)
        Where the stages begin, and where the last one ends.
    path_ns : array of shape (prefixes, beam, k)
        Longest path of the stage graph that ends with each stage.
    largest_ns, longest_ns : arrays of shape (prefixes, beam)
        Largest stage, and longest path or bound; `NEVER` where there is no label.
    """

    cuts: Ints
    path_ns: Ints
    largest_ns: Ints
    longest_ns: Ints


@dataclass(frozen=True, slots=True)
class SegmentationParams:
    """What segmentations are for.

    Attributes
    ----------
    num_stages : int
        Most segments.
    num_microbatches : int
    beam : int
        Labels kept.
    line : bool
        Whether each stage feeds the next, tensors or not.
    bound : bool
        Whether to rank by the bound instead of the estimate.
    speeds : tuple of float
        Speed of the place of each stage; 1 by default.
    """

    num_stages: int
    num_microbatches: int
    beam: int = 8
    line: bool = False
    bound: bool = False
    speeds: tuple[float, ...] = ()

    def on_place(self, work_ns: Ints, stage: int) -> Ints:
        """Return what work takes on the place of a stage."""
        slower: Any = work_ns if not self.speeds else np.rint(work_ns / self.speeds[stage]).astype(np.int64)
        return slower  # type: ignore[no-any-return]


NEVER = np.int64(1) << 55


def segmentations(
    atoms: Atoms, order: Sequence[int], work_ns: Sequence[int], aim: SegmentationParams
) -> list[tuple[int, ...]]:
    """Return the most promising partitions into segments of an order, best first for each number of segments.

    A partition gives the segment of each atom; segments are numbered along the order.
    """
    table = _Table(atoms, order, work_ns, aim)
    labels = table.first()
    found = [_groups(order, labels.cuts[-1, 0])]
    for _ in range(2, min(aim.num_stages, len(order)) + 1):
        labels = table.extend(labels)
        found += [_groups(order, cuts) for cuts in labels.cuts[-1][labels.largest_ns[-1] < NEVER]]
    return found


def _groups(order: Sequence[int], cuts: Ints) -> tuple[int, ...]:
    stage = np.searchsorted(cuts[1:], np.arange(len(order)), side="right")
    groups = [0] * len(order)
    for position, atom in enumerate(order):
        groups[atom] = int(stage[position])
    return tuple(groups)


class _Table:
    """Work and tensors along one order, as sums over prefixes."""

    def __init__(self, atoms: Atoms, order: Sequence[int], work_ns: Sequence[int], aim: SegmentationParams) -> None:
        self.aim = aim
        size = len(order)
        place = {atom: position for position, atom in enumerate(order)}
        links = np.zeros((size + 1, size + 1), np.int64)
        for atom, row in enumerate(atoms.successors):
            for successor in row:
                links[place[atom] + 1, place[successor] + 1] += 1
        self.links = links.cumsum(0).cumsum(1)
        self.work_ns = np.concatenate([[0], np.cumsum([work_ns[atom] for atom in order])]).astype(np.int64)

    def first(self) -> Labels:
        """Return each prefix as one stage."""
        size = len(self.work_ns)
        cuts = np.stack([np.zeros(size, np.int64), np.arange(size)], axis=1)[:, None, :]
        work = self.aim.on_place(self.work_ns[:, None].copy(), 0)
        work[0] = NEVER
        longest = work * self.aim.num_microbatches if self.aim.bound else work.copy()
        longest[0] = NEVER
        return Labels(cuts, work[:, :, None], work, longest)

    def extend(self, before: Labels) -> Labels:
        """Return the labels with one stage more."""
        size, _, num_cuts = before.cuts.shape
        beam = self.aim.beam
        after = Labels(
            np.zeros((size, beam, num_cuts + 1), np.int64),
            np.zeros((size, beam, num_cuts), np.int64),
            np.full((size, beam), NEVER),
            np.full((size, beam), NEVER),
        )
        for stop in range(num_cuts, size):
            self._extend_to(stop, before, after)
        return after

    def _extend_to(self, stop: int, before: Labels, after: Labels) -> None:
        """Fill the labels of one prefix from all shorter ones."""
        num = self.aim.num_microbatches
        work = self.aim.on_place(self.work_ns[stop] - self.work_ns[:stop, None], before.path_ns.shape[2])
        reach = self._reach(before.cuts[:stop], before.path_ns[:stop], stop)
        path = reach + work
        largest = np.maximum(before.largest_ns[:stop], work)
        longest = np.maximum(before.longest_ns[:stop], reach + num * work if self.aim.bound else path)
        score = longest if self.aim.bound else (num - 1) * largest + longest
        kept = _smallest(np.where(largest < NEVER, score, NEVER), self.aim.beam)
        start, place = np.unravel_index(kept, largest.shape)
        count = len(kept)
        after.cuts[stop, :count, :-1] = before.cuts[start, place]
        after.cuts[stop, :count, -1] = stop
        after.path_ns[stop, :count, :-1] = before.path_ns[start, place]
        after.path_ns[stop, :count, -1] = path[start, place]
        after.largest_ns[stop, :count] = largest[start, place]
        after.longest_ns[stop, :count] = longest[start, place]

    def _reach(self, cuts: Ints, path_ns: Ints, stop: int) -> Ints:
        """Return the longest path that leads into the segment from each label's end to `stop`."""
        if self.aim.line:
            return path_ns[:, :, -1]
        start = cuts[:, :, -1]
        into: Ints = self.links[:, stop][cuts] - self.links[cuts, start[:, :, None]]
        feeds = np.diff(into, axis=2) > 0
        reach: Any = np.where(feeds, path_ns, 0).max(axis=2)
        return reach  # type: ignore[no-any-return]


def _smallest(score: Ints, count: int) -> Ints:
    """Positions of the `count` smallest scores below `NEVER`, smallest first, ties by position."""
    flat = score.ravel()
    if len(flat) > count:
        bound = np.partition(flat, count - 1)[count - 1]
        candidates = np.flatnonzero(flat <= bound)
    else:
        candidates = np.arange(len(flat))
    chosen = candidates[np.argsort(flat[candidates], kind="stable")][:count]
    return chosen[flat[chosen] < NEVER]
