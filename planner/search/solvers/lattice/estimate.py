"""The estimate of a step, m - 1 times the largest stage and the longest path of stages, bounded like the step itself.

Its two parts are weighed by flows of their own: one over paths, there and back, and one over stages alone, which is
used where paths that do not come back are used otherwise. It is no bound on a step, and no step is a bound on it.
"""

import numpy as np

from planner.graph.atoms import Partition
from planner.search.solvers.lattice.graph import BACK, CLOSING, THERE, Kinds, Lattice
from planner.search.solvers.relaxation.data import CutData


def estimated(lattice: Lattice, kinds: Kinds) -> tuple[Lattice, Kinds]:
    """Return the lattice of the estimate: paths take all edges, stages alone none, and nothing ends a step."""
    sums, ways, times = lattice.sums.copy(), np.zeros_like(kinds.ways), kinds.times.copy()
    sums[:, CLOSING] = 0.0
    ways[BACK] = 1.0
    times[BACK] = np.where(kinds.ways[BACK] > 0, kinds.times[BACK], kinds.times[THERE])
    times[THERE] = 0.0
    return lattice._replace(sums=sums), Kinds(kinds.members, ways, times)


def estimate_of(data: CutData, partition: Partition) -> int:
    """Return the estimate of a cut, in units: a message takes as long as its slowest tensor."""
    again = data.again or (0,) * data.num_atoms
    works = [0] * (max(partition) + 1)
    for atom, stage in enumerate(partition):
        works[stage] += data.forward[atom] + data.backward[atom] + again[atom]
    edges: dict[tuple[int, int], int] = {}
    for c in data.crossings:
        ends = partition[c.producer], partition[c.consumer]
        if ends[0] != ends[1]:
            edges[ends] = max(edges.get(ends, 0), data.levels[c.level] * (2 if c.gradient else 1))
    longest = list(works)
    for (source, target), way in sorted(edges.items(), key=lambda edge: edge[0][1]):
        longest[target] = max(longest[target], longest[source] + way + works[target])
    return (data.num_microbatches - 1) * max(works) + max(longest)
