"""The job that someone runs today: every choice but the cut is fixed, and the cut is balanced.

Candidates are cuts into exactly the stages asked for: equal numbers of layers, and the best segments of a few orders
of the operators. Each is priced, ordered and simulated for one replica, which stands for all of them where ranks are
alike. Within 1 % of the fastest, equal numbers of layers are chosen. Leaves out any choice of strategy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from costmodel.errors import InvalidInput, NoPlanFits, UsageError
from costmodel.model.graph import Tensor
from costmodel.stages.costs import Costs
from planner.balanced import balanced
from planner.baselines import split_by_weight
from planner.choices import Shape
from planner.layers import equal_layers, layer_pairs, layer_starts
from planner.pinned import with_recompute
from planner.prepare import Atoms, prepare
from planner.pricing import Layout
from planner.problem import AUTO, AUTO_SCHEDULES, Problem
from planner.search.incumbent import NEAR
from planner.search.orders import orders
from planner.search.segments import Aim, segmentations
from planner.split_form import ordered
from planner.targets import ANY, in_line
from planner.thinning import thin
from simulator.engine import Structure, Times
from simulator.lowering import close_step

Cut = tuple[tuple[int, ...], ...]
"""Positions of each stage's operators."""
NUM_ORDERS, BEAM = 2, 3
MOST_SEGMENTS = 32
"""Stages up to which orders are cut by the search's dynamic program; its effort rises with their square."""


class Pricing(Protocol):
    """Prices cuts at one micro-batch size."""

    microbatch_size: int

    @property
    def work_ns(self) -> tuple[int, ...]:
        """What each operator takes."""

    def work_at(self, place: int) -> tuple[int, ...]:
        """Return what each operator takes at a place of the pipeline."""

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor between stages."""

    def price(self, stages: Sequence[tuple[int, ...]]) -> Layout:
        """Price a cut; ranks are blocks."""


@dataclass(frozen=True)
class Tried:
    """A cut that was simulated: all replicas of it, or one for all (`replicas` 1)."""

    cut: Cut
    layout: Layout
    pricing: Pricing
    schedule: str
    replicas: int
    times: Times
    excess_bytes: int
    whole_layers: bool

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better: what fits, then what is fast."""
        return self.excess_bytes, self.times.step_time_ns


class FixedSearch:
    """Cuts one problem for one shape."""

    def __init__(self, problem: Problem, shape: Shape, pricings: Sequence[Pricing], split_recompute: bool) -> None:
        self.problem, self.shape, self.pricings = problem, shape, pricings
        self.split_recompute = split_recompute
        """Whether a recomputed forward stands in the orders as R."""
        self.graph = problem.profile.graph

    @cached_property
    def whole(self) -> bool:
        """Whether all replicas are simulated: where ranks differ in speed, or actions in what they take."""
        return bool(self.problem.machines.speeds) or self.split_recompute or self.shape.config.data == 1

    @cached_property
    def tried(self) -> list[Tried]:
        """All cuts that were simulated, the best first.

        Raises
        ------
        NoPlanFits
            When pins leave no cut.
        """
        found = [tried for pricing in self.pricings for tried in self._tried(pricing)]
        if not found:
            raise NoPlanFits(
                f"no cut into {self.shape.num_stages} stages keeps to the pins and to what must stay together; choose "
                "fewer --stages or --chunks, or drop pins"
            )
        return sorted(found, key=lambda tried: tried.rank)

    def choices(self) -> Iterator[Tried]:
        """Yield what to take of each micro-batch size, that of the fastest first: equally many layers where near."""
        for size in dict.fromkeys(tried.pricing.microbatch_size for tried in self.tried):
            own = [tried for tried in self.tried if tried.pricing.microbatch_size == size]
            slowest_ns = own[0].times.step_time_ns * NEAR
            near = [t for t in own if not t.excess_bytes and t.times.step_time_ns <= slowest_ns]
            yield min(near, key=_simplicity) if near else own[0]

    def fastest_ns(self, choice: Tried) -> int:
        """Return the step time of the fastest cut at a choice's micro-batch size."""
        size = choice.pricing.microbatch_size
        return next(tried for tried in self.tried if tried.pricing.microbatch_size == size).times.step_time_ns

    def _tried(self, pricing: Pricing) -> Iterator[Tried]:
        layers = equal_layers(self.graph, self.shape.num_stages)
        for cut in dict.fromkeys(filter(self._is_legal, self._cuts(pricing, layers))):
            layout = pricing.price(cut)
            for name in self._schedules(layout):
                run, times = self.simulate(layout, pricing.microbatch_size, name)
                excess = max(0, *(p - m for p, m in zip(times.peak_memory_bytes, self.limits(self.whole), strict=True)))
                replicas = self.shape.config.data if self.whole else 1
                yield Tried(cut, run, pricing, name, replicas, times, excess, cut == layers)

    def _schedules(self, layout: Layout) -> tuple[str, ...]:
        if self.problem.schedule != AUTO:
            return (self.problem.schedule,)
        if self.shape.chunks > 1:
            return ("interleaved-1f1b",)
        line = all(edge.target == edge.source + 1 for edge in layout.costs.edges)
        if self.split_recompute:
            return AUTO_SCHEDULES
        return ("1f1b",) if line else AUTO_SCHEDULES[:2]

    def simulate(self, layout: Layout, microbatch_size: int, schedule: str) -> tuple[Layout, Times]:
        """Order, close and time a priced cut; return it priced as it then runs.

        Simulated are all replicas, or the first of each place.
        """
        data = 1 if self.whole else self.shape.config.data
        num_microbatches = self.problem.global_batch // microbatch_size // data
        ratios = self.problem.cost_model(microbatch_size).split_ratios
        costs = layout.costs if self.whole else replica(layout.costs, data)
        order, costs = ordered(schedule, costs, num_microbatches, ratios)
        if self.split_recompute:
            remade = self.shape.config.recompute == "full"
            order = with_recompute(order, [remade and stage.backward for stage in costs.stages])
        closed = close_step(order, layout.reduces, self.problem.optimizer != "none")
        times = Structure(closed).times(costs, self.speeds if self.whole else ())
        return replace(layout, costs=replace(layout.costs, stages=costs.stages)), times

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each block: that of its slowest rank."""
        known = dict(self.problem.machines.speeds)
        return tuple(min(known.get(rank, 1.0) for rank in block) for block in self.blocks)

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each block."""
        return tuple(map(self.shape.block, range(self.shape.num_blocks)))

    def limits(self, whole: bool) -> tuple[int, ...]:
        """Bytes that a rank of each block may hold (of each place, without `whole`): its least device's."""
        known = self.problem.memory_limits_bytes
        groups = self.blocks if whole else [self.shape.ranks(place) for place in range(self.shape.places)]
        return tuple(min(known[rank] or NO_LIMIT for rank in group) for group in groups)

    def _cuts(self, pricing: Pricing, layers: Cut | None) -> Iterator[Cut]:
        planner, num_stages = self.problem.planner, self.shape.num_stages
        if planner in ("ours", "chain") and layers:
            yield layers
        atoms, work = self._atoms(pricing)
        if num_stages > len(atoms):
            raise UsageError(f"{num_stages} stages of {len(atoms)} pieces that can be cut; choose fewer")
        found = orders(atoms, work, 0, self.problem.seed)
        if planner in ("uniform", "parameters"):
            yield _in_parts(atoms, found[0], num_stages, planner)
            return
        for order in found[:NUM_ORDERS] if num_stages <= MOST_SEGMENTS else ():
            for bound in (False, True):
                aim = Aim(num_stages, self.problem.global_batch, BEAM, in_line(self.problem), bound)
                partitions = segmentations(atoms, order, work, aim)
                yield from (_cut(atoms, groups) for groups in partitions if max(groups) + 1 == num_stages)
        for order in found[:NUM_ORDERS]:
            stages = balanced(self._loads(pricing, atoms, order))
            if stages:
                yield _cut(atoms, _placed(order, stages))

    def _loads(self, pricing: Pricing, atoms: Atoms, order: Sequence[int]) -> list[list[int]]:
        """Return what each atom of an order takes in each stage, at the pace of the slowest rank there."""
        known = dict(self.problem.machines.speeds)
        rows = []
        for place in range(self.shape.places):
            speed = min(known.get(rank, 1.0) for rank in self.shape.ranks(place))
            works = pricing.work_at(place)
            rows.append([round(sum(works[i] for i in atoms.members[atom]) / speed) for atom in order])
        return [rows[stage % self.shape.places] for stage in range(self.shape.num_stages)]

    def _atoms(self, pricing: Pricing) -> tuple[Atoms, list[int]]:
        atoms = self._whole_atoms
        work = [sum(pricing.work_ns[i] for i in row) for row in atoms.members]
        atoms = thin(atoms, work, [pricing.tensor_bytes(tensor) for tensor in self.graph.tensors])
        return atoms, [sum(pricing.work_ns[i] for i in row) for row in atoms.members]

    @cached_property
    def _whole_atoms(self) -> Atoms:
        pins = self.problem.pins
        pairs = [*(pins.pairs(self.graph) if pins else ()), *(layer_pairs(self.graph) if self.in_layers else ())]
        return prepare(self.graph, pairs)

    @cached_property
    def in_layers(self) -> bool:
        """Whether layers stay whole, as trainers have them: unless there are fewer than stages."""
        cut_anywhere = self.split_recompute or self.problem.target == ANY
        return not cut_anywhere and len(layer_starts(self.graph)) >= self.shape.num_stages

    def _is_legal(self, cut: Cut) -> bool:
        """Whether a cut has all stages, tears nothing apart, keeps to pins and flows from stage to later stage."""
        if len(cut) != self.shape.num_stages or not all(cut):
            return False
        stage_of = {position: stage for stage, row in enumerate(cut) for position in row}
        if any(len({stage_of[i] for i in row}) > 1 for row in self._whole_atoms.members):
            return False
        index = self.graph.index
        for tensor in self.graph.tensors:
            if any(stage_of[index[name]] < stage_of[index[tensor.producer]] for name in tensor.consumers):
                return False
        try:
            if self.problem.pins:
                self.problem.pins.kept_apart(self.graph, [stage_of[i] for i in range(len(stage_of))])
        except InvalidInput:
            return False
        return True


NO_LIMIT = 1 << 62


def _simplicity(tried: Tried) -> tuple[bool, int, tuple[int, int]]:
    """Equally many layers first, then few micro-batches in flight, then time."""
    known = AUTO_SCHEDULES
    return not tried.whole_layers, known.index(tried.schedule) if tried.schedule in known else 0, tried.rank


def replica(costs: Costs, data: int) -> Costs:
    """Return the costs of one replica: the first block of each place."""
    return replace(costs, ranks=tuple((ranks[0] // data,) for ranks in costs.ranks))


def _cut(atoms: Atoms, groups: Sequence[int]) -> Cut:
    rows: list[list[int]] = [[] for _ in range(max(groups) + 1)]
    for atom, stage in enumerate(groups):
        rows[stage] += atoms.members[atom]
    return tuple(tuple(sorted(row)) for row in rows)


def _in_parts(atoms: Atoms, order: Sequence[int], num_stages: int, planner: str) -> Cut:
    """Cut one order into equal numbers of operators, or equal bytes of parameters."""
    operators = atoms.graph.operators
    weigh = (
        (lambda row: len(row)) if planner == "uniform" else (lambda row: sum(operators[i].parameter_bytes for i in row))
    )
    weights = [weigh(atoms.members[atom]) for atom in order]
    return _cut(atoms, _placed(order, split_by_weight(weights, num_stages)))


def _placed(order: Sequence[int], stages: Sequence[int]) -> list[int]:
    found = [0] * len(order)
    for atom, stage in zip(order, stages, strict=True):
        found[atom] = stage
    return found
