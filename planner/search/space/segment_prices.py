"""What each stretch of the line takes and holds as a stage of one family, in each way to run its forwards again.

Besides the ways of `RECOMPUTE` the first layers of a stage may run again, as few as make it fit: each keeps what flows
into it, and while its backward runs all that it made. Leaves out what a stage receives besides its messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.stages.config import OFFLOAD, RECOMPUTE
from planner.plan.rank_order import RankOrder
from planner.question.problem import Problem
from planner.search.space.division_prices import LinePrices
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family_rows import FamilyRows
from planner.search.space.replica_prices import ReplicaPrices
from planner.search.space.stage_amounts import StageAmounts

NONE, FULL = RECOMPUTE.index("none"), RECOMPUTE.index("full")
LAYERS = len(RECOMPUTE)
"""The number of the way in which the first layers of a stage run again, behind those of `RECOMPUTE`."""
OFFLOADED = OFFLOAD.index("activations")


@dataclass(frozen=True)
class LayerSpans:
    """Where a line may be cut, and the layers between two such positions that follow each other.

    Attributes
    ----------
    positions : array of int
        Of the line of atoms, the first and the last among them.
    layer : array of int
        Number of the layer between a position and the next, which may be a part of it; -1 for none.
    """

    positions: Ints
    layer: Ints

    @property
    def is_layer(self) -> NDArray[np.bool_]:
        """Whether a layer, or a part of one, lies behind each position but the last."""
        found: NDArray[np.bool_] = self.layer >= 0
        return found

    @property
    def begins(self) -> NDArray[np.bool_]:
        """Whether a layer begins at each position but the last."""
        found: NDArray[np.bool_] = self.is_layer & (np.diff(self.layer, prepend=-1) != 0)
        return found

    @property
    def ends(self) -> Ints:
        """The first position no earlier than each that divides no layer; one more where there is none."""
        divides = np.concatenate([[False], (self.layer[1:] == self.layer[:-1]) & self.is_layer[1:], [False]])
        whole = np.flatnonzero(np.logical_not(divides))
        found: Ints = whole[np.searchsorted(whole, np.arange(len(divides)))]
        return np.concatenate([found, [len(divides)]])


@dataclass(frozen=True)
class WaysWithin:
    """The fastest way to run each stretch that fits, one row and column a position: infinite where none does.

    `held_bytes` is what it then holds; `until` the position before which layers run again in the way `LAYERS`.
    """

    works_ns: Floats
    held_bytes: Floats
    ways: Ints
    until: Ints


class SegmentPrices:
    """Prices of all stretches of the line as stages of one row of a table.

    Parameters
    ----------
    problem : Problem
    row : FamilyRows
        Of one row.
    line : LinePrices
    spans : LayerSpans
        Where the problem fixes how many layers of each stage run again, these do in the way `LAYERS`.
    orders : sequence of RankOrder
        By arrangement.
    """

    def __init__(
        self, problem: Problem, row: FamilyRows, line: LinePrices, spans: LayerSpans, orders: Sequence[RankOrder]
    ) -> None:
        size = len(spans.positions)
        self.firsts, self.afters = np.triu_indices(size, 1)
        self._spans, self._problem, self._size = spans, problem, size
        columns = (np.repeat(getattr(row, field.name), len(self.firsts)) for field in fields(row))
        rows = FamilyRows(*columns)
        model = problem.stage_model(problem.machines.device_of(0), int(row.size[0]))
        self._replicas = ReplicaPrices(problem, model, rows, orders)
        self._amounts = [
            StageAmounts(replace(rows, recompute=np.full_like(rows.recompute, way)), line, problem.training.coupled)
            for way in range(len(RECOMPUTE))
        ]
        self._ends = spans.positions[self.firsts], spans.positions[self.afters]
        self._number, self._sends = int(row.division[0]), line.crossing * line.message[int(row.division[0])]

    @cached_property
    def _plain(self) -> StageAmounts:
        return self._amounts[NONE]

    @cached_property
    def _static_bytes(self) -> Floats:
        """What stretches hold all the time, but for what runs again; messages at both ends of both borders."""
        rows, line, weights = self._plain.rows, self._plain.line, self._plain.weights(*self._ends)
        states = self._replicas.states_bytes(weights) + self._replicas.buffers_bytes(weights, np.ones_like(rows.chunks))
        last = (self.afters == self._size - 1) * line.workspace[self._number]
        sent = 2 * (self._sends[self._ends[0]] + self._sends[self._ends[1]])
        found: Floats = states + last + sent + self._replicas.workspace_bytes
        return found

    def _work_ns(self, way: int) -> Floats:
        """Return what stretches take of a micro-batch."""
        amounts = self._amounts[way]
        forward, backward = amounts.times(*self._ends)
        weights, stages = amounts.weights(*self._ends), amounts.rows.num_stages
        beside = self._replicas.with_microbatches_ns(weights, forward, backward, amounts.kept(*self._ends), stages)
        return forward + backward + beside

    @cached_property
    def closing_ns(self) -> Floats:
        """What stretches add once a step, as a square."""
        backward = self._plain.times(*self._ends)[1]
        closing: Floats = self._square(self._replicas.closing_ns(self._plain.weights(*self._ends), backward), 0.0)
        return closing

    @cached_property
    def _layers(self) -> tuple[Floats, Floats, float]:
        """Prefix sums over layers of their forwards and of what running them again frees, and the most one makes."""
        spans, number = self._spans, self._number
        first = spans.positions[:-1]
        line = self._plain.line
        forward = np.diff(line.forward[number][spans.positions]) * spans.is_layer
        made = np.diff(line.kept[NONE, number][spans.positions]) * spans.is_layer
        freed = np.maximum(0.0, made - self._sends[first] * spans.begins) * spans.is_layer
        sums = [np.concatenate([[0.0], np.cumsum(row)]) for row in (forward, freed)]
        most = np.bincount(spans.layer[spans.is_layer], made[spans.is_layer]).max(initial=0.0)
        return sums[0], sums[1], float(most)

    def within(self, limit_bytes: float, depth: int, ways: Sequence[int]) -> WaysWithin:
        """Return the fastest of some ways in which each stretch fits with that number of micro-batches in flight."""
        each = [self._of_way(way, limit_bytes, depth) for way in ways]
        times = np.array([np.where(held_bytes <= limit_bytes, work_ns, np.inf) for work_ns, held_bytes in each])
        best, number = np.argmin(times, axis=0), np.arange(len(self.firsts))
        held = np.array([held_bytes for _, held_bytes in each])
        return WaysWithin(
            self._square(times[best, number], np.inf),
            self._square(held[best, number], 0.0),
            self._square(np.array(ways)[best], NONE),
            self._square(self._until(limit_bytes, depth), 0),
        )

    def _of_way(self, way: int, limit_bytes: float, depth: int) -> tuple[Floats, Floats]:
        """Return what stretches take, and what they hold, in one way."""
        if way == LAYERS:
            again, freed, most = self._layers
            until = self._until(limit_bytes, depth)
            last = np.minimum(until, self.afters)
            left = self._static_bytes + most + depth * (self._kept[NONE] - freed[last] + freed[self.firsts])
            held = np.where(until > self.afters, np.inf, left)
            return self._works[NONE] + again[last] - again[self.firsts], held
        whole = self._problem.training.whole_stages
        kept = self._kept[way]
        if self._plain.rows.offload[0] == OFFLOADED:
            return self._works[way], self._static_bytes + 2 * kept
        if way == FULL and whole:
            return self._works[way], self._static_bytes + kept + depth * self._sends[self._ends[0]]
        peak = self._plain.line.peak[way, self._number] * (not whole)
        return self._works[way], self._static_bytes + depth * kept + peak

    def _until(self, limit_bytes: float, depth: int) -> Ints:
        """Return the position before which layers have to run again so that each stretch fits, beyond it if none do."""
        _, freed, most = self._layers
        fixed = self._problem.space.recompute_layers
        if fixed:
            count = np.concatenate([[0], np.cumsum(self._spans.is_layer)])
            last: Ints = np.minimum(np.searchsorted(count, count[self.firsts] + fixed), self.afters)
            return last
        lacking = self._static_bytes + depth * self._kept[NONE] + most - limit_bytes
        wanted = freed[self.firsts] + np.maximum(lacking, 1.0) / depth
        until = np.searchsorted(freed, wanted, side="left")
        found: Ints = np.where(until > self.afters, until, np.minimum(self._spans.ends[until], self.afters))
        return found

    @cached_property
    def _works(self) -> list[Floats]:
        return [self._work_ns(way) for way in range(len(RECOMPUTE))]

    @cached_property
    def _kept(self) -> list[Floats]:
        return [amounts.kept(*self._ends) for amounts in self._amounts]

    def _square(self, values: np.ndarray, other: float) -> np.ndarray:
        found = np.full((self._size, self._size), other, dtype=values.dtype)
        found[self.firsts, self.afters] = values
        return found
