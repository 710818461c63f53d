"""The first plans of a search: shapes that people use, then the best of all families by estimate.

A shape is tensor parallelism within a host, pipelines across hosts and replicas, with experts spread as far as they go
or over eight ranks; of each the first way to save memory counts that is estimated to fit: ZeRO-1, 2, 3, then the same
with recompute, then offload (the table of `docs/planning.md`). A few of these are simulated, then the fastest of all
families by estimate, then other cuts and schedules of the best, split backwards of short ones, and the fastest that fit
for sure. What is simulated and fits goes to the incumbents. Leaves out families with context degrees that no long
sequence asks for, and those that divide operators across hosts, which the search looks at later.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from operator import itemgetter

import numpy as np

from costmodel.stages.strategies.amounts import NEVER
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.search.bounders.priced_cut import could_hold
from planner.search.budget import SPARE_S, Deadline, WriteReserve, most_actions, too_long, writing_s
from planner.search.proposers.balanced_partitions import balanced_partitions
from planner.search.proposers.split_orders import evaluated_split, with_split_orders
from planner.search.space.family import Family
from planner.search.space.family_rows import distinct
from planner.search.space.family_table import FamilyTable
from planner.search.space.open_choices import allows_split_backward
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import Subsolver

NUM_SHAPES = 3
"""Known shapes that are simulated, the fastest by estimate, and the fastest of each strategy of one stage."""
NUM_FIRST, NUM_BEST = 10, 30
"""Rows of the small and of the large table that are priced, the fastest by estimate."""
NUM_ALIKE = 3
"""Of these, rows that differ in micro-batch size, ZeRO and recompute alone."""
NUM_FIRST_RECUT, NUM_RECUT = 2, 4
"""Best families whose other cuts and schedules are simulated, too."""
FIRST_ACTIONS = 4_000
"""Actions of a short plan: it is recut, and halved, whatever the clock says, for that takes a fraction of a second."""
FEW_ACTIONS, GAINS = 500, 0.98
"""Actions up to which halving takes no time to speak of; beyond, the part of the best step below which its estimate is
worth that time before the first plan is told."""
FIRST_WORK = 100_000
"""Actions of all plans after which the first plan is told, once one fits."""
CERTAIN = 0.93
"""Part of an estimate below which no simulated step was seen while rows near the best were compared."""
CAUTIOUS = 0.9
"""Part of the memory that estimates may fill where those that fill all of it were not found to fit."""


class FirstPlans:
    """Proposes plans from the tables of a search's families.

    Parameters
    ----------
    prepared : PreparedProblem
    pool : CandidatePool
    writing : WriteReserve
    limits : Deadline
    """

    def __init__(self, prepared: PreparedProblem, pool: CandidatePool, writing: WriteReserve, limits: Deadline) -> None:
        self.prepared, self.pool, self.limits, self._writing = prepared, pool, limits, writing
        self._limit_bytes = prepared.most_bytes
        self.tried: set[Family] = set()
        self.found: dict[Family, Evaluated] = {}
        """The best simulated plan of each family that was tried and fits."""
        self._held_back: list[Evaluated] | None = None
        self._recut_already: set[Family] = set()
        self._split_ns: dict[tuple[Family, int], float] = {}
        self._work = 0
        self._simulated: set[tuple[Family, Partition, str]] = set()

    def first(self) -> None:
        """Take the best of known shapes, of the small table's rows and of other cuts of these, all at once.

        The first plan that is told is worth waiting for: what is simulated before it takes a fraction of a second.
        """
        table = self.prepared.small_table
        if not table:
            return
        self._held_back = []
        try:
            self._try_shapes(table)
            self._try_best(table, NUM_FIRST)
            self._recut(NUM_FIRST_RECUT)
            self._split_backward(self._held_back)
        finally:
            held, self._held_back = self._held_back, None
            self.pool.offer(sorted(held, key=self._turn))

    def more(self) -> None:
        """Take the best rows of the large table, and other cuts of the best."""
        table = None if self.limits.expired and self._fits else self.prepared.table
        if table:
            self._try_best(table, NUM_BEST)
            self._recut(NUM_RECUT)

    def with_room(self) -> None:
        """Take the best rows of the large table that may fit for sure, where plans that do are preferred.

        How far upper bounds are above the table's estimates is learnt from what was simulated, of rows that have in
        common whether there are experts, a pipeline and ZeRO-3.
        """
        table, problem = self.prepared.table, self.prepared.problem
        if not table or not problem.prefers_room or not any(problem.memory_limits_bytes):
            return
        rows, above, sure_ns, number = table.rows, dict[tuple[bool, ...], float](), np.inf, 0
        for row in table.by_estimate(self._limit_bytes):
            if number == NUM_BEST or CERTAIN * table.step_ns[row] > sure_ns:
                return
            if self.limits.expired and (number >= NUM_FIRST or sure_ns < np.inf):
                return
            kind = bool(rows.expert[row] > 1), bool(rows.places[row] > 1), bool(rows.zero[row] > 2)
            if table.memory_bytes[row] * above.get(kind, 1.0) > self._limit_bytes:
                continue
            number += 1
            self._try(table, row)
            if each := self.found.get(table.family(row)):
                part = self.prepared.filled(each)
                if part <= 1:
                    sure_ns = min(sure_ns, each.step_time_ns)
                else:
                    above[kind] = part * self._limit_bytes / table.memory_bytes[row]

    def _turn(self, each: Evaluated) -> tuple[object, ...]:
        """Order plans: those that can be written in time first, the fastest of them before others."""
        return not self._writing.fits(each.num_actions, each.copies), each.sort_key

    @property
    def _fits(self) -> bool:
        return bool(self.found) or self.pool.best_fits

    @property
    def _is_enough(self) -> bool:
        """Whether a plan fits, and more would keep people waiting for the first."""
        return self._held_back is not None and self._fits and self._work >= FIRST_WORK

    @property
    def _best_ns(self) -> float:
        known = [each.step_time_ns for each in self.found.values()]
        return min([*known, self.pool.best.step_time_ns if self.pool.best_fits else np.inf])

    def _try_shapes(self, table: FamilyTable) -> None:
        """Simulate shapes that people use until some fit, and one with tensor parallelism, which the ladder shows.

        Where none fits, those that hold least.
        """
        whole, cautious = (list(self._shapes(table, part * self._limit_bytes)) for part in (1.0, CAUTIOUS))
        for shapes in (whole, cautious):
            for row in dict.fromkeys((*self._some(table, shapes, NUM_SHAPES), *self._of_one_stage(table, shapes))):
                self._try(table, row)
            if self._fits:
                break
        else:
            for row in np.argsort(table.memory_bytes, kind="stable")[:NUM_SHAPES].tolist():
                self._try(table, row)
        for row in [row for row in cautious if table.rows.tensor[row] > 1][:1]:
            self._try(table, row)

    @staticmethod
    def _of_one_stage(table: FamilyTable, shapes: Iterable[int]) -> Iterator[int]:
        """Yield the fastest row of each ZeRO among shapes of one undivided stage: what people try first."""
        rows, seen = table.rows, set[int]()
        for row in shapes:
            zero = int(rows.zero[row])
            if rows.places[row] == rows.tensor[row] * rows.context[row] == 1 and zero not in seen:
                seen.add(zero)
                yield row

    def _try_best(self, table: FamilyTable, number: int) -> None:
        for row in self._some(table, self._best(table), number):
            if self.limits.expired and self._fits and self._held_back is None:
                return
            self._try(table, row)

    def _recut(self, number: int) -> None:
        """Simulate other cuts and schedules of the best families."""
        best = sorted(self.found.items(), key=lambda row: row[1].step_time_ns)[:number]
        for family, each in best:
            cuts, places = self.prepared.cuts(family), len(set(each.candidate.places))
            if places == 1 or family in self._recut_already or self._is_enough:
                continue
            self._recut_already.add(family)
            for partition in dict.fromkeys(
                chain((each.candidate.partition,), balanced_partitions(self.prepared, cuts, places))
            ):
                if self.limits.expired and each.num_actions > FIRST_ACTIONS:
                    return
                self._simulate(cuts, partition, tuple(dict.fromkeys((cuts.schedules[0], cuts.schedules[-1]))))

    def _split_backward(self, known: list[Evaluated]) -> None:
        """Run split backwards of the short plan whose step with split backwards is estimated to be the shortest."""
        if not allows_split_backward(self.prepared.problem) or self.prepared.pinned.in_flight:
            return
        estimates = [
            (self._split_ns.get((family, len(set(each.candidate.places))), np.inf), family, each)
            for family, each in self.found.items()
            if each.num_actions <= FIRST_ACTIONS and each.candidate.num_stages > 1
        ]
        if not estimates:
            return
        estimate_ns, family, chosen = min(estimates, key=itemgetter(0))
        likely = estimate_ns if chosen.num_actions > FEW_ACTIONS else CERTAIN * estimate_ns
        if likely > GAINS * self._best_ns:
            return
        for split, each in evaluated_split(self.prepared, with_split_orders(chosen.candidate), family):
            known.append(each)
            if split:
                self.tried.add(split)

    def _shapes(self, table: FamilyTable, limit_bytes: float) -> Iterator[int]:
        """Yield of each shape and micro-batch size the plainest row that is estimated to fit, the fastest first."""
        rows = table.rows
        fits = np.flatnonzero(table.memory_bytes <= limit_bytes)
        pipeline = rows.places, rows.chunks, rows.arrangement
        keys = rows.tensor, rows.context, rows.expert, rows.expert_tensor, rows.data, rows.size, *pipeline
        # full recompute after every ZeRO, offload after all: the first of a shape is the plainest
        # a host's replicas divide states only where that is estimated to be faster
        plain = np.lexsort((rows.shard_group[fits] == 0, rows.zero[fits], rows.recompute[fits], rows.offload[fits]))
        first, _ = distinct(*(column[fits][plain] for column in keys))
        chosen = fits[plain[first]]
        yield from chosen[np.argsort(table.step_ns[chosen], kind="stable")].tolist()

    def _best(self, table: FamilyTable) -> Iterator[int]:
        """Yield rows, the fastest first, a few alike, while their estimates may beat the best plan."""
        rows, number = table.rows, dict[tuple[int, ...], int]()
        step_ns = table.split_ns if allows_split_backward(self.prepared.problem) else table.step_ns
        for row in table.by_estimate(self._limit_bytes, step_ns):
            if CERTAIN * step_ns[row] > self._best_ns:
                return
            columns = rows.tensor, rows.places, rows.chunks, rows.expert, rows.expert_tensor, rows.arrangement
            key = tuple(int(column[row]) for column in columns)
            number[key] = number.get(key, 0) + 1
            if number[key] <= NUM_ALIKE:
                yield row

    def _some(self, table: FamilyTable, rows: Iterable[int], number: int) -> Iterator[int]:
        """Yield the first rows that can be written in time, then as many that can in half of that time, and so on.

        So that a longer limit, which allows longer plans, leaves out none that a shorter one takes.
        """
        per_action = {copies: writing_s(1, copies) for copies in np.unique(table.rows.data).tolist()}
        seconds = table.num_actions * np.array([per_action[copies] for copies in table.rows.data.tolist()])
        known = seconds[table.num_actions * table.rows.data <= most_actions()]
        most = min(self._writing.most_s, max(SPARE_S, known.max(initial=0.0)))
        shortest = min(SPARE_S, most)  # a busy machine may leave less
        levels = np.maximum(0, np.ceil(np.log2(seconds / shortest))).astype(int)
        left = [number] * (1 + int(np.floor(np.log2(most / shortest))))
        for row in rows:
            open_ones = [level for level in range(levels[row], len(left)) if left[level]]
            for level in open_ones:
                left[level] -= 1
            if open_ones:
                yield row
            elif not any(left):
                return

    def _is_short(self, cuts: FamilyPartitions, actions: int) -> bool:
        copies = cuts.family.config.data
        return not too_long(actions, copies) and self._writing.fits(actions, copies)

    def _try(self, table: FamilyTable, row: int) -> None:
        """Simulate the even cut of a row: into equally many layers where there is one and devices are alike."""
        family, places = table.family(row), int(table.rows.places[row])
        self._split_ns[family, places] = float(table.split_ns[row])
        cuts = self.prepared.cuts(family)
        layers = None if self.prepared.families.unlike else self.prepared.equal_layers(places * family.chunks)
        for partition in dict.fromkeys(filter(None, (layers, table.partition(row)))):
            self._simulate(cuts, partition, cuts.schedules[:1])
            known, estimate_ns = self.found.get(family), float(table.step_ns[row])
            slow = known is not None and CERTAIN * known.step_time_ns > estimate_ns
            if slow and CERTAIN * estimate_ns < self._best_ns:  # messages, which more in flight may hide
                self._simulate(cuts, partition, cuts.schedules[-1:])

    def _simulate(self, cuts: FamilyPartitions, partition: Partition, schedules: Iterable[str]) -> None:
        """Simulate a cut that holds its micro-batches, and tell the pool."""
        family, places = cuts.family, cuts.places_of(partition)
        actions = cuts.about_actions(places)
        schedules = tuple(name for name in schedules if (family, partition, name) not in self._simulated)
        if not schedules or self._is_enough or not self._is_short(cuts, actions):
            return
        self._work += actions
        self.tried.add(family)
        self._simulated.update((family, partition, name) for name in schedules)
        with self.prepared.dropped.candidate():
            candidate = cuts.candidate(partition, cuts.schedules[0], line=cuts.always_line)
            priced = cuts.evaluator.pricer.price(partition, candidate.places, candidate.line)
            if self._fits and not could_hold(priced, cuts, int(min(self._limit_bytes, NEVER))):
                return
            for each in cuts.evaluate_under(partition, schedules, line=cuts.always_line):
                if self._held_back is None:
                    self.pool.offer([each])
                else:
                    self._held_back.append(each)
                known = self.found.get(family)
                if each.fits and (known is None or each.step_time_ns < known.step_time_ns):
                    self.found[family] = each


class KnownShapes(Subsolver):
    """Known shapes first, then the best of the table of all families."""

    name, kind = "known shapes", "first"

    def steps(self) -> Generator[None]:
        """Offer what shapes come to, then the best rows of the table."""
        state = self.state
        plans = FirstPlans(state.prepared, state.pool, state.writing, state.limits)
        for step in (plans.first, plans.more, plans.with_room):
            step()
            for family in plans.tried:
                state.bounds.know(family)
                state.look_at(replace(family, split=False))
            yield
