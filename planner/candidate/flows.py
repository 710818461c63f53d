"""What flows between the stages of a partition: one rule for graphs of stages and for stages in one line.

As a graph, a stage sends each tensor straight to every stage that reads it. As a line, a tensor passes through every
stage on its way, which receives, holds and sends it on. All tensors of an edge travel as one message.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from planner.graph.atoms import Atoms, Partition

Flows = Mapping[tuple[int, int], tuple[int, ...]]
"""Positions of the tensors on each edge of the stage graph, edges rising."""


def flows_between(atoms: Atoms, partition: Partition, line: bool = False) -> Flows:
    """Return the tensors on each edge; stages of a line are numbered in its order."""
    found: dict[tuple[int, int], list[int]] = {}
    stages, (number, producers, readers) = np.array(partition), atoms.flow_ends
    leaves = number[stages[producers] != stages[readers]]  # few tensors do
    for tensor, producer, consumers in map(atoms.flows.__getitem__, dict.fromkeys(leaves.tolist())):
        source = partition[producer]
        targets = {partition[consumer] for consumer in consumers} - {source}
        ways = pairwise(range(source, max(targets) + 1)) if line else ((source, target) for target in targets)
        for way in ways:
            found.setdefault(way, []).append(tensor)
    return {way: tuple(found[way]) for way in sorted(found)}
