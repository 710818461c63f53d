"""What one configuration of the sweep takes: a step time in closed form and memory, from the cost model's stages.

Layers are divided evenly, the embedding stands with the first stage and the head with the last; stages between them
are alike, so that three are priced. T = (m - 1) x largest stage + longest path (all stages and their transfers, both
ways) + the largest sum of gradients and optimizer step: an estimate of 1F1B, not a bound. `simulated_ns` prices every
stage and simulates. Leaves out the sum of tied gradients between first and last stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.sweep.choices import Choice, Group, Job
from costmodel.errors import NoPlanFits
from costmodel.machines.cluster import Cluster
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.blocks import block_names, block_spans


@dataclass(frozen=True, slots=True)
class Price:
    """Step time and memory of the fullest rank; `num_stages` were priced for it."""

    time_ns: int
    memory_bytes: int
    upper_bytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A stage of an even division: positions of its operators, and of the tensors that it receives."""

    operators: range
    received: tuple[int, ...]


FamilyPartitions = tuple[Cut, ...]


class Prices:
    """Prices configurations of one group.

    Parameters
    ----------
    profile : Profile
    cluster : Cluster
    job : Job
    cuts : mapping
        `even_cuts` by number of stages.
    group : Group
    """

    def __init__(
        self, profile: Profile, cluster: Cluster, job: Job, cuts: Mapping[int, FamilyPartitions], group: Group
    ) -> None:
        training = TrainingJob("bf16", "adam", group.sequence_parallel, overlap=group.overlap)
        self.cluster, self.cuts, self.global_batch = cluster, cuts, job.global_batch
        self._known_transfers: dict[tuple[int, int, int], int] = {}
        self.model = StrategyModel(profile, cluster, group.microbatch_size, training)

    def price(self, choice: Choice) -> Price | None:
        """Price one configuration; None where a host cannot hold what is offloaded."""
        cuts, m = self.cuts[choice.pipeline], choice.num_microbatches(self.global_batch)
        distinct = sorted({0, min(1, len(cuts) - 1), len(cuts) - 1})
        try:
            stages = {i: self._stage(choice, cuts[i], i) for i in distinct}
        except NoPlanFits:
            return None
        busy = {i: _busy_ns(stage) for i, stage in stages.items()}
        between = max(0, len(cuts) - 2)
        path = busy[0] + (busy[len(cuts) - 1] if len(cuts) > 1 else 0) + (between * busy[1] if between else 0)
        closing = max(stage.reduce_ns + stage.optimizer_ns for stage in stages.values())
        transfers = 2 * self._transfer_ns(choice, cuts)
        point, upper = zip(*(self._memory(choice, cuts, i) for i in distinct), strict=True)
        return Price((m - 1) * max(busy.values()) + path + transfers + closing, max(point), max(upper))

    def simulated_ns(self, choice: Choice) -> int:
        """Price every stage on its own ranks and simulate 1F1B."""
        from simulator.engine import simulate
        from simulator.lowering import close_step
        from simulator.schedules import build_schedule

        cuts, m = self.cuts[choice.pipeline], choice.num_microbatches(self.global_batch)
        stages = tuple(self._stage(choice, cut, i) for i, cut in enumerate(cuts))
        edges = tuple(EdgeCost(i, i + 1, ns) for i, ns in enumerate(self._transfers(choice, cuts)))
        costs = Costs(stages, edges)
        reduces = [stage.reduce_ns > 0 for stage in stages]
        return simulate(close_step(build_schedule("1f1b", costs, m), reduces, True), costs).step_time_ns

    def _stage(self, choice: Choice, cut: Cut, index: int) -> StageCost:
        m = choice.num_microbatches(self.global_batch)
        return self.model.stage(cut.operators, choice.config, _ranks(choice, index), cut.received, m)

    def _memory(self, choice: Choice, cuts: FamilyPartitions, index: int) -> tuple[int, int]:
        """Return estimate and upper bound with the micro-batches that 1F1B keeps in flight."""
        cut, m = cuts[index], choice.num_microbatches(self.global_batch)
        in_flight = len(cuts) - index
        terms = self.model.terms(cut.operators, choice.config, _ranks(choice, index), m, in_flight, cut.received)
        return terms.point_bytes, terms.upper_bytes

    def _transfer_ns(self, choice: Choice, cuts: FamilyPartitions) -> int:
        """Return the time of all transfers on one way; it depends on the layout alone."""
        config = choice.config
        layout = (choice.pipeline, config.context, config.data)
        if layout not in self._known_transfers:
            self._known_transfers[layout] = sum(self._transfers(choice, cuts))
        return self._known_transfers[layout]

    def _transfers(self, choice: Choice, cuts: FamilyPartitions) -> list[int]:
        """Return the time of each edge's message, one way."""
        size = sum(map(self.model.tensor_bytes(choice.config).__getitem__, cuts[-1].received))
        width = choice.ranks_per_stage
        return [self.cluster.p2p_ns(i * width, (i + 1) * width, size) for i in range(len(cuts) - 1)]


def _ranks(choice: Choice, index: int) -> range:
    width = choice.ranks_per_stage
    return range(index * width, (index + 1) * width)


def _busy_ns(stage: StageCost) -> int:
    """Time of F and B of one micro-batch."""
    amounts = (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.recompute_ns)
    return sum(amount for amount in amounts if isinstance(amount, int))


def even_cuts(graph: OperatorGraph, num_stages: int) -> FamilyPartitions:
    """Divide the layers evenly; `num_stages` divides them."""
    spans = block_spans(block_names(graph.operators))
    firsts = [0, *(spans[i * len(spans) // num_stages].start for i in range(1, num_stages)), len(graph.operators)]
    return tuple(Cut(range(start, stop), _received(graph, range(start, stop))) for start, stop in pairwise(firsts))


def _received(graph: OperatorGraph, operators: range) -> tuple[int, ...]:
    return tuple(
        position
        for position, tensor in enumerate(graph.tensors)
        if graph.index[tensor.producer] < operators.start
        and any(graph.index[consumer] in operators for consumer in tensor.consumers)
    )
