"""Orders of split backwards as they grow, with exact times and memory: what sweeps, turns and squeezes share."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.schedules.split_stages import Row, SplitStages


@dataclass(frozen=True, slots=True)
class Found:
    """Orders of all ranks and what they come to."""

    rows: tuple[Row, ...]
    step_time_ns: int
    span_ns: int
    peak_bytes: int

    def key(self, objective: str) -> tuple[int, int]:
        """Return span and step, what counts first before the other."""
        return (self.span_ns, self.step_time_ns) if objective == "span" else (self.step_time_ns, self.span_ns)


class SplitProgress:
    """By position the ends of F and I, by rank its order, time, first start, waits, memory and weights to do.

    `pending` is the part of what a rank has `held` that waits for weight gradients.

    Parameters
    ----------
    line : SplitStages
    counted : sequence of int, optional
        What counts to the waits of each rank from the start: its work, where spans are compared.
    """

    def __init__(self, line: SplitStages, counted: Sequence[int] = ()) -> None:
        ranks = range(line.num_ranks)
        self.line = line
        self.ends: dict[str, list[list[int]]] = {kind: [[] for _ in line.stages] for kind in "FI"}
        self.weights = [0] * line.num_stages
        self.rows: tuple[Row, ...] = tuple([] for _ in ranks)
        self.late: list[deque[int]] = [deque() for _ in ranks]
        self.now, self.first, self.held, self.pending, self.peak = ([0 for _ in ranks] for _ in range(5))
        self.waited = list(counted) or [0 for _ in ranks]

    def arrival(self, kind: str, position: int) -> int | None:
        """When the next F or I of a position could start for its inputs; None before they are made."""
        ends = self.ends[kind]
        index, latest = len(ends[position]), 0
        links = self.line.sources[position]
        if kind == "I":
            own, links = self.ends["F"][position], self.line.gradient_targets[position]
            if index >= len(own):
                return None
            latest = own[index]
        for peer, delay in links:
            row = ends[peer]
            if index >= len(row):
                return None
            if row[index] + delay > latest:
                latest = row[index] + delay
        return latest

    def run(self, kind: str, position: int, arrival: int | None = None) -> None:
        """Run the next F or I of a position, whose inputs arrive at some time."""
        line = self.line
        if arrival is None:
            arrival = self.arrival(kind, position) or 0
        rank, row = line.rank[position], self.ends[kind][position]
        index, now = len(row), self.now[rank]
        start = arrival if arrival > now else now
        if self.rows[rank]:
            self.waited[rank] += start - now
        else:
            self.first[rank] = start
        self.now[rank] = start + line.time[kind][position][index]
        row.append(self.now[rank])
        self.rows[rank].append((kind, position))
        if kind == "I":
            kept = line.kept[position][index]
            self.held[rank] -= line.activation[position][index] - kept
            self.pending[rank] += kept
            self.late[rank].append(position)
        elif line.backward[position]:
            self.held[rank] += line.activation[position][index]
            self.peak[rank] = max(self.peak[rank], self.held[rank])

    def weight(self, rank: int) -> None:
        """Run the weight gradient that a rank has put off longest."""
        position = self.late[rank].popleft()
        index = self.weights[position]
        self.weights[position] = index + 1
        self.now[rank] += self.line.time["W"][position][index]
        self.held[rank] -= self.line.kept[position][index]
        self.pending[rank] -= self.line.kept[position][index]
        self.rows[rank].append(("W", position))

    def weight_ns(self, rank: int) -> int:
        """Return how long the weight gradient takes that a rank has put off longest."""
        position = self.late[rank][0]
        return self.line.time["W"][position][self.weights[position]]

    def fill(self, rank: int, arrival: int) -> None:
        """Run the weight gradients that fit into the wait for an arrival."""
        while self.late[rank] and self.now[rank] + self.weight_ns(rank) <= arrival:
            self.weight(rank)

    def fits(self, position: int) -> bool:
        """Whether there is room for one more activation of a position on its rank."""
        rank, row = self.line.rank[position], self.line.activation[position]
        return self.held[rank] + row[len(self.ends["F"][position])] <= self.line.room[rank]

    def make_room(self, position: int) -> bool:
        """Run weight gradients until one more activation fits; return whether it does."""
        rank = self.line.rank[position]
        while not (fits := self.fits(position)) and self.late[rank]:
            self.weight(rank)
        return fits

    def finished(self) -> Found:
        """Run what is left of the weight gradients and sum up."""
        for rank, late in enumerate(self.late):
            while late:
                self.weight(rank)
        spans = [now - first for now, first in zip(self.now, self.first, strict=True)]
        return Found(self.rows, max(self.now) - min(self.first), max(spans), max(self.peak))
