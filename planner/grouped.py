"""What stages cost that spread over several devices each, as trainers run them (`costmodel.stages.strategies`).

Ranks of the costs are blocks of devices (`planner.plan.lockstep`): place p of the pipeline has the blocks p x data to
(p + 1) x data - 1, one a replica. On devices of several types a stage takes what its slowest type takes. A message goes
from each rank of a block to the same rank of the other's, all at once: the slowest pair counts. Parameters tied between
places are summed after the replicas', as Megatron-LM does with embeddings. Leaves out orders.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from costmodel.machines.collectives import all_reduce_ns
from costmodel.model.graph import Tensor
from costmodel.model.profile import Profile
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from costmodel.stages.strategies import MemoryTerms, StrategyModel, Training
from costmodel.stages.strategies.division import Degrees, parameter_parts
from planner.choices import Shape
from planner.placed import Flows, PlacedStage, flows_between
from planner.pricing import Layout, with_host_time
from planner.problem import Problem
from planner.targets import in_line

PARTS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "recompute_ns", "activation_bytes",
         "weight_activation_bytes", "static_bytes", "reduce_ns", "optimizer_ns")  # fmt: skip


class GroupPricing:
    """Prices cuts of one model into stages of one shape, at one micro-batch size.

    Parameters
    ----------
    problem : Problem
    profiles : mapping of str to Profile
        By device type.
    shape : Shape
    training : Training
    microbatch_size : int
    """

    def __init__(
        self,
        problem: Problem,
        profiles: Mapping[str, Profile],
        shape: Shape,
        training: Training,
        microbatch_size: int,
    ) -> None:
        self.problem, self.shape, self.microbatch_size = problem, shape, microbatch_size
        self.cluster = problem.machines
        self.num_microbatches = problem.global_batch // (microbatch_size * shape.config.data)
        self.models = {
            name: StrategyModel(profile, self.cluster, microbatch_size, training) for name, profile in profiles.items()
        }
        self.graph = problem.profile.graph

    @cached_property
    def work_ns(self) -> tuple[int, ...]:
        """What each operator takes, F and B, on the slowest type of device."""
        return tuple(map(max, zip(*self._works.values(), strict=True)))

    def work_at(self, place: int) -> tuple[int, ...]:
        """Return what each operator takes at a place of the pipeline."""
        names = {self.cluster.device_of(rank).name for rank in self.shape.ranks(place)}
        return tuple(map(max, zip(*(self._works[name] for name in sorted(names)), strict=True)))

    @cached_property
    def _works(self) -> dict[str, list[int]]:
        config, ranks = self.shape.config, self.shape.ranks(0)
        return {
            name: [sum(model.times(range(i, i + 1), config, ranks)) for i in range(len(self.graph.operators))]
            for name, model in self.models.items()
        }

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor that one rank holds, and sends."""
        return next(iter(self.models.values())).tensor_bytes(tensor, self.shape.config)

    def price(self, stages: Sequence[tuple[int, ...]]) -> Layout:
        """Price a cut: the positions of each stage's operators, stages in a topological order.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        NoPlanFits
            When a host cannot hold what is offloaded.
        """
        flows = self.flows(stages)
        edges = tuple(self._edge(ends, [self.graph.tensors[t] for t in row]) for ends, row in flows.items())
        returns = {stage for edge in edges if edge.gradient for stage in (edge.source, edge.target)}
        costs = []
        for index, operators in enumerate(stages):
            cost = self._stage(index, operators, self.received(flows, index))
            costs.append(replace(cost, backward=cost.backward or index in returns))
        reduces, priced = self._with_tied(stages, self._with_host_time(costs, edges))
        data = self.shape.config.data
        blocks = [tuple(range(place * data, (place + 1) * data)) for place in range(self.shape.places)]
        ranks = tuple(blocks[index % self.shape.places] for index in range(len(stages)))
        return Layout(tuple(stages), tuple(map(tuple, flows.values())), Costs(tuple(priced), edges, ranks), reduces)

    def flows(self, stages: Sequence[tuple[int, ...]]) -> Flows:
        """Return the tensors on each edge."""
        placed = [PlacedStage(row, (), self.shape.config) for row in stages]
        return flows_between(self.graph, placed, in_line(self.problem))

    def received(self, flows: Flows, index: int) -> list[Tensor]:
        """Return what a stage receives."""
        positions = {t for (_, target), row in flows.items() if target == index for t in row}
        return [self.graph.tensors[t] for t in sorted(positions)]

    def terms(self, index: int, operators: tuple[int, ...], received: Sequence[Tensor], in_flight: int) -> MemoryTerms:
        """Return the memory of a stage term by term, on the type of device where the upper bound is largest."""
        config, ranks = self.shape.config, self.shape.ranks(index % self.shape.places)
        found = [
            model.terms(_compact(operators), config, ranks, self.num_microbatches, in_flight, received)
            for model in self._models_at(ranks)
        ]
        return max(found, key=lambda terms: terms.upper_bytes)

    def _models_at(self, ranks: Iterable[int]) -> list[StrategyModel]:
        names = {self.cluster.device_of(rank).name for rank in ranks}
        return [model for name, model in self.models.items() if name in names]

    def _stage(self, index: int, operators: tuple[int, ...], received: Sequence[Tensor]) -> StageCost:
        ranks = self.shape.ranks(index % self.shape.places)
        found = [
            model.stage(_compact(operators), self.shape.config, ranks, received, self.num_microbatches)
            for model in self._models_at(ranks)
        ]
        if len(found) == 1:
            return found[0]
        largest = {part: max(getattr(cost, part) for cost in found) for part in PARTS}
        return replace(max(found, key=lambda cost: cost.static_bytes), **largest)

    def _edge(self, ends: tuple[int, int], tensors: Sequence[Tensor]) -> EdgeCost:
        size = sum(map(self.tensor_bytes, tensors))
        gradient = any(tensor.gradient for tensor in tensors)
        return EdgeCost(*ends, self._slowest_pair_ns(ends, size), size, gradient)

    def _slowest_pair_ns(self, ends: tuple[int, int], size_bytes: int) -> int:
        mine, theirs = (self.shape.ranks(index % self.shape.places) for index in ends)
        return max(self.cluster.p2p_ns(a, b, size_bytes) for a, b in zip(mine, theirs, strict=True))

    def _with_host_time(self, costs: Sequence[StageCost], edges: Sequence[EdgeCost]) -> list[StageCost]:
        """Add what its messages take from the ranks at both ends."""
        added = [0] * len(costs)
        back = [0] * len(costs)
        for edge in edges:
            if edge.source % self.shape.places != edge.target % self.shape.places:
                host_ns = self.cluster.host_ns(0, 1, edge.size_bytes)
                for index in (edge.source, edge.target):
                    added[index] += host_ns
                    back[index] += host_ns * edge.gradient
        return [with_host_time(cost, [f], [b]) for cost, f, b in zip(costs, added, back, strict=True)]

    def _with_tied(
        self, stages: Sequence[tuple[int, ...]], costs: Sequence[StageCost]
    ) -> tuple[tuple[bool, ...], list[StageCost]]:
        """Add the sums of gradients of parameters that several places hold; say which stages sum at all."""
        config = self.shape.config
        tied_bytes: dict[tuple[int, ...], int] = {}
        for owners, size in self._tied(stages):
            tied_bytes[owners] = tied_bytes.get(owners, 0) + size
        reduces = [config.data * config.context > 1] * len(stages)
        priced = list(costs)
        for owners, size in tied_bytes.items():
            ranks = tuple(sorted({self.shape.ranks(index % self.shape.places)[0] for index in owners}))
            if len(ranks) > 1:
                for index in owners:
                    reduces[index] = True
                    more = all_reduce_ns(self.cluster, ranks, size)
                    priced[index] = replace(priced[index], reduce_ns=priced[index].reduce_ns + more)
        return tuple(flag and cost.backward for flag, cost in zip(reduces, priced, strict=True)), priced

    def _tied(self, stages: Sequence[tuple[int, ...]]) -> Iterable[tuple[tuple[int, ...], int]]:
        """Yield the stages that read a trainable parameter, where there are several, and a rank's bytes of it."""
        model = next(iter(self.models.values()))
        degrees = Degrees.of(self.shape.config, model.training.sequence_parallel)
        readers: dict[str, dict[int, int]] = {}
        for index, operators in enumerate(stages):
            for position in operators:
                for name in self.graph.operators[position].parameters:
                    readers.setdefault(name, {})[index] = position
        for name, row in readers.items():
            parameter = self.graph.parameter_index[name]
            if len(row) > 1 and parameter.trainable:
                operator = self.graph.operators[next(iter(row.values()))]
                width = model.training.width(0)
                size = width * prod(parameter.shape) if width else parameter.size_bytes
                yield tuple(row), size // parameter_parts(parameter, operator, degrees)


def _compact(operators: tuple[int, ...]) -> Sequence[int]:
    """Return a range where operators follow each other, which is priced faster."""
    if operators[-1] - operators[0] + 1 == len(operators):
        return range(operators[0], operators[-1] + 1)
    return operators
