"""V-shaped orders in turns: in every turn each rank takes one input gradient and one forward.

Follows the scheduling that Qi et al. describe for ZB-V (Zero bubble pipeline parallelism, arXiv:2401.10241,
section 6, and Pipeline parallelism with controllable memory, arXiv:2405.15362): rank 0 fills its memory with
forwards of the way down until the first way up reaches it, later ranks keep room for the way up; then all
ranks are brought to equally many forwards, and the turns begin. Weight gradients fill waits, make room for
forwards, or are done where waiting would make their rank the one that has waited most. Times are exact for the
order that results. Needs about the memory of 1F1B; with less it finds nothing.
"""

from dataclasses import dataclass

from simulator.schedules.split_progress import Found, SplitProgress
from simulator.schedules.split_stages import SplitStages


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


def in_turns(v_shape: SplitStages, habits: Habits) -> tuple[Found, int] | None:
    """Return the orders and the longest wait of a rank; None where memory is too small for turns."""
    turns = _Turns(v_shape, habits)
    if not turns.warm_up() or not all(turns.turn() for _ in range(2 * v_shape.num_actions)):
        return None
    return turns.finished(), max(turns.waited)


class _Turns(SplitProgress):
    def __init__(self, v_shape: SplitStages, habits: Habits) -> None:
        super().__init__(v_shape)
        self.habits, self.p = habits, v_shape.num_ranks

    def warm_up(self) -> bool:
        """Run the forwards that precede the first turn; return whether memory sufficed."""
        p, top = self.p, self.line.num_stages - 1
        for rank in range(p):
            self.run("F", rank)
        for rank in range(p - 1, -1, -1):
            while rank < p - 1 and self._fits_before_the_way_up(rank):
                for other in range(rank + 1):
                    self.run("F", other)
            self.run("F", top - rank)
        return self._level() and all(held <= room for held, room in zip(self.held, self.line.room, strict=True))

    def _fits_before_the_way_up(self, rank: int) -> bool:
        v_shape, top = self.line, self.line.num_stages - 1
        least = (rank + 1) * (v_shape.activation[rank][0] + v_shape.activation[top - rank][0])
        arrival = self.arrival("F", top - rank)
        return (
            arrival is not None
            and self.held[rank] + least <= v_shape.room[rank]
            and self.now[rank] + v_shape.time["F"][rank][0] <= arrival
            and len(self.ends["F"][rank]) < v_shape.num_actions
        )

    def _level(self) -> bool:
        """Bring all ranks to as many forwards as the first, way down and way up in turn."""
        up = False
        for rank in range(1, self.p):
            while self._behind(rank):
                for other in range(self.p - 1, rank - 1, -1):
                    stage = self.line.num_stages - 1 - other if up else other
                    if len(self.ends["F"][stage]) < self.line.num_actions:
                        if self.arrival("F", stage) is None or not self.fits(stage):
                            return True  # the turns go on from here
                        self.run("F", stage)
                up = not up
        return True

    def _behind(self, rank: int) -> bool:
        down, up = self._counts("F", rank)
        down_before, up_before = self._counts("F", rank - 1)
        return down + up < down_before + up_before or up <= up_before < self.line.num_actions

    def turn(self) -> bool:
        """Run one input gradient and one forward of every rank; return whether none was stuck."""
        top = self.line.num_stages - 1
        down = [self._wants_down(rank) for rank in range(self.p)]
        stages = [rank for rank in range(self.p - 1, -1, -1) if down[rank]]
        stages += [top - rank for rank in range(self.p) if not down[rank]]
        for stage in stages:
            if self.arrival("I", stage) is None:
                return False
            self._fill("I", stage, self.habits.fill_up if stage >= self.p else self.habits.fill_down)
            self.run("I", stage)
        for rank in range(self.p):
            forward = self._next_forward(rank)
            if forward is not None and self.make_room(forward):
                self._fill("F", forward, self.habits.fill_forward)
                self.run("F", forward)
        return True

    def _wants_down(self, rank: int) -> bool:
        """Whether the next input gradient of a rank is that of its way down."""
        down, up = self._counts("I", rank)
        if down >= up:
            return False
        return rank == self.p - 1 or len(self.ends["I"][rank + 1]) > down or up >= self.line.num_actions

    def _next_forward(self, rank: int) -> int | None:
        stage = self.line.num_stages - 1 - rank
        down, up = self._counts("F", rank)
        if up >= self.line.num_actions:
            return None
        if up < down and self.arrival("F", stage) is not None:
            return stage
        return rank if down < self.line.num_actions and self.arrival("F", rank) is not None else None

    def _counts(self, kind: str, rank: int) -> tuple[int, int]:
        ends = self.ends[kind]
        return len(ends[rank]), len(ends[self.line.num_stages - 1 - rank])

    def _fill(self, kind: str, stage: int, force: bool) -> None:
        """Fill the wait before an action with weight gradients, and with one that does not fit if the wait is long."""
        rank, arrival = self.line.rank[stage], self.arrival(kind, stage) or 0
        self.fill(rank, arrival)
        most = max(*self.waited, self.habits.allowed_ns)
        if force and self.late[rank] and arrival - self.now[rank] > most - self.waited[rank]:
            self.weight(rank)
