"""Stretches of neighbouring children of a part as stages, for one time that no stage may take longer.

Of each stretch the fewest replicas count that are quick enough and hold what is in flight, and more of them where their
front may be better (`planner.search.published.fronts`). Leaves out how they make a graph of stages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.published.fronts import Fronts, Ints
from planner.search.published.pieces import Bools, Floats


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One way to run the stages of a part, by the child at which each starts and that before which it stops.

    Attributes
    ----------
    devices : int
        Of one replica.
    multiple : int
        Micro-batches an action.
    time_ns : array of shape (replicas, children + 1, children + 1)
        For each micro-batch of the whole job; infinite for what may be no stage.
    static_bytes : array of the same shape
        Of one rank; not more with more replicas.
    activation_bytes : array of shape (children + 1, children + 1)
        Of one rank for each action in flight.
    """

    devices: int
    multiple: int
    time_ns: Floats
    static_bytes: Floats
    activation_bytes: Floats


@dataclass(frozen=True, slots=True)
class Allowance:
    """Devices and bytes of each, and the numbers of replicas that a stage may have, rising."""

    num_devices: int
    memory_bytes: float
    replicas: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Stages that stop at the same child: after which of some fronts, where they start, and the places of replicas."""

    rows: Ints
    starts: Ints
    places: Ints

    def only(self, chosen: Bools) -> "_Stages":
        return _Stages(self.rows[chosen], self.starts[chosen], self.places[chosen])


class Stretches:
    """The stretches of one way.

    Parameters
    ----------
    choice : Choice
    way : int
        Its position.
    allowance : Allowance
    fronts : Fronts
    most_ns : float
        That no stage may take longer.
    most_devices : array
        For each child at which a stage may start: devices that those before it and elsewhere leave.
    """

    def __init__(
        self, choice: Choice, way: int, allowance: Allowance, fronts: Fronts, most_ns: float, most_devices: Ints
    ) -> None:
        self.choice, self.way, self.fronts, self.most = choice, way, fronts, most_devices
        self.memory_bytes = allowance.memory_bytes
        self.devices = np.append(np.array(allowance.replicas) * choice.devices, allowance.num_devices + 1)
        count = len(allowance.replicas)
        quick = np.full((count + 1, *choice.time_ns.shape[1:]), count)
        np.copyto(quick[:-1], np.arange(count)[:, None, None], where=choice.time_ns <= most_ns)
        self.next = np.minimum.accumulate(quick[::-1])[::-1]
        """The first place of replicas from each on that is quick enough, one past the last for none."""

    def before(self, stop: int, fronts: Ints, devices: Ints) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
        """Yield stages that stop before a child.

        As four arrays: the position of the front that each precedes, its start, the place of its number of replicas,
        and its own front.
        """
        fewest = self.next[0, :stop, stop]
        rows, starts = np.nonzero(devices[:, None] + self.devices[fewest] <= self.most[:stop])
        found = self._holding(stop, fronts, devices, _Stages(rows, starts, fewest[starts]))
        while len(found.rows):
            after = self.fronts.after(fronts[found.rows], self.way, found.places)
            yield found.rows, found.starts, found.places, after
            more = self.fronts.others[fronts[found.rows], self.way, found.places]
            found = _Stages(found.rows, found.starts, self.next[more, found.starts, stop])
            found = self._holding(stop, fronts, devices, found.only(self._few(devices, found)))

    def _few(self, devices: Ints, found: _Stages) -> Bools:
        few: Bools = devices[found.rows] + self.devices[found.places] <= self.most[found.starts]
        return few

    def _holding(self, stop: int, fronts: Ints, devices: Ints, found: _Stages) -> _Stages:
        """Return the stages with the fewest replicas from those given on that hold what is in flight."""
        fits = self._fits(stop, fronts, found)
        if fits.all():
            return found
        done, found = [found.only(fits)], found.only(~fits)
        left = self.most[found.starts] - devices[found.rows]
        widest = np.searchsorted(self.devices, left, "right") - 1
        found = found.only(self._fits(stop, fronts, _Stages(found.rows, found.starts, widest)))
        while len(found.rows):
            found = _Stages(found.rows, found.starts, self.next[found.places + 1, found.starts, stop])
            found = found.only(self._few(devices, found))
            fits = self._fits(stop, fronts, found)
            done.append(found.only(fits))
            found = found.only(~fits)
        return _Stages(*(np.concatenate([getattr(part, name) for part in done]) for name in _Stages.__slots__))

    def _fits(self, stop: int, fronts: Ints, found: _Stages) -> Bools:
        static = self.choice.static_bytes[found.places, found.starts, stop]
        actions = self.fronts.actions[fronts[found.rows], self.way, found.places]
        fits: Bools = static + actions * self.choice.activation_bytes[found.starts, stop] <= self.memory_bytes
        return fits
