"""V-shaped orders as they grow, with exact times and memory: what turns and squeezes share."""

from collections import deque

from simulator.schedules.v_shape import Found, Row, VShape


class VShapeProgress:
    """By stage the ends of F and I, by rank its order, time, first start, waits, memory and weights to do."""

    def __init__(self, v_shape: VShape) -> None:
        p = v_shape.num_ranks
        self.v_shape = v_shape
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in range(2 * p)] for kind in "FI"}
        self.rows: tuple[Row, ...] = tuple([] for _ in range(p))
        self.late: list[deque[int]] = [deque() for _ in range(p)]
        self.now, self.first, self.waited, self.held = ([0] * p for _ in range(4))

    def arrival(self, kind: str, stage: int) -> int | None:
        """When the next F or I of a stage could start for its inputs; None before they are made."""
        index, forward, delay = len(self.ends[kind][stage]), self.ends["F"], self.v_shape.delay
        if kind == "F":
            if stage == 0:
                return 0
            return forward[stage - 1][index] + delay[stage - 1] if index < len(forward[stage - 1]) else None
        if index >= len(forward[stage]):
            return None
        if stage == self.v_shape.num_stages - 1:
            return forward[stage][index]
        after = self.ends["I"][stage + 1]
        return max(forward[stage][index], after[index] + delay[stage]) if index < len(after) else None

    def run(self, kind: str, stage: int) -> None:
        """Run the next F or I of a stage."""
        rank, v_shape = self.v_shape.rank(stage), self.v_shape
        start = max(self.arrival(kind, stage) or 0, self.now[rank])
        if self.rows[rank]:
            self.waited[rank] += start - self.now[rank]
        else:
            self.first[rank] = start
        self.now[rank] = start + v_shape.time[kind][stage]
        self.ends[kind][stage].append(self.now[rank])
        self.rows[rank].append((kind, stage))
        if kind == "F":
            self.held[rank] += v_shape.activation[stage]
        else:
            self.held[rank] -= v_shape.activation[stage] - v_shape.kept[stage]
            self.late[rank].append(stage)

    def weight(self, rank: int) -> None:
        """Run the weight gradient that a rank has put off longest."""
        stage = self.late[rank].popleft()
        self.now[rank] += self.v_shape.time["W"][stage]
        self.held[rank] -= self.v_shape.kept[stage]
        self.rows[rank].append(("W", stage))

    def fill(self, rank: int, arrival: int) -> None:
        """Run the weight gradients that fit into the wait for an arrival."""
        late, weight = self.late[rank], self.v_shape.time["W"]
        while late and self.now[rank] + weight[late[0]] <= arrival:
            self.weight(rank)

    def fits(self, stage: int) -> bool:
        """Whether a stage's rank has room for one more of its activations."""
        rank = self.v_shape.rank(stage)
        return self.held[rank] + self.v_shape.activation[stage] <= self.v_shape.room[rank]

    def make_room(self, stage: int) -> bool:
        """Run weight gradients until one more activation fits; return whether it does."""
        rank = self.v_shape.rank(stage)
        while not self.fits(stage) and self.late[rank]:
            self.weight(rank)
        return self.fits(stage)

    def finished(self) -> Found:
        """Run what is left of the weight gradients and sum up."""
        for rank, late in enumerate(self.late):
            while late:
                self.weight(rank)
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Found(self.rows, max(self.now), max(spans))
