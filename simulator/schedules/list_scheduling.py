"""Orders of one stage a rank with split backwards, by a list simulation: for less memory than sweeps need.

Whenever a rank is free it takes a ready input gradient, else a ready forward if it has fewer in flight than its
number and memory for it, else a weight gradient that fits into the wait or makes room. The sweeps of `zb-auto`
take turns over all ranks, which wastes much where a rank can hold less than its place in 1F1B asks for; here every
rank goes at its own pace. Times are exact for the order that results. Never looks ahead further than what has
started.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from simulator.schedules.sweep import Result
from simulator.schedules.sweep_pipeline import Links, PlaceCosts

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Pace:
    """What a list simulation is free to choose.

    Attributes
    ----------
    scale : Fraction
        Forwards in flight for each stage from here to the end of the pipeline.
    patience : int
        Per cent of a weight gradient that has to fit into a wait.
    """

    scale: Fraction
    patience: int


def paces() -> Iterator[Pace]:
    """Yield the paces worth trying."""
    for scale in (Fraction(1), Fraction(2), Fraction(3, 2), Fraction(1, 2)):
        for patience in (100, 50, 0):
            yield Pace(scale, patience)


def in_list(line: PlaceCosts, pace: Pace) -> Result | None:
    """Return the orders that a pace leads to; None where a rank never gets room."""
    return _List(line, pace).run()


class _List:
    def __init__(self, line: PlaceCosts, pace: Pace) -> None:
        self.line, self.patience = line, pace.patience
        places = range(line.num_places)
        depth = [1] * line.num_places
        for place in reversed(places):
            depth[place] += max((depth[x] for x, _ in line.targets[place]), default=0)
        self.most = [max(1, int(pace.scale * one)) for one in depth]
        self.receivers: list[list[int]] = [
            [x for x in places if place in dict(line.gradient_targets[x])] for place in places
        ]
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in places] for kind in "FIW"}
        self.orders: list[list[tuple[str, int]]] = [[] for _ in places]
        self.now, self.held, self.peak = ([0] * line.num_places for _ in range(3))
        self.first = [-1] * line.num_places

    def run(self) -> Result | None:
        line = self.line
        wakes = [(0, place) for place in range(line.num_places)]
        while wakes:
            now, place = heapq.heappop(wakes)
            if now < self.now[place]:
                continue
            kind, wake = self._pick(place, now)
            if kind:
                self._start(place, kind, now)
                woken = {"F": [x for x, _ in line.targets[place]], "I": self.receivers[place], "W": []}[kind]
                for other in (place, *woken):
                    heapq.heappush(wakes, (max(self.now[place], self.now[other]), other))
            elif wake < NEVER:
                heapq.heappush(wakes, (wake, place))
        if any(
            len(row) < (3 if back else 1) * line.num_actions
            for row, back in zip(self.orders, line.backward, strict=True)
        ):
            return None
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Result(tuple(map(tuple, self.orders)), max(spans), max(self.now), max(self.peak))

    def _pick(self, place: int, now: int) -> tuple[str, int]:
        """Return the kind to start now, or none and when something that has started arrives."""
        back, forward = self._gradient(place), self._input(place)
        if back <= now:
            return "I", now
        room = self._has_room(place)
        if forward <= now and room:
            return "F", now
        arrival = min(back, forward if room else NEVER)
        done = len(self.ends["W"][place])
        if done == len(self.ends["I"][place]):
            return "", arrival
        blocked = forward <= now and not room and not self._full(place)
        fits = 100 * (arrival - now) >= self.patience * self.line.backward_weight[place][done]
        return ("W", now) if blocked or fits else ("", arrival)

    def _full(self, place: int) -> bool:
        return len(self.ends["F"][place]) - len(self.ends["I"][place]) >= self.most[place]

    def _has_room(self, place: int) -> bool:
        line, index = self.line, len(self.ends["F"][place])
        if index == line.num_actions or not line.backward[place]:
            return True
        return not self._full(place) and self.held[place] + line.activation[place][index] <= line.room[place]

    def _input(self, place: int) -> int:
        index = len(self.ends["F"][place])
        return _arrival(self.ends["F"], self.line.sources[place], index) if index < self.line.num_actions else NEVER

    def _gradient(self, place: int) -> int:
        index = len(self.ends["I"][place])
        if not self.line.backward[place] or index >= len(self.ends["F"][place]):
            return NEVER
        return max(self.ends["F"][place][index], _arrival(self.ends["I"], self.line.gradient_targets[place], index))

    def _start(self, place: int, kind: str, now: int) -> None:
        line, index = self.line, len(self.ends[kind][place])
        times = {"F": line.forward, "I": line.backward_input, "W": line.backward_weight}[kind]
        if self.first[place] < 0:
            self.first[place] = now
        self.now[place] = now + times[place][index]
        self.ends[kind][place].append(self.now[place])
        self.orders[place].append((kind, index))
        if line.backward[place]:
            size, kept = line.activation[place][index], line.kept[place][index]
            self.held[place] += {"F": size, "I": kept - size, "W": -kept}[kind]
            self.peak[place] = max(self.peak[place], self.held[place])


def _arrival(ends: list[list[int]], links: Links, index: int) -> int:
    """When the last of some results with one index arrives; never, before all of them are known."""
    latest = 0
    for peer, delay in links:
        if index >= len(ends[peer]):
            return NEVER
        latest = max(latest, ends[peer][index] + delay)
    return latest
