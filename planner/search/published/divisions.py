"""How a part is divided into stages before what follows it, for one time that no stage may take longer.

Stages are taken from the sinks back; for each front that can be had (`planner.search.published.fronts`) the fewest
devices are kept, unless another front is better and takes no more. Leaves out which time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.search.budget import Deadline
from planner.search.published.fronts import NOTHING, Fronts, Ints
from planner.search.published.series_parallel import TreePart
from planner.search.published.stretches import Choice, Stretches

NEVER = 1 << 62
"""The code of what cannot be had: above that of any number of devices."""
STOP, PLACE, WAY, DEVICES = 20, 32, 44, 48
"""Bits of a code below its parts; the front after a stage is lowest. Way 0 is a child that is divided by itself."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of children of a part as a stage: its way, and the place of its number of replicas."""

    part: TreePart
    choice: Choice
    start: int
    stop: int
    way: int
    place: int

    @property
    def time_ns(self) -> float:
        """What it takes for each micro-batch of the whole job."""
        return float(self.choice.time_ns[self.place, self.start, self.stop])

    @property
    def atoms(self) -> tuple[int, ...]:
        """Its atoms."""
        return tuple(atom for child in self.part.children[self.start : self.stop] for atom in child.atoms)


@dataclass(eq=False)
class Division(ABC):
    """The divisions of one part.

    Attributes
    ----------
    part : TreePart
    children : sequence of Division or None
        None for atoms.
    stretches : sequence of Stretches
        One for each way.
    fronts : Fronts
    limits : Deadline
    """

    part: TreePart
    children: "Sequence[Division | None]"
    stretches: Sequence[Stretches]
    fronts: Fronts
    limits: Deadline
    _known: dict[int, dict[int, int]] = field(default_factory=dict, init=False)

    def most(self, start: int) -> int:
        """Return the devices at most of stages from a child on."""
        return int(self.stretches[0].most[start])

    def before(self, front: int) -> dict[int, int]:
        """Return the devices of the best divisions before a front, by the front that each has itself."""
        if front not in self._known:
            self._known[front] = self._divide(front)
        return self._known[front]

    @abstractmethod
    def _divide(self, front: int) -> dict[int, int]: ...

    @abstractmethod
    def stages(self, front: int, own: int) -> Iterator[Stretch]:
        """Yield the stages of the best division before a front that has a front, in a topological order."""

    def _best(self, fronts: Ints, devices: Ints) -> tuple[Ints, Ints]:
        """Return those that nothing beats."""
        best = self.fronts.best(fronts, devices)
        return fronts[best], devices[best]

    def _stretch(self, start: int, stop: int, way: int, place: int) -> Stretch:
        return Stretch(self.part, self.stretches[way].choice, start, stop, way, place)


@dataclass(eq=False)
class InSeries(Division):
    """A series or a line: each stage before the fronts of what follows it in the part."""

    _codes: dict[int, Ints] = field(default_factory=dict, init=False)

    def _divide(self, front: int) -> dict[int, int]:
        count = len(self.children)
        codes = np.full((count + 1, self.fronts.room), NEVER)
        codes[count, front] = 0
        for stop in range(count, 0, -1):
            fronts, devices = self._at(codes[stop])
            if len(fronts) and not self.limits.expired:
                codes = self._put_stages(stop, fronts, devices, codes)
                codes = self._put_child(stop, fronts, devices, codes)
        self._codes[front] = codes
        fronts, devices = self._at(codes[0])
        return dict(zip(fronts.tolist(), devices.tolist(), strict=True))

    def _at(self, codes: Ints) -> tuple[Ints, Ints]:
        """Return the best fronts of one place, and their devices."""
        fronts = np.flatnonzero(codes < NEVER)
        return self._best(fronts, codes[fronts] >> DEVICES)

    def _put_stages(self, stop: int, fronts: Ints, devices: Ints, codes: Ints) -> Ints:
        """Put every stage that stops before a child before each front."""
        for way, stretches in enumerate(self.stretches):
            for rows, starts, places, own in stretches.before(stop, fronts, devices):
                codes = self._widened(codes)
                used = devices[rows] + stretches.devices[places]
                made = fronts[rows] | stop << STOP | places << PLACE | way + 1 << WAY | used << DEVICES
                np.minimum.at(codes.reshape(-1), starts * codes.shape[1] + own, made)
        return codes

    def _put_child(self, stop: int, fronts: Ints, devices: Ints, codes: Ints) -> Ints:
        """Put a child that is divided by itself before each front."""
        child = self.children[stop - 1]
        if child is None:
            return codes
        for front, used in zip(fronts.tolist(), devices.tolist(), strict=True):
            for own, more in child.before(front).items():
                codes = self._widened(codes)
                if used + more <= self.most(stop - 1):
                    made = front | stop << STOP | used + more << DEVICES
                    codes[stop - 1, own] = min(int(codes[stop - 1, own]), made)
        return codes

    def _widened(self, codes: Ints) -> Ints:
        """Return codes with room for every front there is now."""
        missing = self.fronts.room - codes.shape[1]
        return np.pad(codes, ((0, 0), (0, missing)), constant_values=NEVER) if missing else codes

    def stages(self, front: int, own: int) -> Iterator[Stretch]:
        """Yield the stages of a division."""
        codes, start = self._codes[front], 0
        while start < len(self.children):
            code = int(codes[start, own])
            after, stop = code & (1 << STOP) - 1, code >> STOP & (1 << PLACE - STOP) - 1
            place, way = code >> PLACE & (1 << WAY - PLACE) - 1, code >> WAY & (1 << DEVICES - WAY) - 1
            child = self.children[start]
            if way:
                yield self._stretch(start, stop, way - 1, place)
            elif child:
                yield from child.stages(after, own)
            start, own = stop, after


@dataclass(frozen=True, slots=True)
class _Step:
    """Branches before others: a stage where `stretch` is given, else a branch that is divided by itself."""

    start: int
    stop: int
    devices: int
    own: int
    stretch: Stretch | None
    others: int = NOTHING
    """The front of the branches behind them in the part."""


@dataclass(eq=False)
class SideBySide(Division):
    """Branches, all before the same front: their devices add up, and the larger of their fronts counts."""

    _steps: dict[int, dict[tuple[int, int], _Step]] = field(default_factory=dict, init=False)

    def _divide(self, front: int) -> dict[int, int]:
        count = len(self.children)
        steps: dict[tuple[int, int], _Step] = {}
        states: list[dict[int, int]] = [{} for _ in range(count)] + [{NOTHING: 0}]
        for stop in range(count, 0, -1):
            if states[stop] and not self.limits.expired:
                best, made = self._of(states[stop]), self._made(stop, front)
                for others, used in best.items():
                    for step in made:
                        self._put(states[step.start], steps, step, others, used)
        self._steps[front] = steps
        return self._of(states[0])

    def _put(
        self, state: dict[int, int], steps: dict[tuple[int, int], _Step], step: _Step, others: int, used: int
    ) -> None:
        total, joined = used + step.devices, self.fronts.merged(step.own, others)
        if total <= self.most(step.start) and total < state.get(joined, NEVER):
            state[joined] = total
            steps[step.start, joined] = replace(step, others=others)

    def _made(self, stop: int, front: int) -> list[_Step]:
        """Return the stages that have a branch and some before it, and its divisions."""
        found = []
        for way, stretches in enumerate(self.stretches):
            for _, starts, places, owns in stretches.before(stop, np.array([front]), np.zeros(1, np.int64)):
                for start, place, own in zip(starts.tolist(), places.tolist(), owns.tolist(), strict=True):
                    stretch = self._stretch(start, stop, way, place)
                    found.append(_Step(start, stop, int(stretches.devices[place]), own, stretch))
        child = self.children[stop - 1]
        if child:
            found += [_Step(stop - 1, stop, used, own, None) for own, used in child.before(front).items()]
        return found

    def _of(self, state: dict[int, int]) -> dict[int, int]:
        """Return the best of a state."""
        fronts, devices = self._best(np.array([*state], np.int64), np.array([*state.values()], np.int64))
        return dict(zip(fronts.tolist(), devices.tolist(), strict=True))

    def stages(self, front: int, own: int) -> Iterator[Stretch]:
        """Yield the stages of a division."""
        start = 0
        while start < len(self.children):
            step = self._steps[front][start, own]
            child = self.children[start]
            if step.stretch:
                yield step.stretch
            elif child:
                yield from child.stages(front, step.own)
            start, own = step.stop, step.others
