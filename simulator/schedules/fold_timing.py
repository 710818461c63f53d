"""Times of fixed forwards and input gradients on a fold, with weight gradients where they cost least.

Squeezes the waits out of orders that repeat a block. A weight gradient keeps its place in the steady state, where
that keeps every rank busy; around it, before the rank's first gradient of the way down and behind its last
forwards, it fills waits only. Memory is held to the limit: a forward that does not fit waits for weight gradients.
"""

from collections import deque
from dataclasses import dataclass

from simulator.schedules.fold import Fold, Found, Row


@dataclass(frozen=True, slots=True)
class Squeeze:
    """When weight gradients leave their places.

    Attributes
    ----------
    early : bool
        Before the first input gradient of the way down.
    late : int or None
        From so many actions before the rank's last forward; None for never.
    """

    early: bool
    late: int | None


def squeezed(fold: Fold, rows: tuple[Row, ...], squeeze: Squeeze) -> Found | None:
    """Return the orders with their times; None if a forward never gets room."""
    return _Squeezing(fold, rows, squeeze).run()


class _Squeezing:
    def __init__(self, fold: Fold, rows: tuple[Row, ...], squeeze: Squeeze) -> None:
        p = fold.num_ranks
        self.fold, self.given = fold, rows
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in range(2 * p)] for kind in "FI"}
        self.rows: tuple[Row, ...] = tuple([] for _ in range(p))
        self.late: list[deque[int]] = [deque() for _ in range(p)]
        self.now, self.first, self.held, self.place = ([0] * p for _ in range(4))
        self.loose_until = [row.index(("I", rank)) if squeeze.early else -1 for rank, row in enumerate(rows)]
        last = [max(i for i, action in enumerate(row) if action[0] == "F") for row in rows]
        self.loose_from = [
            len(row) if squeeze.late is None else end - squeeze.late for row, end in zip(rows, last, strict=True)
        ]

    def run(self) -> Found | None:
        waiting = list(range(self.fold.num_ranks))
        while waiting:
            waiting += self._advance(waiting.pop())
        if any(place < len(row) for place, row in zip(self.place, self.given, strict=True)):
            return None
        for rank, late in enumerate(self.late):
            while late:
                self._weight(rank)
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Found(self.rows, max(self.now), max(spans))

    def _advance(self, rank: int) -> set[int]:
        """Run a rank as far as its inputs are known; return the ranks that may go on for it."""
        row, woken = self.given[rank], set()
        while self.place[rank] < len(row):
            kind, stage = row[self.place[rank]]
            loose = self.place[rank] < self.loose_until[rank] or self.place[rank] > self.loose_from[rank]
            if kind == "W":
                if not loose and self.late[rank]:  # in the steady state the first one put off takes this place
                    self._weight(rank)
            else:
                arrival = self._arrival(kind, stage)
                if arrival is None or not self._make_room(rank, kind, stage):
                    break
                if loose:
                    self._fill(rank, arrival)
                self._run(rank, kind, stage, arrival)
                after = stage + 1 if kind == "F" else stage - 1
                if 0 <= after < self.fold.num_stages:
                    woken.add(self.fold.rank(after))
            self.place[rank] += 1
        return woken - {rank}

    def _arrival(self, kind: str, stage: int) -> int | None:
        forward, index, top = self.ends["F"], len(self.ends[kind][stage]), self.fold.num_stages - 1
        if kind == "F":
            if stage == 0:
                return 0
            return forward[stage - 1][index] + self.fold.delay[stage - 1] if index < len(forward[stage - 1]) else None
        if stage == top or index >= len(forward[stage]):
            return forward[stage][index] if index < len(forward[stage]) else None
        after = self.ends["I"][stage + 1]
        return max(forward[stage][index], after[index] + self.fold.delay[stage]) if index < len(after) else None

    def _make_room(self, rank: int, kind: str, stage: int) -> bool:
        if kind == "I":
            return True
        while self.held[rank] + self.fold.activation[stage] > self.fold.room[rank] and self.late[rank]:
            self._weight(rank)
        return self.held[rank] + self.fold.activation[stage] <= self.fold.room[rank]

    def _fill(self, rank: int, arrival: int) -> None:
        late, weight = self.late[rank], self.fold.time["W"]
        while late and self.now[rank] + weight[late[0]] <= arrival:
            self._weight(rank)

    def _run(self, rank: int, kind: str, stage: int, arrival: int) -> None:
        fold, start = self.fold, max(arrival, self.now[rank])
        if not self.rows[rank]:
            self.first[rank] = start
        self.now[rank] = start + fold.time[kind][stage]
        self.ends[kind][stage].append(self.now[rank])
        self.rows[rank].append((kind, stage))
        if kind == "F":
            self.held[rank] += fold.activation[stage]
        else:
            self.held[rank] -= fold.activation[stage] - fold.kept[stage]
            self.late[rank].append(stage)

    def _weight(self, rank: int) -> None:
        stage = self.late[rank].popleft()
        self.now[rank] += self.fold.time["W"][stage]
        self.held[rank] -= self.fold.kept[stage]
        self.rows[rank].append(("W", stage))
