"""What every planner starts from: atoms, evaluators, families and their cuts, and bounds that need no search.

Leaves out how plans are found.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from math import inf

import numpy as np

from costmodel.stages.config import StageConfig
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.blocks import block_names
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated, Evaluator
from planner.candidate.sure_fit import filled, may_have_room
from planner.graph.atoms import Apart, Atoms, Partition, numbered, prepare
from planner.graph.layers import equal_layers, part_pairs
from planner.graph.thinning import thin
from planner.graph.topological_orders import Order, orders
from planner.graph.towers import num_downsets, towers
from planner.question.problem import Problem
from planner.question.targets import LINE_TARGETS
from planner.search.space.division_prices import DivisionPrices
from planner.search.space.dropped import Dropped
from planner.search.space.family import Family
from planner.search.space.family_table import FamilyTable
from planner.search.space.family_work import Families
from planner.search.space.partitions import FamilyPartitions
from planner.search.space.pinned import PinnedPlaces, pinned_pairs, pinned_places
from planner.search.space.segment_prices import LayerSpans
from planner.search.state.free_bounds import FreeBounds

COARSER = (112, 80, 64, 56, 48, 40)
"""Atoms of graphs with towers that have more downsets between more atoms than a bound can go through."""
LONG_SEQUENCE = 4096
"""Tokens of a rank from which on sequences are usually divided no further."""
MOST_OF_A_LAYER = 16
"""Atoms of a layer, in the mean, up to which cuts between layers are fine enough."""
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
        self._filled: dict[Candidate, float] = {}
        self._cuts: dict[Family, FamilyPartitions] = {}
        self._layers: dict[tuple[int, int, int], Partition | None] = {}

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

    def fits_for_sure(self, each: Evaluated) -> bool:
        """Whether the upper bound of every rank's memory, and the margin asked for, is within its device."""
        return each.fits and may_have_room(self.problem, each) and self.filled(each) <= 1

    def filled(self, each: Evaluated) -> float:
        """Return the part of its device that a candidate fills at most (`planner.candidate.sure_fit`), found once."""
        if each.candidate not in self._filled:
            self._filled[each.candidate] = filled(self.evaluator(each.candidate.microbatch_size), each)
        return self._filled[each.candidate]

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
        ranks = config.num_ranks // config.expert_tensor
        most = max((e for e in self.families.expert_degrees if ranks % e == 0), default=1)
        return self._is_shaped(config) and self._spreads(config, (*USUAL_EXPERTS, most, most // 2, most // 4))

    def _is_known(self, config: StageConfig) -> bool:
        alone = bool(self.problem.space.context) or config.context == 1
        return (
            alone
            and self._is_shaped(config)
            and self._spreads(config, (*USUAL_EXPERTS, max(self.families.expert_degrees)))
        )

    def _spreads(self, config: StageConfig, degrees: Sequence[int]) -> bool:
        space = self.problem.space
        divided = space.expert_tensor or config.expert > 1 or config.expert_tensor == config.tensor
        return bool(divided) and (bool(space.expert) or config.expert in degrees)

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

    @cached_property
    def layer_spans(self) -> LayerSpans:
        """Where the first order is cut between layers; between any atoms where some layer does not follow itself."""
        layer_of = {atom: number for number, row in enumerate(self.layers) for atom in row}
        runs = [(key, len(list(row))) for key, row in groupby(layer_of.get(a, -1 - a) for a in self.orders[0])]
        if len({key for key, _ in runs}) < len(runs) or len(runs) < len(self.atoms) // MOST_OF_A_LAYER:
            runs = [(-1, 1)] * len(self.atoms)
        return LayerSpans(np.array([0, *accumulate(size for _, size in runs)]), np.array([max(-1, k) for k, _ in runs]))

    @cached_property
    def atom_spans(self) -> LayerSpans:
        """Where the first order is cut between any atoms, layers being those of `layer_spans`."""
        layers = np.repeat(self.layer_spans.layer, np.diff(self.layer_spans.positions))
        return LayerSpans(np.arange(len(layers) + 1), layers)

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
    def pinned_partition(self) -> Partition | None:
        """The one partition that is left where pins name every operator; stages as in the file where data allows."""
        if len(self.pinned.places) < len(self.atoms):
            return None
        number = {atom: i for i, atom in enumerate(self.pinned.places)}
        return numbered(self.atoms, [number[atom] for atom in range(len(self.atoms))], as_named=True)

    @cached_property
    def free_bounds(self) -> FreeBounds:
        """Bounds that need no search."""
        return FreeBounds(self.problem, self.families, self.atoms, self.pinned, self.cuts, self.evaluator)
