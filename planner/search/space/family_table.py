"""All families of a space as arrays: an estimate of the step, and of the memory of the fullest rank.

One row is a family with its number of places. Estimates are of stages that divide the line of atoms evenly; they order
the search and are never shown, for the simulator ranks what they propose. Leaves out stage graphs, replicas by stage,
split backward, and pins.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.stages.config import OFFLOAD, RECOMPUTE, StageConfig
from planner.graph.atoms import Atoms, Partition
from planner.graph.topological_orders import Order
from planner.plan.rank_order import RankOrder
from planner.question.in_stage_support import rank_order_refusal
from planner.question.problem import Problem
from planner.question.targets import RUNNERS, config_not_run
from planner.search.space.device_permutations import link_sizes
from planner.search.space.division_prices import DivisionPrices, LinePrices, OperatorDegrees
from planner.search.space.estimates import Estimates
from planner.search.space.even_cuts import EvenCuts, even_cuts
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family import Family
from planner.search.space.family_rows import FamilyRows, distinct
from planner.search.space.family_work import Families
from planner.search.space.replica_prices import ReplicaPrices

EAGER = frozenset({"eager-1f1b", "graph-eager-1f1b"})
"""Schedules under which compute waits for no message that is shorter than it."""


WORTH = 0.995
"""Part of its step that a family has left at most where fewer replicas divide its states, or ranks stand otherwise."""


class TableSetting(Protocol):
    """What a table takes of a prepared problem (`planner.search.state.prepared.PreparedProblem`)."""

    problem: Problem

    @property
    def families(self) -> Families:
        """The space."""

    @property
    def atoms(self) -> Atoms:
        """The pieces between which cuts are sought."""

    @property
    def orders(self) -> Sequence[Order]:
        """Orders of the atoms; the first is the line."""


class FamilyTable:
    """The rows of some of a space's families.

    Parameters
    ----------
    prepared : TableSetting
    prices : DivisionPrices
        Shared by the tables of one search.
    configs : iterable of StageConfig
        Degrees alone; `FamilySpace.degrees` has all of them.
    """

    def __init__(self, prepared: TableSetting, prices: DivisionPrices, configs: Iterable[StageConfig]) -> None:
        self.prepared, self._prices = prepared, prices
        self._divisions: dict[tuple[OperatorDegrees, int], int] = {}
        self.rows = self._made(configs)
        if len(self.rows):
            self._estimate()

    def __len__(self) -> int:
        return len(self.rows)

    def _made(self, configs: Iterable[StageConfig]) -> FamilyRows:
        problem, families = self.prepared.problem, self.prepared.families
        found = []
        for config in configs:
            division = OperatorDegrees(*config.division[1:])
            permutations = range(len(families.device_permutations))
            for size in problem.microbatch_sizes_of(config.data):
                count = problem.global_batch // (size * config.data)
                number = self._divisions.setdefault((division, size), len(self._divisions))
                head = (number, *division, config.data, size, count)
                groups = families.shard_groups(config)
                ends = [(groups[0], groups[-1])] if groups else []
                for places in self._numbers_of_places(config):
                    for chunks in families.chunks_of(places):
                        if chunks == 1 or count >= places:
                            found += [(*head, places, chunks, index, *each) for each in ends for index in permutations]
        table = np.array(found, dtype=np.int64).reshape(-1, 14)
        choices = np.array(self._choices(), dtype=np.int64).reshape(-1, 3)
        whole, own = np.repeat(table, len(choices), axis=0), np.tile(choices, (len(table), 1))
        several = whole[:, 3] * whole[:, 6] > 1
        whole, own = (part[(own[:, 0] == 0) | several] for part in (whole, own))
        self._twin_of = np.flatnonzero((own[:, 0] > 0) & (whole[:, -1] != whole[:, -2]))
        twins = whole[self._twin_of]
        twins[:, -2] = twins[:, -1]
        whole, own = np.concatenate([whole, twins]), np.concatenate([own, own[self._twin_of]])
        return self._in_other_orders(FamilyRows(*whole.T[:-1], *own.T))

    def _in_other_orders(self, rows: FamilyRows) -> FamilyRows:
        """Return rows, and behind them those that other rank orders place on other links."""
        families = self.prepared.families
        for index in range(len(families.device_permutations), len(families.arrangements)):
            own, usual = rows.replica_ranks, rows.arrangement == 0
            sizes = [(own < size) & (size < rows.ranks * rows.places) for size in link_sizes(self.prepared.problem)]
            moves = usual & (rows.ranks > own) & (rows.places > 1) & np.logical_or.reduce(sizes)
            moves[moves] = self._run_in(families.arrangements[index].rank_order, rows.where(moves))
            self._twin_of = np.concatenate([self._twin_of, np.flatnonzero(moves)])
            rows = rows.and_again(moves, arrangement=index)
        return rows

    def _run_in(self, order: RankOrder, rows: FamilyRows) -> NDArray[np.bool_]:
        """Return which rows the target runs in a rank order."""
        first, number = distinct(rows.context, rows.expert)
        alike = (StageConfig(context=int(rows.context[row]), expert=int(rows.expert[row])) for row in first)
        target = self.prepared.problem.target
        return np.array([not rank_order_refusal(target, order, config) for config in alike], dtype=bool)[number]

    def _numbers_of_places(self, config: StageConfig) -> list[int]:
        """Return the most places, and fewer that use more than half of the devices: divisors and powers of two."""
        problem, size = self.prepared.problem, config.data * config.tensor * config.context
        most = self.prepared.families.max_pipeline_stages(Family(config, 1))
        most = min(most, len(self.prepared.atoms))
        if problem.space.stages:
            return [problem.space.stages] if problem.space.stages <= most else []
        known = {most, *(places for places in (1 << i for i in range(most.bit_length())) if places <= most)}
        return sorted(places for places in known if 2 * places * size > problem.num_devices or places == most)

    def _choices(self) -> list[tuple[int, int, int]]:
        """Return ZeRO, recompute and offload, as they go together."""
        families = self.prepared.families
        found = []
        for config in families.choices:
            way = RECOMPUTE.index(config.recompute)
            if way and not self._prices.freeing[way] and families.problem.space.recompute is None:
                continue  # it takes time and frees nothing
            found.append((config.zero, way, OFFLOAD.index(config.offload)))
        return found

    @cached_property
    def num_actions(self) -> Ints:
        """About how many actions the plan of each row has on one replica (`FamilyPartitions.about_actions`)."""
        rows = self.rows
        forwards = 2 + (rows.recompute == RECOMPUTE.index("full"))
        found: Ints = rows.count * (rows.num_stages * forwards + 4 * (rows.num_stages - 1)) + 2 * rows.num_stages
        return found

    @cached_property
    def line(self) -> LinePrices:
        """Prices of each division that a row has."""
        return self._prices.along(list(self._divisions))

    def _estimate(self) -> None:
        problem = self.prepared.problem
        model = problem.stage_model(self._prices.device, self._prices.smallest)
        self.cuts = self._cut()
        replicas = ReplicaPrices(problem, model, self.rows, self.prepared.families.rank_orders)
        whole_stages, coupled = problem.training.whole_stages, problem.training.coupled
        eager = not EAGER.isdisjoint(problem.schedules)

        def of(cuts: EvenCuts) -> Estimates:
            return Estimates(
                self.rows, self.line, cuts, replicas, whole_stages=whole_stages, eager=eager, coupled=coupled
            )

        known, light = of(self.cuts), of(self.cuts.low_traffic)
        faster = self.cuts.is_whole[self.cuts.low_traffic.of] & (light.step_ns < known.step_ns)
        self.cuts = self.cuts.where(faster, self.cuts.low_traffic)
        self.step_ns = np.where(faster, light.step_ns, known.step_ns)
        self.split_ns = np.where(faster, light.split_ns, known.split_ns)
        self.memory_bytes = of(self.cuts).memory_bytes
        self._drop_twins()
        self._drop_unrun()

    def _drop_unrun(self) -> None:
        """Have rows fit nowhere that the target does not run: a search shorter than a second had nothing else."""
        problem, rows, same = self.prepared.problem, self.rows, dict[OperatorDegrees, int]()
        if problem.target not in RUNNERS:
            return
        degrees = np.array([same.setdefault(division, len(same)) for division, _ in self._divisions])[rows.division]
        inside = rows.zero, rows.recompute, rows.offload, 1 * (rows.shard_group > 0)
        first, number = distinct(degrees, *inside, 1 * (rows.num_stages > 1))
        configs = ((self.family(row).config, bool(rows.num_stages[row] > 1)) for row in first.tolist())
        runs = np.array([not config_not_run(problem.target, problem, *each) for each in configs], dtype=bool)
        self.memory_bytes = np.where(runs[number], self.memory_bytes, np.nan)

    def _drop_twins(self) -> None:
        """Have groups and rank orders fit nowhere that are not estimated to gain over what is usual."""
        if number := len(self._twin_of):
            gains = self.step_ns[-number:] < WORTH * self.step_ns[self._twin_of]
            self.memory_bytes[-number:] = np.where(gains, self.memory_bytes[-number:], np.nan)

    def _cut(self) -> EvenCuts:
        """Cut the line evenly for each way to spread work, number of stages and permutation of unlike devices.

        Context degrees and micro-batch sizes scale all work along the line, or nearly so.
        """
        rows, line = self.rows, self.line
        same: dict[object, int] = {}
        alike = [same.setdefault(d._replace(context=1), i) for i, (d, _) in enumerate(self._divisions)]
        spread, unlike = np.array(alike)[rows.division], self.prepared.families.unlike
        one = np.ones_like(rows.places)
        places, ranks = (rows.places, rows.ranks) if unlike else (one, one)
        permutation = rows.arrangement * unlike
        numbers = np.concatenate([rows.num_stages, rows.places])
        columns = [np.concatenate([column, column]) for column in (spread, places, ranks, permutation)]
        columns.insert(1, numbers)
        first, back = distinct(*columns)
        keys = np.stack(columns, 1)[first]
        work = np.diff(line.forward + line.backward + line.added, axis=1)[keys[:, 0]]
        held = np.diff(line.trained + line.trained_experts, axis=1)[keys[:, 0]]
        speeds = self._speeds(keys) if unlike else np.ones((len(keys), int(keys[:, 1].max())))
        of = back[: len(rows)], back[len(rows) :]
        return even_cuts(work, held, line.crossing, keys[:, 1], speeds, of)

    def _speeds(self, keys: Ints) -> Floats:
        """Return the speed of each stage's place: that of its slowest rank."""
        families, found = self.prepared.families, np.ones((len(keys), int(keys[:, 1].max())))
        one = (Family(StageConfig(), self._prices.smallest, 1, i) for i in range(len(families.device_permutations)))
        speeds = list(map(families.speeds, one))
        for i, (_, number, places, ranks, permutation) in enumerate(keys.tolist()):
            own = speeds[permutation]
            slowest = [min(own[k * ranks : (k + 1) * ranks]) for k in range(places)]
            found[i, :number] = [slowest[stage % places] for stage in range(number)]
        return found

    def family(self, row: int) -> Family:
        """Return the family of a row."""
        rows = self.rows
        config = StageConfig(
            int(rows.data[row]),
            int(rows.tensor[row]),
            int(rows.sequence[row]),
            int(rows.context[row]),
            int(rows.expert[row]),
            int(rows.zero[row]),
            RECOMPUTE[rows.recompute[row]],
            OFFLOAD[rows.offload[row]],
            shard_group=int(rows.shard_group[row]),
            expert_tensor=int(rows.expert_tensor[row]),
        )
        return Family(config, int(rows.size[row]), int(rows.chunks[row]), int(rows.arrangement[row]))

    def partition(self, row: int) -> Partition | None:
        """Return the even cut of a row; None where it has fewer stages than asked for."""
        number = int(self.rows.num_stages[row])
        if not self.cuts.is_whole[self.cuts.of[row]]:
            return None
        begins = self.cuts.begins[self.cuts.of[row], : number + 1]
        order = self.prepared.orders[0]
        stages = np.empty(len(order), dtype=np.int64)
        stages[np.array(order)] = np.repeat(np.arange(number), np.diff(begins))
        return tuple(stages.tolist())

    def by_estimate(self, limit_bytes: float, step_ns: Floats | None = None) -> Iterator[int]:
        """Yield the rows that are estimated to fit, the fastest first, by `step_ns` or another estimate."""
        fits, known = self.memory_bytes <= limit_bytes, self.step_ns if step_ns is None else step_ns
        order = np.argsort(np.where(fits, known, np.inf), kind="stable")
        yield from order[: int(fits.sum())].tolist()
