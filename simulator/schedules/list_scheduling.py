"""Orders of one stage a rank with split backwards, by a list simulation: for less memory than sweeps need.

Whenever a rank is free it takes a ready input gradient, else a ready forward if it has fewer in flight than its
number and memory for it, else a weight gradient that fits into the wait or makes room. The sweeps of `zb-auto`
take turns over all ranks, which wastes much where a rank can hold less than its position in 1F1B asks for; here every
rank goes at its own pace. Times are exact for the order that results. Never looks ahead further than what has
started.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from simulator.schedules.sweep import Result
from simulator.schedules.sweep_pipeline import Links, PositionCosts

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


def in_list(line: PositionCosts, pace: Pace) -> Result | None:
    """Return the orders that a pace leads to; None where a rank never gets room."""
    return _List(line, pace).run()


class _List:
    def __init__(self, line: PositionCosts, pace: Pace) -> None:
        self.line, self.patience = line, pace.patience
        positions = range(line.num_positions)
        depth = [1] * line.num_positions
        for position in reversed(positions):
            depth[position] += max((depth[x] for x, _ in line.targets[position]), default=0)
        self.most = [max(1, int(pace.scale * one)) for one in depth]
        self.receivers: list[list[int]] = [
            [x for x in positions if position in dict(line.gradient_targets[x])] for position in positions
        ]
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in positions] for kind in "FIW"}
        self.orders: list[list[tuple[str, int]]] = [[] for _ in positions]
        self.now, self.held, self.peak = ([0] * line.num_positions for _ in range(3))
        self.first = [-1] * line.num_positions

    def run(self) -> Result | None:
        line = self.line
        wakes = [(0, position) for position in range(line.num_positions)]
        while wakes:
            now, position = heapq.heappop(wakes)
            if now < self.now[position]:
                continue
            kind, wake = self._pick(position, now)
            if kind:
                self._start(position, kind, now)
                woken = {"F": [x for x, _ in line.targets[position]], "I": self.receivers[position], "W": []}[kind]
                for other in (position, *woken):
                    heapq.heappush(wakes, (max(self.now[position], self.now[other]), other))
            elif wake < NEVER:
                heapq.heappush(wakes, (wake, position))
        if any(
            len(row) < (3 if back else 1) * line.num_actions
            for row, back in zip(self.orders, line.backward, strict=True)
        ):
            return None
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Result(tuple(map(tuple, self.orders)), max(spans), max(self.now), max(self.peak))

    def _pick(self, position: int, now: int) -> tuple[str, int]:
        """Return the kind to start now, or none and when something that has started arrives."""
        back, forward = self._gradient(position), self._input(position)
        if back <= now:
            return "I", now
        room = self._has_room(position)
        if forward <= now and room:
            return "F", now
        arrival = min(back, forward if room else NEVER)
        done = len(self.ends["W"][position])
        if done == len(self.ends["I"][position]):
            return "", arrival
        blocked = forward <= now and not room and not self._full(position)
        fits = 100 * (arrival - now) >= self.patience * self.line.backward_weight[position][done]
        return ("W", now) if blocked or fits else ("", arrival)

    def _full(self, position: int) -> bool:
        return len(self.ends["F"][position]) - len(self.ends["I"][position]) >= self.most[position]

    def _has_room(self, position: int) -> bool:
        line, index = self.line, len(self.ends["F"][position])
        if index == line.num_actions or not line.backward[position]:
            return True
        return (
            not self._full(position) and self.held[position] + line.activation[position][index] <= line.room[position]
        )

    def _input(self, position: int) -> int:
        index = len(self.ends["F"][position])
        return _arrival(self.ends["F"], self.line.sources[position], index) if index < self.line.num_actions else NEVER

    def _gradient(self, position: int) -> int:
        index = len(self.ends["I"][position])
        if not self.line.backward[position] or index >= len(self.ends["F"][position]):
            return NEVER
        return max(
            self.ends["F"][position][index], _arrival(self.ends["I"], self.line.gradient_targets[position], index)
        )

    def _start(self, position: int, kind: str, now: int) -> None:
        line, index = self.line, len(self.ends[kind][position])
        times = {"F": line.forward, "I": line.backward_input, "W": line.backward_weight}[kind]
        if self.first[position] < 0:
            self.first[position] = now
        self.now[position] = now + times[position][index]
        self.ends[kind][position].append(self.now[position])
        self.orders[position].append((kind, index))
        if line.backward[position]:
            size, kept = line.activation[position][index], line.kept[position][index]
            self.held[position] += {"F": size, "I": kept - size, "W": -kept}[kind]
            self.peak[position] = max(self.peak[position], self.held[position])


def _arrival(ends: list[list[int]], links: Links, index: int) -> int:
    """When the last of some results with one index arrives; never, before all of them are known."""
    latest = 0
    for peer, delay in links:
        if index >= len(ends[peer]):
            return NEVER
        latest = max(latest, ends[peer][index] + delay)
    return latest
