"""A lower bound on the step of every cut whose stages have replicas of their own number, on a number of devices.

For a step T each stage needs enough replicas to be done in time: they share its micro-batches, and one
of them has no fewer than the others. The chain of downsets whose stages need the fewest devices together needs no more
than there are, or no cut takes T; the largest such T is sought by bisection. A stage that needs more replicas than a
slow link leaves together also sums its gradients over that link. It takes t for a micro-batch, h passes before its
first and after its last one, and its sum takes s, so that k micro-batches have h + k t + s <= T, but for the part of s
that the last backward hides: that is no more than t, and at least another part of s slows that backward. Leaves out
sums where such a link is not needed, memory and the host's time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.search.solvers.lattice.bound import CLOSE, MOST_PAIRS, ROUNDED, Proved, downsets_of
from planner.search.solvers.lattice.graph import BACK, CLOSING, THERE, WORK, Floats, kinds_of, lattice_of
from planner.search.solvers.lattice.kernels import NEVER, fewest, heads_of, pairs_of
from planner.search.solvers.relaxation.data import NO_SUMS, CutData, FarSums


class ReplicasBound:
    """The bound of one cut problem, which can be asked to rise again and again.

    Parameters
    ----------
    data : CutData
        Of stages of one replica each.
    num_devices : int
        How many replicas all stages have together at most.
    sharded : bool
        Whether replicas share the optimizer's step (ZeRO).
    added : sequence of int
        What of each atom's B adds up gradients, in units: nothing on a replica with one micro-batch.
    far : FarSums
        In units.
    """

    def __init__(
        self, data: CutData, num_devices: int, added: Sequence[int], far: FarSums = NO_SUMS, *, sharded: bool
    ) -> None:
        self._num_devices = num_devices
        self._bound = 0.0
        data, pattern, self._downsets = downsets_of(data)
        self._data = data
        if self._downsets is None:
            return
        most = [max(added[i] for i, c in enumerate(pattern.class_of) if c == mine) for mine in pattern.class_of]
        alone = replace(data, backward=tuple(max(0, b - a) for b, a in zip(data.backward, most, strict=True)))
        known = far.ns or (0,) * data.num_atoms
        summed = [min(known[i] for i, c in enumerate(pattern.class_of) if c == mine) for mine in pattern.class_of]
        kinds = kinds_of(data, pattern)
        at, once = (lattice_of(each, self._downsets, kinds) for each in (data, alone))
        self._at, self._pairs = at, pairs_of(at, float("inf"), MOST_PAIRS)
        pairs = self._pairs
        larger = np.repeat(np.arange(len(at.sums)), np.diff(pairs.first))
        own = at.sums[larger] - at.sums[pairs.smaller]
        self._works: Floats = own[:, WORK]
        self._once: Floats = once.sums[larger, WORK] - once.sums[pairs.smaller, WORK]
        heads = heads_of(once, pairs)
        closing = own[:, CLOSING] / (num_devices if sharded else 1)
        self._ahead: Floats = heads[:, THERE] + closing
        self._beside: Floats = np.maximum(heads[:, BACK], self._ahead)
        sums = self._downsets.holds @ np.array(summed, float)
        self._sums: Floats = sums[larger] - sums[pairs.smaller]
        self._together, self._exposed = far.together or num_devices, far.exposed

    def rise(self, best_ns: int) -> Iterator[Proved]:
        """Yield bounds until no cut can be better than a known step, or hardly more can be proved."""
        high = best_ns / self._data.unit_ns
        if self._downsets is None or not len(self._works):
            return
        step = high
        while high > self._bound * (1 + CLOSE):
            if self._devices(step) > self._num_devices:
                self._bound = step
            else:
                high = step
            bound_ns = int(self._bound * self._data.unit_ns * (1 - ROUNDED))
            yield Proved(bound_ns, (), len(self._works))
            step = (self._bound + high) / 2

    def _devices(self, step: float) -> float:
        """Return how many devices any cut needs at least to take no more than a step."""
        near = self._replicas(step - self._beside)
        left = np.minimum(step - self._beside, step - self._ahead - self._exposed * self._sums)
        hidden = np.minimum(left, step - self._ahead - self._sums + self._works)
        far = self._replicas(np.where(self._sums > 0, hidden, step - self._beside))
        return float(fewest(self._at, self._pairs, np.where(near > self._together, far, near))[-1])

    def _replicas(self, left: Floats) -> Floats:
        """Return how many replicas each stage needs that has so much of a step left for its micro-batches."""
        count = self._data.num_microbatches
        with np.errstate(divide="ignore", invalid="ignore"):
            rounds = np.floor(left / self._works * (1 + ROUNDED) + ROUNDED)  # that fit, of one replica
            several = np.ceil(count / np.minimum(rounds, count))
        several = np.where(self._works > 0, several, 1.0)
        adds = (rounds > 1) | (self._works == 0) & (left >= 0)
        once = np.where(left * (1 + ROUNDED) + ROUNDED >= self._once, float(count), NEVER)
        found: Floats = np.where(adds, several, once)
        return found
