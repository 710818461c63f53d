"""Times of fixed forwards and input gradients on a V shape, with weight gradients where they cost least.

Squeezes the waits out of orders that repeat a block. A weight gradient keeps its place in the steady state, where
that keeps every rank busy; around it, before the rank's first gradient of the way down and behind its last
forwards, it fills waits only. Memory is held to the limit: a forward that does not fit waits for weight gradients.
"""

from dataclasses import dataclass

from simulator.schedules.split_progress import Found, SplitProgress
from simulator.schedules.split_stages import Row, SplitStages


@dataclass(frozen=True, slots=True)
class Squeeze:
    """When weight gradients leave their places.

    Attributes
    ----------
    early : bool
        Before the first input gradient of the way down.
    late : int or None
        Number of actions before the rank's last forward from which on they do; None for never.
    """

    early: bool
    late: int | None


def squeezed(v_shape: SplitStages, rows: tuple[Row, ...], squeeze: Squeeze) -> Found | None:
    """Return the orders with their times; None if a forward never gets room."""
    squeezing = _Squeezing(v_shape, rows, squeeze)
    return squeezing.finished() if squeezing.all_run() else None


class _Squeezing(SplitProgress):
    def __init__(self, v_shape: SplitStages, rows: tuple[Row, ...], squeeze: Squeeze) -> None:
        super().__init__(v_shape)
        self.given, self.place = rows, [0] * v_shape.num_ranks
        self.loose_until = [row.index(("I", rank)) if squeeze.early else -1 for rank, row in enumerate(rows)]
        last = [max(i for i, action in enumerate(row) if action[0] == "F") for row in rows]
        self.loose_from = [
            len(row) if squeeze.late is None else end - squeeze.late for row, end in zip(rows, last, strict=True)
        ]

    def all_run(self) -> bool:
        """Run all orders; return whether they came to their ends."""
        waiting = list(range(self.line.num_ranks))
        while waiting:
            waiting += self._advance(waiting.pop())
        return all(place == len(row) for place, row in zip(self.place, self.given, strict=True))

    def _advance(self, rank: int) -> set[int]:
        """Run a rank as far as its inputs are known; return the ranks that may go on for it."""
        row, woken = self.given[rank], set()
        while self.place[rank] < len(row):
            kind, stage = row[self.place[rank]]
            loose = self.place[rank] < self.loose_until[rank] or self.place[rank] > self.loose_from[rank]
            if kind == "W":
                if not loose and self.late[rank]:  # in the steady state the first one put off takes this place
                    self.weight(rank)
            else:
                arrival = self.arrival(kind, stage)
                if arrival is None or (kind == "F" and not self.make_room(stage)):
                    break
                if loose:
                    self.fill(rank, arrival)
                self.run(kind, stage, arrival)
                after = stage + 1 if kind == "F" else stage - 1
                if 0 <= after < self.line.num_stages:
                    woken.add(self.line.rank[after])
            self.place[rank] += 1
        return woken - {rank}
