"""What every planner starts from: atoms, evaluators, families and their cuts, and bounds that need no search.

Leaves out how plans are found.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from math import inf
from operator import add

from costmodel.stages.config import StageConfig
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.blocks import block_names
from costmodel.stages.strategies.model import NEVER
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.graph.atoms import Apart, Atoms, Partition, numbered, prepare
from planner.graph.bottleneck_operators import BottleneckOperators
from planner.graph.layers import equal_layers, part_pairs
from planner.graph.thinning import thin
from planner.graph.topological_orders import Order, orders
from planner.graph.towers import num_downsets, towers
from planner.question.problem import Problem
from planner.question.targets import LINE_TARGETS
from planner.search.solvers.relaxation.build import closings_of_atoms, cut_data, times_of_atoms
from planner.search.solvers.relaxation.closed_form import closed_form_ns
from planner.search.solvers.relaxation.data import CutData
from planner.search.space.division_prices import DivisionPrices
from planner.search.space.dropped import Dropped
from planner.search.space.family import Family
from planner.search.space.family_table import FamilyTable
from planner.search.space.family_work import Families
from planner.search.space.partitions import FamilyPartitions
from planner.search.space.pinned import PinnedPlaces, pinned_pairs, pinned_places
from planner.search.space.pinned_bound import PinnedBound

COARSER = (112, 80, 64, 56, 48, 40)
"""Atoms of graphs with towers that have more downsets between more atoms than a bound can go through."""
LONG_SEQUENCE = 4096
"""Tokens of a rank from which on sequences are usually divided no further."""
USUAL_EXPERTS = (1, 8, 32, 64)
"""Ranks over which experts are usually spread, in addition to as many as there are experts."""
DOWNSETS_A_DEVICE, MOST_OF_TOWERS = 800, 50_000
"""Downsets of towers that a bound can go through: on more devices stages are smaller, and there are fewer pairs."""


class PreparedProblem:
    """A problem with its atoms, and what was asked of it once.

    Attributes
    ----------
    problem : Problem
    family_of : dict of Candidate to Family
        The family of every candidate whose stages its cuts placed.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.family_of: dict[Candidate, Family] = {}
        self._evaluators: dict[int, Evaluator] = {}
        self._cuts: dict[Family, FamilyPartitions] = {}
        self._layers: dict[tuple[int, int, int], Partition | None] = {}
        self._bounds: dict[object, int | None] = {}
        self._packed: dict[tuple[object, ...], int] = {}
        self._works_of_atoms: dict[tuple[int, bool], list[int]] = {}
        self._data: dict[Family, CutData] = {}

    @property
    def work_s(self) -> float:
        """CPU seconds about of what was simulated so far, counted by actions."""
        return sum(each.work_s for each in self._evaluators.values())

    @cached_property
    def families(self) -> Families:
        """The families of the space."""
        return Families(self.problem)

    @property
    def dropped(self) -> Dropped:
        """What the search has dropped."""
        return self.families.dropped

    @cached_property
    def atoms(self) -> Atoms:
        """The pieces between which cuts are sought; whole layers where the target takes nothing finer."""
        graph, problem = self.problem.profile.graph, self.problem
        pairs = list(pinned_pairs(problem))
        if problem.target in LINE_TARGETS and len(set(graph.parts)) >= (problem.space.stages or 2):
            pairs += part_pairs(graph, ends=problem.target == "megatron")
        atoms = prepare(graph, pairs)
        works = self._works_ns
        sizes = [self._measured.tensor_bytes(tensor) for tensor in graph.tensors]
        apart = self._apart(atoms)
        finest = thin(atoms, [sum(works[i] for i in row) for row in atoms.members], sizes, apart=apart)
        return finest if any(apart) or problem.exact else self._told_apart(finest, sizes)

    def _told_apart(self, finest: Atoms, sizes: Sequence[int]) -> Atoms:
        """Return atoms few enough for a bound to go through the downsets of towers; else the finest ones."""
        enough = min(DOWNSETS_A_DEVICE * max(8, self.problem.num_devices), MOST_OF_TOWERS)

        def works(atoms: Atoms) -> list[int]:
            return [sum(self._works_ns[i] for i in row) for row in atoms.members]

        coarser = accumulate(COARSER, lambda atoms, most: thin(atoms, works(atoms), sizes, most), initial=finest)
        few = (atoms for atoms in coarser if num_downsets(towers(atoms, works(atoms), sizes)) <= enough)
        return next(few, finest)

    def _apart(self, atoms: Atoms) -> Apart:
        """Return pieces that are not joined: those that pins keep apart, and those of an old plan's stages."""
        graph, pins, old = self.problem.profile.graph, self.problem.pins, self.problem.old_plan
        rows = [{atoms.atom_of[graph.index[name]] for name in stage.operators} for stage in old.stages] if old else []
        kept = pins.kept_apart(graph, atoms.atom_of) if pins else ()
        return (*kept, tuple(tuple(sorted(row)) for row in rows))

    @cached_property
    def _measured(self) -> MeasuredOperators:
        """The profile at the largest micro-batch size."""
        return self.problem.measured(self.problem.microbatch_sizes_of(self.problem.space.data or 1)[-1])

    @cached_property
    def _works_ns(self) -> tuple[int, ...]:
        """What each operator takes there, F, I and W together."""
        model = self._measured
        return tuple(map(sum, zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True)))

    @cached_property
    def pinned(self) -> PinnedPlaces:
        """Stages that pins fix."""
        return pinned_places(self.problem, self.atoms)

    def evaluator(self, microbatch_size: int) -> Evaluator:
        """Return the one evaluator of a micro-batch size."""
        if microbatch_size not in self._evaluators:
            self._evaluators[microbatch_size] = Evaluator(self.problem, self.atoms, microbatch_size)
        return self._evaluators[microbatch_size]

    def evaluated(self, candidate: Candidate) -> list[Evaluated]:
        """Return a candidate simulated; nothing where that cannot be done."""
        found: list[Evaluated] = []
        with self.dropped.candidate():
            found.append(self.evaluator(candidate.microbatch_size).evaluate(candidate))
        return found

    def cuts(self, family: Family) -> FamilyPartitions:
        """Return the cuts of a family."""
        if family not in self._cuts:
            evaluator = self.evaluator(family.microbatch_size)
            self._cuts[family] = FamilyPartitions(evaluator, self.families, family, self.pinned, self.family_of)
        return self._cuts[family]

    @cached_property
    def orders(self) -> list[Order]:
        """The fixed orders of the atoms, the same for all families."""
        works_ns = [sum(self._works_ns[i] for i in row) for row in self.atoms.members]
        return orders(self.atoms, works_ns, 0, self.problem.effort.seed)

    @cached_property
    def most_bytes(self) -> float:
        """What a rank may hold; infinite where it is not known."""
        return float(min(self.problem.memory_limits_bytes) or inf)

    @cached_property
    def _prices(self) -> DivisionPrices:
        return DivisionPrices(self.problem, self.atoms, self.orders[0])

    @cached_property
    def table(self) -> FamilyTable | None:
        """Families that divide operators within a host and sequences as far as their length asks for it.

        None where pins place stages, which leave no even cuts, or where no family can be priced.
        """
        return self._table(self._is_usual)

    @cached_property
    def small_table(self) -> FamilyTable | None:
        """Of these families those of shapes that people use."""
        return self._table(self._is_known)

    def _table(self, wanted: Callable[[StageConfig], bool]) -> FamilyTable | None:
        if self.pinned.places:
            return None
        with self.dropped.candidate():
            found = FamilyTable(self, self._prices, self.families.degrees_where(wanted))
            return found if len(found) else None
        return None

    def _is_usual(self, config: StageConfig) -> bool:
        most = max((e for e in self.families.expert_degrees if config.data * config.context % e == 0), default=1)
        return self._is_shaped(config) and self._spreads(config, (*USUAL_EXPERTS, most, most // 2, most // 4))

    def _is_known(self, config: StageConfig) -> bool:
        alone = bool(self.problem.space.context) or config.context == 1
        return (
            alone
            and self._is_shaped(config)
            and self._spreads(config, (*USUAL_EXPERTS, max(self.families.expert_degrees)))
        )

    def _spreads(self, config: StageConfig, degrees: Sequence[int]) -> bool:
        return bool(self.problem.space.expert) or config.expert in degrees

    def _is_shaped(self, config: StageConfig) -> bool:
        """Whether operators are divided within a host, and sequences as long ones are."""
        families, space = self.families, self.problem.space
        tensor = space.tensor or config.tensor <= families.host_devices
        context = space.context or config.context == 1 or families.num_tokens // config.context >= LONG_SEQUENCE
        sequence = config.sequence == config.tensor or space.sequence_parallel is False or self.problem.has_module
        return bool(tensor and context and sequence)

    def equal_layers(self, num_stages: int, embedding: int = 0, loss: int = 0) -> Partition | None:
        """Return the cut into equally many layers a stage, or None where layers or atoms do not divide so.

        `embedding` and `loss` are layers that count with the first and the last stage in addition to their own layers.
        """
        key = num_stages, embedding, loss
        if key not in self._layers:
            self._layers[key] = self._equal_layers(*key)
        return self._layers[key]

    def layer_alignment(self, partition: Partition) -> int:
        """Return how a partition treats the model's layers: 0 equally many a stage, 1 whole layers, 2 some divided."""
        if partition == self.equal_layers(max(partition) + 1):
            return 0
        return 2 if any(len({partition[atom] for atom in row}) > 1 for row in self.layers) else 1

    @cached_property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """Atoms of each layer of the model."""
        names = block_names(self.problem.profile.graph.operators)
        rows: dict[str, dict[int, None]] = {}
        for atom, members in enumerate(self.atoms.members):
            for position in members:
                if names[position]:
                    rows.setdefault(names[position], {})[atom] = None
        return tuple(tuple(row) for row in rows.values())

    def _equal_layers(self, num_stages: int, embedding: int, loss: int) -> Partition | None:
        rows = equal_layers(self.problem.profile.graph, num_stages, embedding, loss)
        if rows is None or not all(rows):
            return None
        stage_of = {position: stage for stage, row in enumerate(rows) for position in row}
        held = [{stage_of[i] for i in members} for members in self.atoms.members]
        if any(len(stages) > 1 for stages in held):
            return None
        partition = tuple(min(stages) for stages in held)
        return partition if all(partition[a] <= partition[b] for a, b in self.atoms.edges) else None

    @cached_property
    def _around_pins(self) -> PinnedBound:
        return PinnedBound(self.atoms, self.pinned, self.families, self.evaluator)

    @cached_property
    def pinned_partition(self) -> Partition | None:
        """The one partition that is left where pins name every operator; stages as in the file where data allows."""
        if len(self.pinned.places) < len(self.atoms):
            return None
        number = {atom: i for i, atom in enumerate(self.pinned.places)}
        return numbered(self.atoms, [number[atom] for atom in range(len(self.atoms))], as_named=True)

    def bound_ns(self, family: Family, num_places: int | None = None) -> int | None:
        """Return a bound on the step of every candidate of a family, for one number of stages or for any.

        All work and the optimizer's steps divided evenly; the largest atoms, of which one place has several;
        and the filling of the chain of bottleneck operators, to which all else leads or from which it comes: stage i of
        it has b(1) + .. + b(i - 1) + m b(i) <= T, so that all of them hold at most T (1 - (1 - 1/m)^p). None where
        operators do not divide as the family has it.
        """
        config = family.config
        key = (config.data, config.tensor, config.context, config.expert, config.sequence, config.zero, config.offload,
               family.microbatch_size, family.chunks, family.split, num_places)  # fmt: skip
        if key not in self._bounds:
            self._bounds[key] = self.dropped.bound(partial(self._bound_ns, family, num_places))
        return self._bounds[key]

    def _bound_ns(self, family: Family, num_places: int | None) -> int | None:
        if self.pinned.places:
            return self._around_pins.bound_ns(family)
        even_ns = self.families.even_ns(family, num_places)
        if even_ns is None:
            return None
        even_ns = max(even_ns, self._packed_ns(family, num_places))
        if not self.fills(family):
            return even_ns
        places, count = (
            num_places or self.families.max_pipeline_stages(family),
            self.families.microbatches_per_replica(family),
        )
        work = self.families.least_work_ns(family, self.bottlenecks.operators) or 0
        filled = work / (1 - (1 - 1 / count) ** places) if count > 1 else work
        return max(even_ns, int(filled / max(self.problem.speeds)))

    def work_ns(self, family: Family) -> int | None:
        """Return a bound that takes less time still: the work alone."""
        return self.bound_ns(family) if self.pinned.places else self.families.work_ns(family)

    @property
    def work_over_devices_ns(self) -> int:
        """What all work takes evenly over all devices; 0 where pins place stages, which are configured otherwise."""
        if self.pinned.places:
            return 0
        return self.dropped.bound(lambda: self.families.work_over_devices_ns) or 0

    def held_ns(self, family: Family, *, adds: bool = True) -> int:
        """Return a bound that counts what has to run again so that a place holds one micro-batch; `NEVER` if none can.

        The last bytes that are over the room of all places together are freed by the operators that do it soonest.
        Where pins place stages, which may be configured otherwise, none.
        """
        if self.pinned.places:
            return 0
        again_ns = self.families.least_again_ns(family)
        if again_ns >= NEVER:
            return NEVER
        return self.families.even_ns(family, None, again_ns, adds=adds) or 0

    def even_by_replicas_ns(self, family: Family) -> int | None:
        """Return a bound for stages with replicas of their own number: all work divided evenly over all devices.

        A replica with one micro-batch adds up no gradients: that spares a stage on m devices or more, m being all
        micro-batches, at most m a, and what it takes besides, t, and its optimizer's step c have T >= t + c. So with q
        such stages, and of a what is no more than c, N T >= L - q m (t + a) - q c + q m T, or T >= L / (N + q); where
        they take all devices, T >= (t + c) / q with t and c of the whole model. Under ZeRO c is what each of all
        devices has of the step. Devices of other speeds count in N by their speed, and in q as the fastest.
        """
        families, devices = self.families, self.problem.num_devices // family.devices_per_stage
        count, even_ns = families.microbatches_per_replica(family), families.even_ns(family, devices)
        if even_ns is None or families.adds_by_replicas(family) or count == 1:
            return even_ns
        alone_ns, cuts = families.even_ns(family, devices, adds=False) or 0, self.cuts(family)
        if family.devices_per_stage > 1:
            return alone_ns
        sharers = devices if family.config.zero else 1  # of the optimizer's step
        closings = [c // sharers for c in closings_of_atoms(cuts)]
        capacity, fastest = sum(self.problem.speeds), max(self.problem.speeds)
        all_ns = alone_ns * capacity + count * sum(map(min, cuts.accumulation_ns, closings))
        once_ns = (families.least_work_ns(family) or 0) + sum(closings)
        found = [even_ns]
        for number in range(1, devices // count + 1):
            whole = once_ns / (number * fastest) if number * count == devices else 0
            found.append(max(alone_ns, int(all_ns / (capacity + number * fastest)), int(whole)))
        return min(found)

    def _packed_ns(self, family: Family, num_places: int | None) -> int:
        """Return what some place takes of the whole step, where operators stay whole: it holds whole atoms.

        Of the (k - 1) p + 1 largest atoms p places hold k in one of them.
        """
        config = family.config
        if config.tensor * config.context * config.expert > 1 or not self._as_profiled or self.pinned.places:
            return 0
        places = num_places or self.families.max_pipeline_stages(family)
        key = family.microbatch_size, config.data, config.zero > 0, config.offload, places
        if key not in self._packed:
            count, cuts = self.families.microbatches_per_replica(family), self.cuts(family)
            adding = family.microbatch_size, count > 1
            if adding not in self._works_of_atoms:
                forward, backward, _ = times_of_atoms(cuts)
                self._works_of_atoms[adding] = list(map(add, forward, backward))
            rows = zip(self._works_of_atoms[adding], closings_of_atoms(cuts), strict=True)
            loads = sorted((count * work + closing for work, closing in rows), reverse=True)
            packed = (sum(loads[i - k + 1 : i + 1]) for k, i in enumerate(range(0, len(loads), places), start=1))
            self._packed[key] = int(max(packed) / max(self.problem.speeds))
        return self._packed[key]

    @property
    def _as_profiled(self) -> bool:
        """Whether operators take what they took in the profile."""
        return self.problem.training.precision in ("", self.problem.profiled_precision)

    @cached_property
    def bottlenecks(self) -> BottleneckOperators:
        """The chain of bottleneck operators, along which a pipeline has to be filled."""
        return BottleneckOperators(self.atoms)

    def fills(self, family: Family) -> bool:
        """Whether a line has to be filled: one stage a place, F and whole B."""
        return (
            family.chunks == 1
            and not self.pinned.places  # which may have replicas of their own
            and all(name in FUSED for name in self.cuts(family).schedules)
            and bool(self.bottlenecks.operators)
        )

    def is_split_line(self, family: Family) -> bool:
        """Whether one stage a place runs split backwards along a chain of bottlenecks."""
        return self.cuts(family).splits_backward and bool(self.bottlenecks.operators) and not self.pinned.places

    def closed_form_ns(self, family: Family, num_places: int | None = None) -> int:
        """Return a tighter bound, in closed form, where the cut model knows the family."""
        cheap = self.bound_ns(family, num_places) or 0
        if not self.is_bounded_exactly(family) or num_places == 1:
            return cheap
        if family not in self._data:
            self._data[family] = cut_data(self.cuts(family), 0, binding=False)
        data = self._data[family]
        return max(cheap, closed_form_ns(replace(data, num_stages=num_places or data.num_stages)))

    def is_cut_exactly(self, family: Family) -> bool:
        """Whether the cut model bounds a family: operators whole, one stage a place, F and whole B.

        What several operators gather together once, and stages that share a place, it does not know.
        """
        return all(name in FUSED for name in self.cuts(family).schedules) and self._is_plain(family)

    def is_bounded_exactly(self, family: Family) -> bool:
        """Whether bounds by operators know a family: as the cut model does, or with split backwards."""
        return self.is_cut_exactly(family) or (self.cuts(family).splits_backward and self._is_plain(family))

    def _is_plain(self, family: Family) -> bool:
        config = family.config
        plain = config.tensor == config.context == config.expert == 1 and family.chunks == 1
        return plain and self._as_profiled and not self.pinned.places


FUSED = ("gpipe", "1f1b", "eager-1f1b", "graph-1f1b", "graph-eager-1f1b", "graph-kfkb", "graph-auto")
"""Schedules that run F and whole B with one stage a rank."""
