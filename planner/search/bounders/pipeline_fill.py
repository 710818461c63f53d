"""Bounds of pipelines along a chain of bottleneck operators: how they fill, and how long activations are held.

A piece is a bottleneck with all operators up to the next one. Where both bottlenecks are in one stage, so is all
between them, or stages would wait on each other; so of s stages' cuts at most s - 1 pieces are divided. Of stages of
work b(1), ..., b(p) in a line, with s(i) the sum up to i and a part q of what is ahead that counts, q s(i - 1) + m b(i)
<= T, so s(i) <= (1 - q / m) s(i - 1) + T / m. A stage of r replicas that loses h of the step has T >= h + m b / r, so r
is at least the sum of m b(j) / (T - h(j)) over its pieces. What pieces keep, times how long, times m, is at most the
room of all places times T: the mean held is the rate of arrival times the stay (Little, 1961). Leaves out how a line
fills where backwards are split (`closed_form.py`), several types of devices, and what messages hold.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from costmodel.stages.config import RECOMPUTE
from costmodel.stages.strategies.amounts import NEVER
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem

NUM_WEIGHTS = 33
"""Ways to weigh work against memory of which the best bound is taken."""


def in_line_ns(prepared: PreparedProblem, family: Family) -> int:
    """Return a bound on every step of a family by how its line fills and what its places hold; 0 where neither says.

    Split backwards free what is kept with I, which is all that counts of them here.
    """
    line = line_of(prepared, family, adds=True)
    if line is None:
        return 0
    return max(0 if prepared.free_bounds.is_split_line(family) else line.fill_ns(), line.memory_pressure_ns())


def line_of(prepared: PreparedProblem, family: Family, *, adds: bool) -> "ChainBound | None":
    """Return a family's line; None where its stages form none, or their times are not known.

    Gradients are added up only where it is sure that the family `adds`.
    """
    models, split = prepared.families.models(family.microbatch_size), prepared.free_bounds.is_split_line(family)
    lines = split or prepared.free_bounds.fills(family)
    if len(models) > 1 or not lines or prepared.families.even_ns(family) is None:
        return None
    ranks, several = prepared.families.stage_ranks(family), prepared.families.microbatches_per_replica(family) > 1
    times, kept, again = models[0].stays(family.config, ranks, adds=adds and several, split_backward=split)
    pieces = prepared.free_bounds.bottlenecks.pieces
    return ChainBound(
        prepared,
        family,
        tuple(sum(times[i] for i in piece) for piece in pieces),
        tuple(prepared.free_bounds.bottlenecks.way(piece, times) for piece in pieces),
        tuple(sum(kept[i] for i in piece) for piece in pieces),
        tuple(sum(kept[i] for i in piece if again[i]) for piece in pieces),
        tuple(sum(again[i] for i in piece) for piece in pieces),
        prepared.families.even_ns(family, adds=adds) or 0,
    )


def by_replicas_ns(prepared: PreparedProblem, family: Family) -> int:
    """Return a bound for a family of one replica where each stage has a number of its own; 0 where it says nothing.

    A stage that holds an operator holds all pieces between its first bottleneck and that one, as far back as one device
    has room for their states. What comes before makes its replicas start late and end early by a way through it, h:
    with room for N replicas and m micro-batches of work b, m sum(b / (T - h)) <= N; those of other speeds count as so
    many.
    """
    problem, families = prepared.problem, prepared.families
    models, limits = families.models(family.microbatch_size), problem.memory_limits_bytes
    fitted = all(limits) and family.config.zero == 0 and prepared.free_bounds.fills(family)
    if len(models) > 1 or not fitted or families.even_ns(family) is None:
        return 0
    ranks, fastest = families.stage_ranks(family), max(problem.speeds)
    replicas = families.capacity(family, problem.num_devices // family.devices_per_stage)
    times = models[0].stays(family.config, ranks, adds=families.adds_by_replicas(family))[0]
    states, pieces = models[0].states_of(family.config, ranks), prepared.free_bounds.bottlenecks.pieces
    bottlenecks = [sum(times[i] for i in first) for first in prepared.free_bounds.bottlenecks.first]
    ways, room = [prepared.free_bounds.bottlenecks.way(piece, times) for piece in pieces], max(limits)
    heads, first, held, before = [], 0, 0, 0
    for piece in pieces:
        while held > room:
            held -= sum(states[i] for i in pieces[first])
            before += ways[first - 1] if first else 0
            first += 1
        heads.append(before + (bottlenecks[first - 1] if first else 0))
        held += sum(states[i] for i in piece)
    rows = [(sum(times[i] for i in piece), head) for piece, head in zip(pieces, heads, strict=True)]
    rows.append((sum(times) - sum(work for work, _ in rows), 0))
    count, low = families.microbatches_per_replica(family), heads[-1] / fastest
    high = low + count * sum(times) / min(1.0, replicas)
    while high - low > 1:
        middle = (low + high) / 2
        over = count * sum(work / (middle - head / fastest) for work, head in rows) > replicas
        low, high = (middle, high) if over else (low, middle)
    return int(low)


def held_by_replicas_ns(prepared: PreparedProblem, family: Family) -> int:
    """Return a bound for such a family by what all devices hold together, whatever forwards run again; `NEVER` if none.

    They hold each state once at least, and each micro-batch on one replica of every stage.
    """
    problem = prepared.problem
    if (
        prepared.families.max_pipeline_stages(family) * family.devices_per_stage
        < problem.num_devices - family.devices_per_stage + 1
    ):
        return 0  # stages are fewer than devices, which hold them all the same
    ways = (
        replace(family, config=replace(family.config, recompute=name))
        for name in RECOMPUTE
        if problem.space.allows("recompute", name)
    )
    adds = prepared.families.adds_by_replicas(family)
    found = []
    for one in ways:
        line = line_of(prepared, one, adds=adds)  # which replicas fill otherwise than stages of one device
        found.append(max(prepared.free_bounds.held_ns(one, adds=adds), line.memory_pressure_ns() if line else 0))
    return min(found)


@dataclass(frozen=True)
class ChainBound:
    """One family's line.

    Attributes
    ----------
    works, ways : tuple of int
        What each piece takes of one micro-batch, and its longest way from bottleneck to bottleneck alone.
    kept, spared, again : tuple of int
        Bytes that it keeps of one, those of operators that may run again, and what these forwards take.
    even_ns : int
        What all work takes, divided evenly.
    """

    prepared: PreparedProblem
    family: Family
    works: tuple[int, ...]
    ways: tuple[int, ...]
    kept: tuple[int, ...]
    spared: tuple[int, ...]
    again: tuple[int, ...]
    even_ns: int

    def fill_ns(self) -> int:
        """Return a bound by the filling of the line.

        What is ahead of a stage takes at least the ways through whole pieces: a part q of their work, but for one
        piece. So q (b(1) + .. + b(i - 1)) + m b(i) <= T, and p stages hold at most T / q (1 - (1 - q / m)^p).
        """
        families = self.prepared.families
        places, count = families.max_pipeline_stages(self.family), families.microbatches_per_replica(self.family)
        part = min(way / max(1, work) for way, work in zip(accumulate(self.ways), accumulate(self.works), strict=True))
        if not part:
            return 0
        filled = sum(self.works) * part / (1 - (1 - part / count) ** places)
        bottlenecks = self.prepared.free_bounds.bottlenecks
        divided = (
            work for piece, work in zip(bottlenecks.pieces, self.works, strict=True) if not bottlenecks.has(piece)
        )
        return int((filled - part * max(divided, default=0)) / max(self.prepared.problem.speeds))

    def memory_pressure_ns(self) -> int:
        """Return a bound by what the places can hold; 0 where that is no limit.

        With m micro-batches, kept bytes a, stays w and room M over p places, T M >= m sum(a w); what runs again lowers
        the sum and lengthens the work: any weighted mean of the two is below T for the choice that makes it least.
        """
        families, problem = self.prepared.families, self.prepared.problem
        if not all(problem.memory_limits_bytes) or self.family.config.offload == "activations":
            return 0
        places, count = families.max_pipeline_stages(self.family), families.microbatches_per_replica(self.family)
        room = places * max(problem.memory_limits_bytes) - families.states_bytes(self.family)
        if room <= 0:
            return NEVER
        rate, price = count / (room * max(problem.speeds)), np.array(self.again) * (count / places)
        price /= max(problem.speeds)
        if not price.any():
            return int(max(self.even_ns, self._held(places) * rate))
        weights = np.linspace(0.0, 1.0, NUM_WEIGHTS)[:, None]
        gain = np.array([size * behind for size, behind in zip(self.spared, self._left, strict=True)]) * rate
        run_again = most_of_stretches((1 - weights) * gain - weights * price, places)
        by_stretches = (1 - weights[:, 0]) * self._held(places) * rate - run_again
        by_pieces = self._least_of_pieces((1 - weights) * rate, weights * price, places)
        return int((weights[:, 0] * self.even_ns + np.maximum(by_stretches, by_pieces)).max())

    @property
    def _left(self) -> list[int]:
        """What each piece and all behind it take."""
        return [*accumulate(reversed(self.works))][::-1]

    def _held(self, places: int) -> int:
        """Return the least sum of kept bytes times stays where nothing runs again, of all but the divided pieces."""
        divided = [
            size * behind + before * work
            for size, behind, before, work in zip(self.kept, self._left, accumulate(self.kept), self.works, strict=True)
        ]
        held = sum(size * behind for size, behind in zip(self.kept, self._left, strict=True))
        return held - sum(sorted(divided, reverse=True)[: places - 1])

    def _least_of_pieces(self, rates: np.ndarray, prices: np.ndarray, places: int) -> np.ndarray:
        """Return the least that pieces cost, one row a weight, each the cheaper of being kept and run again.

        Of what is behind a piece the longest p - 1 may be divided, and so may the p - 1 dearest pieces themselves.
        """
        works = np.array(self.works, float)
        stays = np.array([works[i:].sum() - _sum_of_largest(works[i:], places - 1) for i in range(len(works))])
        kept, spared = rates * (np.array(self.kept) * stays), rates * (np.array(self.spared) * stays)
        cost = np.where(np.array(self.again) > 0, np.minimum(kept, kept - spared + prices), kept)
        dearest = np.array([_sum_of_largest(row, places - 1) for row in cost])
        least: np.ndarray = cost.sum(axis=1) - dearest
        return least


def _sum_of_largest(values: np.ndarray, number: int) -> float:
    """Return the sum of the `number` largest values."""
    return float(np.sort(values)[max(0, len(values) - number) :].sum()) if number else 0.0


def most_of_stretches(rows: np.ndarray, number: int) -> np.ndarray:
    """Return for each row the largest sum of at most `number` stretches of it; 0 for none."""
    if number >= rows.shape[1]:
        found: np.ndarray = rows.clip(min=0.0).sum(axis=1)
        return found
    outside, inside = np.zeros((len(rows), number + 1)), np.full((len(rows), number + 1), -np.inf)
    for column in rows.T:
        inside[:, 1:] = np.maximum(inside[:, 1:], outside[:, :-1]) + column[:, None]
        np.maximum(outside, inside, out=outside)
    most: np.ndarray = outside.max(axis=1)
    return most
