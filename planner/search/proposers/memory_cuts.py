"""Cuts that know memory: the first stages of a pipeline, which keep most micro-batches, get less or run more again.

A family of the table whose even cut is near or over the memory is cut anew by one dynamic programme over its line
(`planner.search.solvers.depth_dp`), in which each stage runs the fastest of the ways that fit there: nothing again,
attention, all, or the first few of its layers. Where the trainer takes stages alike only, each way is tried by itself.
Leaves out several stages a place, split backwards, and what besides recompute differs by stage.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

import numpy as np

from costmodel.stages.config import RECOMPUTE, recomputed
from planner.candidate.candidate import Candidate, StagePlacement
from planner.candidate.evaluate import Evaluated
from planner.candidate.fit import NO_LIMIT
from planner.candidate.upper_memory import upper_bytes
from planner.graph.atoms import Partition
from planner.question.targets import LINE_TARGETS
from planner.search.proposers.low_traffic import BorderTimes
from planner.search.solvers.depth_dp import cuts_by_depth
from planner.search.space.even_stages import Floats
from planner.search.space.family_table import FamilyTable
from planner.search.space.open_choices import allows_recompute_by_stage
from planner.search.space.segment_prices import FULL, LAYERS, NONE, LayerSpans, SegmentPrices
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState, Subsolver

NUM_ROWS = 12
"""Families that are cut so while the best plan stays the same."""
NEAR, CERTAIN = 0.9, 0.98
"""Part of the memory from which on it decides how an even cut is best made unevenly, and part of the best step below
which estimates count."""
MOST_ATOMS, MOST_STAGES = 256, 16
"""Atoms and stages up to which layers are divided, too."""
NUM_SIMULATED, NUM_PROGRAMMES = 2, 5
"""Cuts of each programme that are simulated, and programmes of a family, each with less room by what the estimates of
the one before missed."""


def rows_to_cut(prepared: PreparedProblem, table: FamilyTable, best_ns: float) -> Iterator[int]:
    """Yield the rows of one stage a place whose memory binds, and that may come to be faster than this.

    Those first whose estimate is least, as many layers running again as make an even cut fit.
    """
    for row, step_ns in sorted(_estimates(prepared, table).items(), key=lambda found: found[1]):
        if CERTAIN * step_ns < best_ns:
            yield row


def _estimates(prepared: PreparedProblem, table: FamilyTable) -> dict[int, float]:
    """Return rows that are near the memory as they are, with estimates of their steps as they may be made to fit."""
    rows, limit, found = table.rows, prepared.most_bytes, dict[int, float]()
    single = (rows.chunks == 1) & (rows.places > 1) & (rows.count > 1)
    columns = [rows.division, rows.data, rows.places, rows.arrangement, rows.zero, rows.offload]
    order = np.lexsort((rows.recompute, *columns))
    for _, group in groupby(order[single[order]].tolist(), key=lambda i: tuple(int(column[i]) for column in columns)):
        alike = list(group)
        plain, least = alike[0], min(table.memory_bytes[alike])
        over = float(table.memory_bytes[plain]) / limit
        if not prepared.problem.space.recompute_layers and (over < NEAR or NEAR * least > limit):
            continue
        saved = float(table.memory_bytes[plain] - least)
        part = min(1.0, max(0.0, float(table.memory_bytes[plain]) - limit) / saved) if saved else 0.0
        slowest = float(max(table.step_ns[alike]))
        found[plain] = float(table.step_ns[plain]) + part * (slowest - float(table.step_ns[plain]))
    return found


class MemoryCuts:
    """The uneven cuts of one row of the table.

    Parameters
    ----------
    prepared : PreparedProblem
    row : int
        Of `PreparedProblem.table`.
    spans : LayerSpans
        Where it may be cut.
    """

    def __init__(self, prepared: PreparedProblem, table: FamilyTable, row: int, spans: LayerSpans) -> None:
        self._prepared, self._cuts = prepared, prepared.cuts(table.family(row))
        self._places = int(table.rows.places[row])
        self._order, self._spans = prepared.orders[0], spans
        only = table.rows.where(np.arange(len(table)) == row)
        orders = prepared.families.rank_orders
        self._prices = SegmentPrices(prepared.problem, only, table.line, self._spans, orders)

    def found(self, best_ns: float, *, for_sure: bool) -> Iterator[Evaluated]:
        """Yield cuts that are estimated to be faster than this, simulated, while programmes learn from them.

        They fit by the estimate of memory, or for sure, by its upper bound.
        """
        for ways in self._choices():
            missed, seen = np.zeros(self._places), set[Candidate]()
            for _ in range(NUM_PROGRAMMES):
                tried = list(self._candidates(ways, missed, best_ns))
                if not tried or tried[0][0] in seen:
                    break
                seen.add(tried[0][0])
                under = [each for found, _ in tried for each in self._prepared.evaluated(found)]
                yield from under
                fit = filter(self._prepared.fits_for_sure, under) if for_sure else (each for each in under if each.fits)
                fitting = [each.step_time_ns for each in fit]
                best_ns = min([best_ns, *fitting])
                errors = self._missed_bytes(*tried[0], for_sure=for_sure)
                missed = errors if fitting else np.maximum(missed, errors)

    def _missed_bytes(self, candidate: Candidate, held_bytes: Floats, *, for_sure: bool) -> Floats:
        """Return by how much more the rank of each stage holds, or may hold, than was estimated."""
        evaluator = self._cuts.evaluator
        run = evaluator.shortest(candidate)
        held = upper_bytes(evaluator, candidate, run) if for_sure else run.times.peak_memory_bytes
        peaks: Floats = np.array(held, float).reshape(self._places, -1).max(axis=1)
        return peaks - held_bytes + for_sure * self._prepared.problem.memory_margin_bytes

    def _choices(self) -> list[tuple[int, ...]]:
        """Return the ways among which stages may choose, one set after the other.

        What attention keeps is no part of a set: the bounds of full recompute stand for stretches that run again.
        """
        problem, config = self._prepared.problem, self._cuts.family.config
        ways = [i for i, name in enumerate(RECOMPUTE) if problem.space.allows("recompute", name)]
        if problem.space.recompute_layers:
            return [(LAYERS,)]
        if not allows_recompute_by_stage(problem):
            return [(way,) for way in ways]
        layers = self._spans.is_layer.any() and config.offload != "activations"
        return [(NONE, FULL, LAYERS) if layers else (NONE, FULL)]

    def _candidates(self, ways: Sequence[int], missed: Floats, best_ns: float) -> Iterator[tuple[Candidate, Floats]]:
        """Yield cuts with what their stages are estimated to hold."""
        cuts, places, problem = self._cuts, self._places, self._prepared.problem
        placed = cuts.places_in_loop(places)
        known = problem.memory_limits_bytes
        limits = [
            min(known[rank] or NO_LIMIT for rank in place.ranks) - more
            for place, more in zip(placed, missed.tolist(), strict=True)
        ]
        depths = [min(cuts.num_microbatches, places - stage) for stage in range(places)]
        within = [self._prices.within(limit, depth, ways) for limit, depth in zip(limits, depths, strict=True)]
        speeds = np.array(cuts.speeds[:places])[:, None, None]
        works = np.array([each.works_ns for each in within]) / speeds
        closing = self._prices.closing_ns[None] / speeds
        borders = BorderTimes(cuts, self._order, places).times
        messages = np.array([row[self._spans.positions] for row in borders])
        found = cuts_by_depth(works, closing, messages, cuts.num_microbatches, best_ns / CERTAIN, NUM_SIMULATED)
        for _, begins in found:
            ends = (*begins[1:], len(self._spans.positions) - 1)
            stages = list(zip(within, begins, ends, strict=True))
            chosen = [(int(each.ways[i, j]), int(each.until[i, j])) for each, i, j in stages]
            yield self._candidate(begins, chosen), np.array([each.held_bytes[i, j] for each, i, j in stages])

    def _candidate(self, begins: Sequence[int], chosen: Sequence[tuple[int, int]]) -> Candidate:
        """Return a cut whose stages run in the ways that were chosen for them."""
        starts = self._spans.positions[list(begins)]
        stage_of = dict(
            zip(self._order, np.searchsorted(starts, np.arange(len(self._order)), "right") - 1, strict=True)
        )
        partition: Partition = tuple(int(stage_of[atom]) for atom in range(len(self._order)))
        plain = self._cuts.candidate(partition, self._cuts.schedules[0], line=self._cuts.always_line)
        rows = zip(plain.places, begins, chosen, strict=True)
        places = tuple(self._placed(place, first, *way) for place, first, way in rows)
        return replace(plain, places=places)

    def _placed(self, place: StagePlacement, first: int, way: int, until: int) -> StagePlacement:
        if self._prepared.problem.space.recompute_layers:
            return place
        if way == LAYERS:
            graph = self._prepared.problem.profile.graph
            atoms = self._order[slice(*self._spans.positions[[first, until]].tolist())]
            members = sorted(i for atom in atoms for i in self._cuts.atoms.members[atom])
            config = recomputed(place.config, tuple(graph.operators[i].name for i in members if graph.blocks[i]))
        else:
            config = replace(place.config, recompute=RECOMPUTE[way])
        return replace(place, config=config)


class CutsWithinMemory(Subsolver):
    """Uneven cuts of the families whose memory binds, the most promising first."""

    name, kind = "cuts within memory", "first"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether memory may bind, no pins place stages, and these need not be the chain planner's own."""
        pinned = state.prepared.pinned.places or state.problem.planner == "chain"
        return not pinned and any(state.problem.memory_limits_bytes)

    def steps(self) -> Generator[None]:
        """Cut one family after the other, so that it fits by the estimate, and then for sure, if that is preferred."""
        state, table = self.state, self.state.prepared.table
        if table is None:
            return
        ways = (False, True) if state.problem.prefers_room else (False,)
        for row in islice(rows_to_cut(state.prepared, table, self._best_ns(for_sure=ways[-1])), NUM_ROWS):
            family = table.family(row)
            if row not in self.done and state.pool.runs_config(family.config, pipelined=True):
                self.done.add(row)
                for for_sure in ways:
                    yield from self._cut(table, row, for_sure=for_sure)

    def _cut(self, table: FamilyTable, row: int, *, for_sure: bool) -> Generator[None]:
        """Cut a family between layers, and anywhere if that brought something."""
        for spans in self._spans(int(table.rows.places[row])):
            before_ns = self._best_ns(for_sure=for_sure)
            with self.state.prepared.dropped.candidate():
                cuts = MemoryCuts(self.state.prepared, table, row, spans)
                self.state.pool.offer(cuts.found(before_ns, for_sure=for_sure))
            yield
            if self._best_ns(for_sure=for_sure) >= before_ns:
                break

    def _best_ns(self, *, for_sure: bool) -> float:
        """Return the step of the best plan that the target runs and that fits, by the estimate or for sure."""
        pool = self.state.pool
        if not for_sure:
            return float(pool.best.step_time_ns) if self.state.has_plan() else np.inf
        own = sorted((each for each in pool.found.values() if pool.runs(each)), key=lambda each: each.sort_key)
        return next((float(each.step_time_ns) for each in own if self.state.prepared.fits_for_sure(each)), np.inf)

    def _spans(self, places: int) -> list[LayerSpans]:
        """Return where a line is cut first, and where it is cut if that brought something: anywhere, if soon done."""
        prepared = self.state.prepared
        few = len(prepared.atoms) <= MOST_ATOMS and places <= MOST_STAGES
        whole = prepared.problem.target in LINE_TARGETS or prepared.problem.space.recompute_layers
        return [prepared.layer_spans, prepared.atom_spans] if few and not whole else [prepared.layer_spans]
