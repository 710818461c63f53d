"""The price of a candidate: its stages, and what flows between them. Every plan is priced here.

Ranks of the costs are blocks of devices (`planner.plan.lockstep`). An action of k micro-batches is priced as one
micro-batch k times as large. On devices of several types a stage takes what its slowest type takes. Leaves out orders
and time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from costmodel.machines.cluster_parts import DeviceType
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from costmodel.stages.strategies import StrategyModel
from planner.candidate.candidate import StagePlacement
from planner.candidate.flows import Flows, flows_between
from planner.candidate.messages import HostTimes, pairs, slowest_ns, unlike_lanes
from planner.candidate.sums import Sums
from planner.graph.atoms import Atoms, Partition
from planner.plan import REPLICATE
from planner.plan.lockstep import Block, blocks_of
from planner.question.problem import Problem

PARTS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns", "activation_bytes",
         "weight_activation_bytes", "static_bytes", "reduce_ns", "optimizer_ns")  # fmt: skip


WHOLE = StageConfig()
"""Of a stage that divides nothing."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A priced candidate.

    Attributes
    ----------
    operators : tuple of tuple of int
        Positions of each stage's operators.
    flows : Flows
        Positions of the tensors that each edge of `costs` carries.
    costs : Costs
        Its ranks are numbers of `blocks`.
    reduces : tuple of bool
        Whether each stage sums gradients with others, however little time that takes.
    blocks : tuple of Block
        Ranks that work in lockstep.
    """

    operators: tuple[tuple[int, ...], ...]
    flows: Flows
    costs: Costs
    reduces: tuple[bool, ...]
    blocks: tuple[Block, ...]


class Pricer:
    """Prices partitions of one set of atoms at one micro-batch size; remembers the stages it has priced."""

    def __init__(self, problem: Problem, atoms: Atoms, microbatch_size: int) -> None:
        self.problem, self.atoms, self.microbatch_size = problem, atoms, microbatch_size
        self.num_microbatches = problem.global_batch // microbatch_size
        self._tensors = problem.profile.graph.tensors
        self.sums = Sums(problem, atoms)
        self._stages: dict[object, StageCost] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._edges: dict[object, tuple[int, int, bool]] = {}
        self._lanes: dict[tuple[StagePlacement, StagePlacement], list[tuple[int, int]]] = {}
        self._blocks: dict[tuple[StagePlacement, ...], tuple[tuple[Block, ...], tuple[tuple[int, ...], ...]]] = {}
        self._devices: dict[tuple[int, ...], tuple[str, ...]] = {}

    def price(self, partition: Partition, places: Sequence[StagePlacement], line: bool = False) -> Priced:
        """Price a partition whose stages run at these places.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        NoPlanFits
            When a host cannot hold what is offloaded.
        """
        flows = flows_between(self.atoms, partition, line)
        edges = tuple(self._edge(ends, places, row) for ends, row in flows.items())
        members: list[list[int]] = [[] for _ in places]
        for atom, stage in enumerate(partition):
            members[stage].append(atom)
        rows = list(map(tuple, members))
        received: list[list[int]] = [[] for _ in places]
        returns = [False] * len(places)
        for edge, row in zip(edges, flows.values(), strict=True):
            received[edge.target] += row
            if edge.gradient:
                returns[edge.source] = returns[edge.target] = True
        stages = [
            self.stage(atoms, tuple(sorted(set(tensors))), back, place)
            for atoms, tensors, back, place in zip(rows, received, returns, places, strict=True)
        ]
        sums = self.sums.of(partition, places, stages)
        stages = [
            stage if stage.reduce_ns == ns else replace(stage, reduce_ns=ns)
            for stage, (_, ns) in zip(stages, sums, strict=True)
        ]
        stages = self._with_host_time(stages, places, flows)
        blocks, ranks = self._blocks_at(tuple(places))
        stages = self._shared_on_ranks(stages, ranks)
        multiples = tuple(place.microbatch_multiple for place in places)
        costs = Costs(tuple(stages), edges, ranks, multiples)
        return Priced(tuple(map(self._operators, rows)), flows, costs, tuple(flag for flag, _ in sums), blocks)

    def _blocks_at(self, places: tuple[StagePlacement, ...]) -> tuple[tuple[Block, ...], tuple[tuple[int, ...], ...]]:
        """Return the blocks of some places, and the numbers of each place's own."""
        if places not in self._blocks:
            rows = [place.blocks for place in places]
            blocks = blocks_of(rows)
            number = {block: i for i, block in enumerate(blocks)}
            self._blocks[places] = blocks, tuple(tuple(number[block] for block in row) for row in rows)
        return self._blocks[places]

    def _operators(self, atoms: tuple[int, ...]) -> tuple[int, ...]:
        if atoms not in self._members:
            self._members[atoms] = tuple(sorted(chain.from_iterable(map(self.atoms.members.__getitem__, atoms))))
        return self._members[atoms]

    def stage(
        self, atoms: tuple[int, ...], received: tuple[int, ...], returns: bool, place: StagePlacement
    ) -> StageCost:
        """Price one stage; it has a backward also when it only passes gradients on."""
        where: object = place.ranks if len(place.ranks) > 1 or place.config.offload != "none" else self._types(place)
        key = (atoms, received, returns, place.config, where, place.microbatch_multiple)
        if key not in self._stages:
            operators = compact(self._operators(atoms))
            found = [
                model.stage(operators, place.config, place.ranks, received, self._num_on(place))
                for model in self.models(place)
            ]
            cost = found[0] if len(found) == 1 else _slowest(found)
            self._stages[key] = replace(cost, backward=True) if returns and not cost.backward else cost
        return self._stages[key]

    def least_load_ns(self, atoms: tuple[int, ...], place: StagePlacement) -> int:
        """Return what each rank of a place has of the whole step at least, and of its optimizer's step.

        Replicas may take unequally many micro-batches: the fewest count.
        """
        config = replace(place.config, zero=0, offload="none", recompute="none", recomputed_operators=())
        operators = self._operators(atoms)
        works = [model.least_work_ns(operators, config, place.ranks) for model in self.models(place)]
        fewest = self.num_microbatches // (place.config.data * place.microbatch_multiple)
        return fewest * max(works) + self.stage(atoms, (), False, place).optimizer_ns

    def _num_on(self, place: StagePlacement) -> int:
        """Return how many micro-batches one replica works on."""
        return -(-self.num_microbatches // (place.config.data * place.microbatch_multiple))

    def models(self, place: StagePlacement) -> list[StrategyModel]:
        """Return the price of a stage on each type of device at a place."""
        size = self.microbatch_size * place.microbatch_multiple
        return [self.problem.stage_model(self._device(name), size) for name in self._types(place)]

    def _types(self, place: StagePlacement) -> tuple[str, ...]:
        if place.ranks not in self._devices:
            names = (self.problem.device_names[rank] for rank in place.ranks)
            self._devices[place.ranks] = tuple(dict.fromkeys(names))
        return self._devices[place.ranks]

    def _device(self, name: str) -> DeviceType:
        return next(device for device in self.problem.machines.devices if device.name == name)

    def message_bytes(self, tensors: Sequence[int], config: StageConfig, count: int) -> int:
        """Return the bytes of some tensors that one rank sends for a number of micro-batches."""
        return sum(map(self.tensor_bytes(count, config).__getitem__, tensors))

    def tensor_bytes(self, count: int, config: StageConfig = WHOLE) -> Sequence[int]:
        """Return the bytes of each tensor on one rank for a number of micro-batches."""
        model = self.problem.stage_model(self.problem.machines.device_of(0), self.microbatch_size * count)
        return model.tensor_bytes(config)

    def border(self, tensors: Sequence[int], config: StageConfig) -> str:
        """Return how the lanes of a stage pass tensors on, as they are priced."""
        model = self.problem.stage_model(self.problem.machines.device_of(0), self.microbatch_size)
        dimension = model.divided_along(tensors, config)
        return REPLICATE if dimension is None else f"shard({dimension})"

    def _edge(self, ends: tuple[int, int], places: Sequence[StagePlacement], tensors: tuple[int, ...]) -> EdgeCost:
        source, target = (places[end] for end in ends)
        key = (tensors, source, target)
        if key not in self._edges:
            size = self.message_bytes(tensors, source.config, source.microbatch_multiple)
            machines = self.problem.machines
            if (source, target) not in self._lanes:
                joined = pairs(source, target, self.num_microbatches)
                self._lanes[source, target] = unlike_lanes(machines, joined)
            gradient = any(self._tensors[t].gradient for t in tensors)
            self._edges[key] = (slowest_ns(machines, self._lanes[source, target], size), size, gradient)
        p2p_ns, size, gradient = self._edges[key]
        return EdgeCost(*ends, p2p_ns, size, gradient)

    def _with_host_time(
        self, stages: list[StageCost], places: Sequence[StagePlacement], flows: Flows
    ) -> list[StageCost]:
        if not self._message_ns and not self._measures_host:
            return stages
        host = HostTimes(places, self.num_microbatches)
        most = max(place.microbatch_multiple for place in places)
        for (source, target), row in flows.items():
            config = places[source].config
            back = tuple(t for t in row if self._tensors[t].gradient)
            there_ns, back_ns = (list(self._host_ns(tensors, config, most)) for tensors in (row, back))
            host.add(source, target, there_ns, back_ns)
        return host.onto(stages)

    def _shared_on_ranks(self, stages: list[StageCost], ranks: Sequence[tuple[int, ...]]) -> list[StageCost]:
        """Count what actions work with once on ranks of several stages: of the stage that works with most."""
        if len(stages) == len(set(chain.from_iterable(ranks))) == sum(map(len, ranks)):
            return stages
        shared = self.problem.training.once_a_rank
        sizes = [sum(size for name, size in stage.memory_terms if name in shared) for stage in stages]
        found, counted = list(stages), set[int]()
        for i in sorted(range(len(stages)), key=sizes.__getitem__, reverse=True):
            if counted.issuperset(ranks[i]) and sizes[i]:
                terms = tuple((name, 0 if name in shared else size) for name, size in stages[i].memory_terms)
                found[i] = replace(stages[i], static_bytes=stages[i].static_bytes - sizes[i], memory_terms=terms)
            counted.update(ranks[i])
        return found

    @cached_property
    def _message_ns(self) -> int:
        """Host time of a trainer's message at either end, where that is known."""
        return round(self.problem.training.host_ns.get("message", 0))

    @cached_property
    def _measures_host(self) -> bool:
        links = self.problem.machines.links
        return links is not None and "p2p_host" in links.classes

    def _host_ns(self, tensors: tuple[int, ...], config: StageConfig, most: int) -> Iterator[int]:
        for count in range(1, most + 1):
            size = self.message_bytes(tensors, config, count)
            found = self.problem.machines.host_ns(0, 1, size) if self._measures_host else self._message_ns
            yield found if tensors else 0


def _slowest(found: Sequence[StageCost]) -> StageCost:
    """Return what the slowest of several device types takes of everything."""
    largest = {part: max(getattr(cost, part) for cost in found) for part in PARTS}
    return replace(max(found, key=lambda cost: cost.static_bytes), **largest)


def compact(operators: tuple[int, ...]) -> Sequence[int]:
    """Return a range where operators follow each other, which is priced faster."""
    if operators[-1] - operators[0] + 1 == len(operators):
        return range(operators[0], operators[-1] + 1)
    return operators
