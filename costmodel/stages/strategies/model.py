"""The price of a stage under a `StageConfig`: times, memory term by term, communication inside it.

Everything that depends on operators alone is made once a configuration (`Vectors`) and answered for a stage by
differences of prefix sums; the rest is a handful of collectives, remembered. Leaves out what flows between stages,
tied parameters of several stages, and orders.
"""

from collections.abc import Sequence
from functools import cached_property

from costmodel.errors import UsageError
from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from costmodel.stages.measured import MeasuredOperators
from costmodel.stages.strategies.assembly import Build, VectorCache
from costmodel.stages.strategies.division import Degrees, why_whole
from costmodel.stages.strategies.efficiency import Efficiency
from costmodel.stages.strategies.groups import GroupFinder
from costmodel.stages.strategies.memory import MemoryTerms
from costmodel.stages.strategies.memory_terms import MemoryModel, check_host
from costmodel.stages.strategies.spread import ActionTimes, Spread, copies_of
from costmodel.stages.strategies.steps import StepTimes
from costmodel.stages.strategies.training import TrainingJob
from costmodel.stages.strategies.unions import UnionSums
from costmodel.stages.strategies.vectors import Vectors


class StrategyModel:
    """Prices stages of one profile on one cluster at one micro-batch size.

    Parameters
    ----------
    profile : Profile
        Measured, or made by ``penstock model``.
    cluster : Cluster
    microbatch_size : int
        Samples of one micro-batch on one data-parallel rank.
    training : TrainingJob

    Raises
    ------
    UsageError
        When the profile's device is not in the catalogue and another precision than the profile's is asked for.
    """

    def __init__(self, profile: Profile, cluster: Cluster, microbatch_size: int, training: TrainingJob) -> None:
        self.profile, self.cluster, self.training = profile, cluster, training
        self.microbatch_size = microbatch_size
        self.measured = MeasuredOperators(profile, microbatch_size)
        self._groups = GroupFinder(cluster)
        self._build = Build(self.measured, cluster, training, Efficiency(self.measured, training))
        self._memory_model, self._steps = MemoryModel(self._build), StepTimes(self._build)
        self._stubborn: dict[Degrees, tuple[int, ...]] = {}
        self._vectors = VectorCache(self._build)
        self._terms: dict[object, tuple[MemoryTerms, int]] = {}
        self._stages: dict[object, StageCost] = {}

    def stage(
        self,
        operators: Sequence[int],
        config: StageConfig,
        ranks: Sequence[int],
        received: Sequence[int] = (),
        num_microbatches: int = 1,
    ) -> StageCost:
        """Return what one action of a stage costs on each of its ranks.

        Parameters
        ----------
        operators : sequence of int
            Positions in the graph; a `range` is fastest.
        config : StageConfig
        ranks : sequence of int
            data x context x tensor of them, tensor innermost.
        received : sequence of int
            Positions of the tensors that arrive from other stages and stay until the backward.
        num_microbatches : int
            Of a step; with one, gradients are not added to others.

        Returns
        -------
        StageCost
            ``recompute_ns`` is spent inside B or I, or by R (`TrainingJob.whole_stages`); ``static_bytes`` holds all
            but activations.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked, or the ranks are not as many as the degrees make.
        NoPlanFits
            When a host cannot hold what is offloaded to it.
        """
        arrived = tuple(received)
        spread = self._spread(operators, config, ranks, arrived)
        key = (spread.key, arrived, num_microbatches > 1)
        if key not in self._stages:
            self._stages[key] = self._stage(spread, arrived, num_microbatches)
        return self._stages[key]

    def terms(
        self,
        operators: Sequence[int],
        config: StageConfig,
        ranks: Sequence[int],
        num_microbatches: int,
        in_flight: int,
        received: Sequence[int] = (),
    ) -> MemoryTerms:
        """Return the memory of a stage on one rank, term by term, with `in_flight` micro-batches alive.

        Raises
        ------
        UsageError
            As `stage`.
        """
        arrived = tuple(received)
        spread = self._spread(operators, config, ranks, arrived)
        return self._memory(spread, arrived, min(in_flight, num_microbatches))

    def tensor_bytes(self, config: StageConfig) -> tuple[int, ...]:
        """Return what a rank of a stage with this configuration holds, and sends on, of each tensor of the graph."""
        return self._build.tensor_bytes(self._degrees(config))

    def times(self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int]) -> ActionTimes:
        """Return the times of one action that add up over operators: no ZeRO, no sums over copies, no offload."""
        return self._spread(operators, config, ranks).times()

    def works_ns(self, config: StageConfig, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return what each operator alone takes of one action, F, I and W together."""
        return tuple(map(sum, zip(*(row.alone() for row in self._work_rows(config, ranks)), strict=True)))

    def least_work_ns(self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int]) -> int:
        """Return what operators take of one action at least: as one stage, which gathers what is shared once.

        Those without gradient of their own may stand in a stage that has no backward at all.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        self.check_divides(operators, config)
        forward, *backward = self._work_rows(config, ranks)
        trained = (
            operators if self._all_trained else [i for i in operators if self.profile.graph.operators[i].trainable]
        )
        return forward.over(operators) + sum(row.over(trained) for row in backward)

    @cached_property
    def _all_trained(self) -> bool:
        return all(operator.trainable for operator in self.profile.graph.operators)

    def states_bytes(self, config: StageConfig, ranks: Sequence[int]) -> int:
        """Return what parameters, gradients and states of the whole model take on one rank."""
        weights, operators = self._vectors.weights(self._degrees(config)), range(len(self.profile.graph.operators))
        states = self._memory_model.states(config, copies_of(weights, self._groups.of(ranks, config), operators))
        return states.parameters + states.gradients + states.optimizer + states.master_weights

    def least_update_ns(self, config: StageConfig, ranks: Sequence[int], num_places: int) -> int:
        """Return what the optimizer's steps on so many places, which share the model, take together at least, ns.

        Parameters that only operators without gradient read do not count: their stage may have no backward.
        """
        if config.offload in ("optimizer", "parameters"):
            return 0
        trained = [i for i, operator in enumerate(self.profile.graph.operators) if operator.trainable]
        weights = self._vectors.weights(self._degrees(config))
        copies = copies_of(weights, self._groups.of(ranks, config), trained)
        return self._steps.least_update_ns(copies, config.zero, num_places)

    def _work_rows(self, config: StageConfig, ranks: Sequence[int]) -> tuple[UnionSums, ...]:
        times = self._vectors.times(self._degrees(config), self._groups.of(ranks, config))
        return times.forward, times.backward_input, times.backward_weight

    def _spread(
        self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int], received: Sequence[int] = ()
    ) -> Spread:
        members = operators if isinstance(operators, range) else tuple(sorted(operators))
        groups = self._groups.of(ranks, config)
        degrees = self._degrees(config)
        in_blocks = config.recompute != "full" or not self.training.whole_stages
        vectors = self._vectors.of(degrees, config.recompute if in_blocks else "none", groups)
        if config.recompute == "full" and in_blocks:
            # blocks whose inputs are larger than what they keep gain nothing: such a stage keeps what it made
            plain = self._vectors.of(degrees, "none", groups)
            if self._kept_bytes(plain, members, received) <= self._kept_bytes(vectors, members, received):
                vectors = plain
        return Spread(members, config, ranks[0], groups, vectors)

    def _kept_bytes(self, vectors: Vectors, operators: Sequence[int], received: Sequence[int]) -> int:
        """Return what one micro-batch keeps, with what was received for it."""
        return vectors.kept.kept.over(operators) + vectors.kept.received(received, self.profile.graph, operators)

    def _stage(self, spread: Spread, received: tuple[int, ...], num_microbatches: int) -> StageCost:
        times = spread.times()
        if num_microbatches > 1:
            added = self._build.accumulation.part_ns(spread.vectors.weights.accumulated.over(spread.operators))
            times = times._replace(backward_weight=times.backward_weight + added)
        memory = self._memory(spread, received, 1)
        check_host(self._build, spread, memory)
        trains = any(self.profile.graph.operators[i].trainable for i in spread.operators)
        whole = self._steps.of_microbatch(spread, times, memory)
        reduce_ns, optimizer_ns = self._steps.of_step(spread, times, memory)
        held, static = memory.activations.point, memory.static()
        # what W needs again of a block is made again by its I: nothing is freed between the two
        whole_again = spread.config.recompute == "full" and self.training.whole_stages
        in_blocks = spread.config.recompute == "full" and not self.training.whole_stages
        late = held if in_blocks else spread.vectors.kept.late.over(spread.operators)
        again = whole.forward if whole_again else whole.recompute
        return StageCost(
            forward_ns=whole.forward,
            backward_input_ns=whole.backward_input,
            backward_weight_ns=whole.backward_weight,
            recompute_ns=again if trains else 0,
            activation_bytes=held,
            weight_activation_bytes=min(late, held),
            static_bytes=sum(size for _, size in static),
            reduce_ns=reduce_ns,
            optimizer_ns=optimizer_ns,
            backward=trains,
            memory_terms=static,
        )

    def _memory(self, spread: Spread, received: tuple[int, ...], in_flight: int) -> MemoryTerms:
        key = (spread.key, received)
        if key not in self._terms:
            self.check_divides(spread.operators, spread.config)
            kept = self._kept_bytes(spread.vectors, spread.operators, received)
            self._terms[key] = self._memory_model.terms(spread, kept), kept
        one, kept = self._terms[key]
        return one if in_flight == 1 else self._memory_model.with_more(spread, one, kept, in_flight)

    def check_divides(self, operators: Sequence[int], config: StageConfig) -> None:
        """Refuse (`UsageError`) a configuration that does not divide some of these operators."""
        degrees = self._degrees(config)
        if degrees not in self._stubborn:
            known = enumerate(self.profile.graph.operators)
            self._stubborn[degrees] = tuple(i for i, operator in known if why_whole(operator, degrees))
        for position in self._stubborn[degrees]:
            if position in operators:
                raise UsageError(why_whole(self.profile.graph.operators[position], degrees))

    def _degrees(self, config: StageConfig) -> Degrees:
        return Degrees.of(config, self.training.sequence_parallel)
