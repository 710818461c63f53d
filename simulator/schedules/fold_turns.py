"""Orders of a fold in turns: in every turn each rank takes one input gradient and one forward.

Follows the scheduling that Qi et al. describe for ZB-V (Zero bubble pipeline parallelism, arXiv:2401.10241,
section 6, and Pipeline parallelism with controllable memory, arXiv:2405.15362): rank 0 fills its memory with
forwards of the way down until the first way up reaches it, later ranks keep room for the way up; then all
ranks are brought to equally many forwards, and the turns begin. Weight gradients fill waits, make room for
forwards, or are done where waiting would make their rank the one that has waited most. Times are exact for the
order that results. Needs about the memory of 1F1B; with less it finds nothing.
"""

from dataclasses import dataclass

from simulator.schedules.fold import Fold, Found, Row


@dataclass(frozen=True, slots=True)
class Habits:
    """What turns are free to choose.

    Attributes
    ----------
    fill_up, fill_down, fill_forward : bool
        Whether a weight gradient that does not fit into the wait before an input gradient of the way up, of the way
        down, or before a forward is done all the same, where the wait is longer than the rank may wait.
    allowed_ns : int
        How long every rank may have waited.
    """

    fill_up: bool
    fill_down: bool
    fill_forward: bool
    allowed_ns: int = 0


def in_turns(fold: Fold, habits: Habits) -> tuple[Found, int] | None:
    """Return the orders and the longest wait of a rank; None where memory is too small for turns."""
    turns = _Turns(fold, habits)
    if not turns.warm_up() or not all(turns.turn() for _ in range(2 * fold.num_actions)):
        return None
    return turns.finish()


class _Turns:
    """Orders as they grow: by stage the ends of F and I, by rank its time, memory, waits and weights to do."""

    def __init__(self, fold: Fold, habits: Habits) -> None:
        self.fold, self.habits, self.p = fold, habits, fold.num_ranks
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in range(fold.num_stages)] for kind in "FI"}
        self.rows: tuple[Row, ...] = tuple([] for _ in range(self.p))
        self.late: list[list[int]] = [[] for _ in range(self.p)]
        self.now, self.held, self.waited, self.first = ([0] * self.p for _ in range(4))

    def warm_up(self) -> bool:
        """Run the forwards that precede the first turn; return whether memory sufficed."""
        p, top = self.p, self.fold.num_stages - 1
        for rank in range(p):
            self._run("F", rank)
        for rank in range(p - 1, -1, -1):
            while rank < p - 1 and self._fits_before_the_way_up(rank):
                for other in range(rank + 1):
                    self._run("F", other)
            self._run("F", top - rank)
        return self._level() and all(held <= room for held, room in zip(self.held, self.fold.room, strict=True))

    def _fits_before_the_way_up(self, rank: int) -> bool:
        fold, top = self.fold, self.fold.num_stages - 1
        least = (rank + 1) * (fold.activation[rank] + fold.activation[top - rank])
        arrival = self._arrival("F", top - rank)
        return (
            arrival is not None
            and self.held[rank] + least <= fold.room[rank]
            and self.now[rank] + fold.time["F"][rank] <= arrival
            and len(self.ends["F"][rank]) < fold.num_actions
        )

    def _level(self) -> bool:
        """Bring all ranks to as many forwards as the first, way down and way up in turn."""
        up = False
        for rank in range(1, self.p):
            while self._behind(rank):
                for other in range(self.p - 1, rank - 1, -1):
                    stage = self.fold.num_stages - 1 - other if up else other
                    if len(self.ends["F"][stage]) < self.fold.num_actions:
                        if self._arrival("F", stage) is None or not self._fits(other, stage):
                            return True  # the turns go on from here
                        self._run("F", stage)
                up = not up
        return True

    def _behind(self, rank: int) -> bool:
        down, up = self._counts("F", rank)
        down_before, up_before = self._counts("F", rank - 1)
        return down + up < down_before + up_before or up <= up_before < self.fold.num_actions

    def turn(self) -> bool:
        """Run one input gradient and one forward of every rank; return whether none was stuck."""
        top = self.fold.num_stages - 1
        down = [self._wants_down(rank) for rank in range(self.p)]
        stages = [rank for rank in range(self.p - 1, -1, -1) if down[rank]]
        stages += [top - rank for rank in range(self.p) if not down[rank]]
        for stage in stages:
            arrival = self._arrival("I", stage)
            if arrival is None:
                return False
            self._fill(stage, arrival, self.habits.fill_up if stage >= self.p else self.habits.fill_down)
            self._run("I", stage)
        for rank in range(self.p):
            stage_or_none = self._next_forward(rank)
            if stage_or_none is not None and self._make_room(rank, stage_or_none):
                self._fill(stage_or_none, self._arrival("F", stage_or_none) or 0, self.habits.fill_forward)
                self._run("F", stage_or_none)
        return True

    def finish(self) -> tuple[Found, int]:
        """Run what is left of the weight gradients and sum up."""
        for rank in range(self.p):
            while self.late[rank]:
                self._weight(rank)
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Found(self.rows, max(self.now), max(spans)), max(self.waited)

    def _wants_down(self, rank: int) -> bool:
        """Whether the next input gradient of a rank is that of its way down."""
        down, up = self._counts("I", rank)
        if down >= up:
            return False
        return rank == self.p - 1 or len(self.ends["I"][rank + 1]) > down or up >= self.fold.num_actions

    def _next_forward(self, rank: int) -> int | None:
        stage = self.fold.num_stages - 1 - rank
        down, up = self._counts("F", rank)
        if up >= self.fold.num_actions:
            return None
        if up < down and self._arrival("F", stage) is not None:
            return stage
        return rank if down < self.fold.num_actions and self._arrival("F", rank) is not None else None

    def _counts(self, kind: str, rank: int) -> tuple[int, int]:
        ends = self.ends[kind]
        return len(ends[rank]), len(ends[self.fold.num_stages - 1 - rank])

    def _arrival(self, kind: str, stage: int) -> int | None:
        """When the next action of a stage could start for its inputs; None before they are made."""
        index, forward = len(self.ends[kind][stage]), self.ends["F"]
        if kind == "F":
            if stage == 0:
                return 0
            return forward[stage - 1][index] + self.fold.delay[stage - 1] if index < len(forward[stage - 1]) else None
        if index >= len(forward[stage]):
            return None
        if stage == self.fold.num_stages - 1:
            return forward[stage][index]
        after = self.ends["I"][stage + 1]
        return max(forward[stage][index], after[index] + self.fold.delay[stage]) if index < len(after) else None

    def _fits(self, rank: int, stage: int) -> bool:
        return self.held[rank] + self.fold.activation[stage] <= self.fold.room[rank]

    def _make_room(self, rank: int, stage: int) -> bool:
        while not self._fits(rank, stage) and self.late[rank]:
            self._weight(rank)
        return self._fits(rank, stage)

    def _fill(self, stage: int, arrival: int, force: bool) -> None:
        """Fill the wait before an action with weight gradients, and with one that does not fit if the wait is long."""
        rank = self.fold.rank(stage)
        late, weight = self.late[rank], self.fold.time["W"]
        while late and arrival >= self.now[rank] + weight[late[0]]:
            self._weight(rank)
        most = max(*self.waited, self.habits.allowed_ns)
        if force and late and arrival - self.now[rank] > most - self.waited[rank]:
            self._weight(rank)

    def _run(self, kind: str, stage: int) -> None:
        rank, fold = self.fold.rank(stage), self.fold
        start = max(self._arrival(kind, stage) or 0, self.now[rank])
        if self.rows[rank]:
            self.waited[rank] += start - self.now[rank]
        else:
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
        stage = self.late[rank].pop(0)
        self.now[rank] += self.fold.time["W"][stage]
        self.held[rank] -= self.fold.kept[stage]
        self.rows[rank].append(("W", stage))
