"""The chain of pieces whose slowest stage is fastest: dynamic programming over downsets for one time, then another.

For a time that no stage may take longer, pieces are taken from the last on; what counts is how many devices they use
and how many replicas they have, for a stage with d replicas keeps as many micro-batches in flight as the replicas from
it on, divided by d, rounded up (Tarnawski et al., NeurIPS 2021, section 4). The time is halved among those that any
stage takes, so that the answer is exact. Leaves out what a stage takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.budget import Deadline
from planner.search.published.pieces import Bools, Floats
from planner.search.published.prices import View, Ways
from planner.search.published.proposals import ProposedStage

NEVER = 1 << 30
Ints = NDArray[np.int64]
Back = dict[tuple[int, int], tuple["ChosenPiece", int]]
TimeOf = Callable[[Ways, int], Floats]
"""Each piece's time for each micro-batch of the whole job, by number of replicas."""


@dataclass(frozen=True, slots=True)
class ChosenPiece:
    """A stage of a rival: the piece from downset `start` to downset `stop`, how it runs, its replicas."""

    start: int
    stop: int
    way: int
    replicas: int


def fastest_chain(
    view: View, ways: Sequence[Ways], time_of: TimeOf, memory_bytes: float, limits: Deadline
) -> list[ProposedStage] | None:
    """Return the stages whose slowest is fastest, in order; None where none fit."""
    pieces = ways[0].pieces
    allowed = pieces.inside & ~pieces.mixes(view.evaluator.apart)
    found = SlowestStage(ways, time_of, view.replicas, view.num_devices, memory_bytes, allowed, limits).best()
    if found is None:
        return None
    return [ProposedStage(tuple(pieces.atoms(s.start, s.stop)), ways[s.way].on(s.replicas)) for s in found[1]]


class SlowestStage:
    """Chains of pieces on a number of devices with equal memory.

    Parameters
    ----------
    ways : sequence of Ways
        All of the same pieces.
    time_of : function
    replicas : sequence of int
    num_devices : int
    memory_bytes : float
        Of a rank; infinite where it is not known.
    allowed : array
        Pieces that may be stages.
    """

    def __init__(
        self,
        ways: Sequence[Ways],
        time_of: TimeOf,
        replicas: Sequence[int],
        num_devices: int,
        memory_bytes: float,
        allowed: Bools,
        limits: Deadline,
    ) -> None:
        self.num_devices, self.memory_bytes, self.limits, self.num_sets = (
            num_devices,
            memory_bytes,
            limits,
            len(allowed),
        )
        self.options = [
            (way, count) for way, each in enumerate(ways) for count in replicas if count * each.devices <= num_devices
        ]
        self.devices = np.array([count * ways[way].devices for way, count in self.options])
        shape = (len(self.options), *allowed.shape)
        self.times_ns, self.static_bytes, self.activation_bytes = np.zeros((3, *shape))
        for number, (way, count) in enumerate(self.options):
            self.times_ns[number] = np.where(allowed, time_of(ways[way], count), np.inf)
            self.static_bytes[number] = ways[way].static_bytes(count)
            self.activation_bytes[number] = ways[way].activation_bytes
        number_of = [way for way, _ in self.options]
        self.rows = [slice(number_of.index(way), number_of.index(way) + number_of.count(way)) for way in set(number_of)]

    def best(self) -> tuple[float, list[ChosenPiece]] | None:
        """Return the least time of the slowest stage, and the chain, first stage first; None where nothing fits.

        The best so far where time runs out.
        """
        found = self._chain(np.inf)
        if found is None:
            return None
        low, high = 0.0, self._slowest(found)
        while True:
            between = self.times_ns[(self.times_ns > low) & (self.times_ns < high)]
            if not len(between) or self.limits.expired:
                return high, found
            middle = float(np.partition(between, len(between) // 2)[len(between) // 2])
            faster = self._chain(middle)
            if self.limits.hit:
                return high, found
            if faster is None:
                low = middle
            else:
                found, high = faster, self._slowest(faster)

    def _slowest(self, stages: Sequence[ChosenPiece]) -> float:
        rows = {option: number for number, option in enumerate(self.options)}
        return max(float(self.times_ns[rows[s.way, s.replicas], s.start, s.stop]) for s in stages)

    def _chain(self, most_ns: float) -> list[ChosenPiece] | None:
        """Return a chain of which no stage takes longer; None where there is none, or no time is left."""
        devices = np.full((self.num_sets, self.num_devices + 1), NEVER)  # least, by downset and replicas after it
        devices[-1, 0] = 0
        back: Back = {}
        for stop in range(self.num_sets - 1, 0, -1):
            if self.limits.expired:
                return None
            least = NEVER
            for after in np.flatnonzero(devices[stop] < NEVER).tolist():
                if devices[stop, after] < least:  # else fewer replicas after it take no more devices
                    least = int(devices[stop, after])
                    self._extend(stop, after, most_ns, devices, back)
        ends = np.flatnonzero(devices[0] < NEVER)
        if not len(ends):
            return None
        chain, place, after = [], 0, int(ends[0])
        while place < self.num_sets - 1:
            stage, after = back[place, after]
            chain.append(stage)
            place = stage.stop
        return chain

    def _extend(self, stop: int, after: int, most_ns: float, devices: Ints, back: Back) -> None:
        """Put every piece that ends at a downset before what follows, with the fewest replicas that each way needs."""
        used = int(devices[stop, after])
        replicas = np.array([count for _, count in self.options])
        in_flight = 1 + -(-after // replicas)
        held = self.static_bytes[:, :, stop] + in_flight[:, None] * self.activation_bytes[:, :, stop]
        runs = (self.times_ns[:, :, stop] <= most_ns) & (held <= self.memory_bytes)
        runs &= (used + self.devices <= self.num_devices)[:, None]
        for rows in self.rows:
            runs[rows][1:] &= ~np.logical_or.accumulate(runs[rows], axis=0)[:-1]
        for number in np.flatnonzero(runs.any(1)).tolist():
            way, count = self.options[number]
            total, sum_of = after + count, used + int(self.devices[number])
            better = np.flatnonzero(runs[number] & (sum_of < devices[:, total]))
            devices[better, total] = sum_of
            for start in better.tolist():
                back[start, total] = ChosenPiece(start, stop, way, count), after
