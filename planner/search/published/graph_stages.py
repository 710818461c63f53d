"""The graph of stages whose slowest stage is fastest, by dynamic programming over a tree of series and parallel parts.

A stage is a stretch of neighbouring children of one part: of steps in a series, a whole parallel part among them, or
of branches in their fixed order. Else a child is divided by itself, branches so that all have the same followers; so
no stage has a branch's end and what joins it (GraphPipe, section 5). For one time that no stage may take longer
`planner.search.published.divisions` says what devices do; the time is halved among those that any stage takes, so
that the answer is exact. Leaves out what a stage takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.budget import Deadline
from planner.search.published.divisions import Division, InSeries, SideBySide, Stretch
from planner.search.published.fronts import NOTHING, Fronts
from planner.search.published.pieces import Floats
from planner.search.published.series_parallel import TreePart
from planner.search.published.stretches import Allowance, Choice, Stretches

FIRST_STEP = 0.02
"""How far above the least time that could be the first is tried; that doubles until stages are found."""
DUST = 1e-9
"""What rounding may add to a sum of times, as a part of it."""

Choices = Mapping[tuple[int, ...], Sequence[Choice]]
"""The ways to run stages of each part that has children, by its atoms; the same ways for all parts."""


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A stage: its atoms, the position of its way, how many replicas."""

    atoms: tuple[int, ...]
    way: int
    replicas: int


@dataclass(frozen=True, slots=True)
class FoundStages:
    """Stages in a topological order, and what the slowest takes."""

    time_ns: float
    stages: tuple[GraphStage, ...]


class GraphStages:
    """Graphs of stages.

    Parameters
    ----------
    root : TreePart
    choices : Choices
    works_ns : sequence of float
        What each atom takes of a micro-batch at least: the sum of a stage's is no more than what it takes, times its
        devices.
    allowance : Allowance
    num_microbatches : int
    limits : Deadline
    """

    def __init__(
        self,
        root: TreePart,
        choices: Choices,
        works_ns: Sequence[float],
        allowance: Allowance,
        num_microbatches: int,
        limits: Deadline,
    ) -> None:
        self.root, self.choices = root, choices
        self.works_ns, self.allowance, self.limits = works_ns, allowance, limits
        batches = [[each.multiple * count for count in allowance.replicas] for each in choices[root.atoms]]
        self.fronts = Fronts(batches, num_microbatches)

    def best(self) -> FoundStages | None:
        """Return stages of which the slowest is fastest; None where nothing fits. The best so far where time ends."""
        least = sum(self.works_ns) / self.allowance.num_devices * (1 - DUST)
        times, found, step = self._times(least), None, FIRST_STEP
        while len(times) and not self.limits.expired:
            middle = len(times) // 2
            if found is None:
                middle = max(0, int(np.searchsorted(times, least * (1 + step), "right")) - 1)
                step *= 2
            faster = self.within(float(times[middle]))
            if self.limits.hit:
                break
            if faster is None:
                times = times[middle + 1 :]
            else:
                found, times = faster, times[times < faster.time_ns]
        return found

    def _times(self, least: float) -> Floats:
        """Return what stages take, rising, but for what is below the least that could be."""
        all_ns = (choice.time_ns for choices in self.choices.values() for choice in choices)
        found: Floats = np.unique(np.concatenate([ns[np.isfinite(ns) & (ns >= least)] for ns in all_ns]))
        return found

    def within(self, most_ns: float) -> FoundStages | None:
        """Return stages of which none takes longer; None where there are none, or no time is left."""
        root = self._division(self.root, most_ns, sum(self.works_ns))
        found = root.before(NOTHING)
        if not found or self.limits.hit:
            return None
        front = min(found, key=lambda front: (found[front], int(self.fronts.above[front])))
        stretches = list(root.stages(NOTHING, front))
        return FoundStages(max(stretch.time_ns for stretch in stretches), tuple(map(self._stage, stretches)))

    def _stage(self, stretch: Stretch) -> GraphStage:
        return GraphStage(stretch.atoms, stretch.way, self.allowance.replicas[stretch.place])

    def _division(self, part: TreePart, most_ns: float, whole_ns: float) -> Division:
        """Return the divisions of a part; stages have the devices that the work of all other atoms leaves."""
        children = [self._division(child, most_ns, whole_ns) if child.children else None for child in part.children]
        works = [sum(self.works_ns[atom] for atom in child.atoms) for child in part.children]
        elsewhere = whole_ns - sum(works) + np.cumsum([0.0, *works[:-1]])
        most = self.allowance.num_devices - np.ceil(elsewhere / most_ns * (1 - DUST) - DUST).astype(np.int64)
        stretches = [
            Stretches(choice, way, self.allowance, self.fronts, most_ns, most)
            for way, choice in enumerate(self.choices[part.atoms])
        ]
        kind = SideBySide if part.kind == "parallel" else InSeries
        return kind(part, children, stretches, self.fronts, self.limits)
