"""The price of a stage under a `StageConfig`: times, memory term by term, communication inside it.

A stage is answered for by differences of prefix sums (`OperatorAmounts`); the rest is a handful of collectives,
remembered. Leaves out what flows between stages, tied parameters of several stages, and orders.
"""

from collections.abc import Sequence

from costmodel.errors import UsageError
from costmodel.machines.cluster import Cluster
from costmodel.model.graph import LOSS
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost
from costmodel.stages.strategies.amounts import OperatorAmounts
from costmodel.stages.strategies.division import divided_along
from costmodel.stages.strategies.joint_backward import joint_backward_bytes
from costmodel.stages.strategies.memory import MemoryTerms
from costmodel.stages.strategies.memory_terms import check_host
from costmodel.stages.strategies.stage_sharding import ActionTimes, StageSharding
from costmodel.stages.strategies.time_terms import TimeTerms, terms_of_stage
from costmodel.stages.strategies.training import TrainingJob
from costmodel.stages.strategies.vectors import Vectors


class StrategyModel(OperatorAmounts):
    """Prices stages of one profile on one cluster at one micro-batch size; made as `OperatorAmounts` are."""

    def __init__(self, profile: Profile, cluster: Cluster, microbatch_size: int, training: TrainingJob) -> None:
        super().__init__(profile, cluster, microbatch_size, training)
        self._terms: dict[object, tuple[MemoryTerms, int]] = {}
        self._stages: dict[object, StageCost] = {}
        self._blocks_again: dict[tuple[Sequence[int], tuple[str, ...]], tuple[str, ...]] = {}

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
            When an operator cannot be divided as asked, the ranks are not as many as the degrees make, or an operator
            that is to run again is not in the stage.
        NoPlanFits
            When a host cannot hold what is offloaded to it.
        """
        arrived = tuple(received)
        sharding = self._sharding(operators, config, ranks, arrived)
        key = (sharding.key, arrived, num_microbatches if self.training.by_block else num_microbatches > 1)
        if key not in self._stages:
            self._stages[key] = self._stage(sharding, arrived, num_microbatches)
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
        sharding = self._sharding(operators, config, ranks, arrived)
        return self._memory(sharding, arrived, num_microbatches, min(in_flight, num_microbatches))

    def tensor_bytes(self, config: StageConfig) -> tuple[int, ...]:
        """Return what a rank of a stage with this configuration holds, and sends on, of each tensor of the graph."""
        return self._build.tensor_bytes(self._degrees(config))

    def times(self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int]) -> ActionTimes:
        """Return the times of one action that add up over operators: no ZeRO, no sums over copies, no offload."""
        return self._sharding(operators, config, ranks).times()

    def time_terms(
        self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int], num_microbatches: int
    ) -> TimeTerms:
        """Return what kinds of work, links and the host take of an action of a stage, as `stage` prices it."""
        sharding = self._sharding(operators, config, ranks)
        degrees, alone = self._degrees(config), sharding.times()
        whole = self._steps.of_microbatch(sharding, alone, self._memory(sharding, (), 1, 1))
        weights, adds = sharding.vectors.weights, num_microbatches > 1
        return terms_of_stage(
            sharding,
            self._build,
            lambda i: self._build.efficiency.times(i, degrees),
            self._build.accumulation.part_ns(weights.accumulated.over(operators)) if adds else 0,
            (whole.forward - alone.forward, whole.backward - alone.backward),
        )

    def divided_along(self, tensors: Sequence[int], config: StageConfig) -> int | None:
        """Return the dimension along which tensors that leave a stage are divided among its lanes; None where whole."""
        graph, degrees = self.profile.graph, self._degrees(config)
        producers = [graph.index[graph.tensors[t].producer] for t in tensors]
        found = (divided_along(graph, position, degrees) for position in producers)
        return next((dimension for dimension in found if dimension is not None), None)

    def _in_whole_blocks(self, members: Sequence[int], config: StageConfig) -> str | tuple[str, ...]:
        """Return what runs again, with blocks whole of which all that a stage holds does: so that stages share prices.

        What of such a block lies in another stage counts for nothing here.
        """
        names = config.recomputed_operators
        if not names:
            return config.recompute
        if (members, names) not in self._blocks_again:
            graph, again = self.profile.graph, frozenset(names)
            named = [i for i in members if graph.operators[i].name in again]
            blocks = {graph.blocks[i] for i in named} - {""}
            whole = named == [i for i in members if graph.blocks[i] in blocks]
            held = (o.name for o, block in zip(graph.operators, graph.blocks, strict=True) if block in blocks)
            self._blocks_again[members, names] = tuple(held) if whole else names
        return self._blocks_again[members, names]

    def _sharding(
        self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int], received: Sequence[int] = ()
    ) -> StageSharding:
        members = operators if isinstance(operators, range) else tuple(sorted(operators))
        groups = self._groups.of(ranks, config)
        degrees = self._degrees(config)
        in_blocks = config.recompute != "full" or not self.training.whole_stages
        vectors = self._vectors.of(degrees, self._in_whole_blocks(members, config) if in_blocks else "none", groups)
        if config.recompute == "full" and in_blocks:
            # blocks whose inputs are larger than what they keep gain nothing: such a stage keeps what it made
            plain = self._vectors.of(degrees, "none", groups)
            if self._kept_bytes(plain, members, received) <= self._kept_bytes(vectors, members, received):
                vectors = plain
        return StageSharding(members, config, ranks[0], groups, vectors)

    def _kept_bytes(self, vectors: Vectors, operators: Sequence[int], received: Sequence[int]) -> int:
        """Return what one micro-batch keeps, with what was received for it."""
        return vectors.saved.until_backward.over(operators) + vectors.saved.received(
            received, self.profile.graph, operators
        )

    def _check_again(self, sharding: StageSharding) -> None:
        """Refuse (`UsageError`) to run again what the stage does not hold."""
        held = [self.profile.graph.operators[i].name for i in sharding.operators]
        lacking = [name for name in sharding.config.recomputed_operators if name not in held]
        if lacking:
            raise UsageError(
                f"config.again names {lacking[0]!r}, which the stage from {held[0]!r} to {held[-1]!r} does not hold; "
                "name operators of the stage"
            )

    def _stage(self, sharding: StageSharding, received: tuple[int, ...], num_microbatches: int) -> StageCost:
        self._check_again(sharding)
        times = sharding.times()
        if num_microbatches > 1:
            added = self._build.accumulation.part_ns(sharding.vectors.weights.accumulated.over(sharding.operators))
            times = times._replace(backward_weight=times.backward_weight + added)
        memory = self._memory(sharding, received, num_microbatches, 1)
        check_host(self._build, sharding, memory)
        trains = any(self.profile.graph.operators[i].trainable for i in sharding.operators)
        whole = self._steps.of_microbatch(sharding, times, memory)
        reduce_ns, optimizer_ns = self._steps.of_step(sharding, times, memory)
        held, static, joint = memory.activations.point, dict(memory.static()), self._joint_bytes(sharding, memory)
        if joint:
            static["communication_buffers"] -= joint
        # what W needs again of a block is made again by its I: nothing is freed between the two
        whole_again = sharding.config.recompute == "full" and self.training.whole_stages
        in_blocks = sharding.config.recompute == "full" and not self.training.whole_stages
        late = held if in_blocks else sharding.vectors.saved.until_weight.over(sharding.operators)
        again = whole.forward if whole_again else whole.recompute
        return StageCost(
            forward_ns=whole.forward,
            backward_input_ns=whole.backward_input,
            backward_weight_ns=whole.backward_weight,
            recompute_ns=again if trains else 0,
            activation_bytes=held,
            weight_activation_bytes=min(late, held),
            static_bytes=sum(static.values()),
            reduce_ns=reduce_ns,
            optimizer_ns=optimizer_ns,
            backward=trains,
            memory_terms=tuple(static.items()),
            joint_bytes=joint,
        )

    def _joint_bytes(self, sharding: StageSharding, memory: MemoryTerms) -> int:
        """Return what only a whole backward has, of replicas that divide parameters as the executor does."""
        if not (self.training.whole_stages and sharding.config.gathers):
            return 0
        working = self._memory_model.working_bytes(sharding.vectors, sharding.operators, sharding.config.tensor)
        buffers, unsharded = memory.communication_buffers.point, memory.unsharded_parameters.point
        has_loss = self.profile.graph.index.get(LOSS, -1) in sharding.operators
        return joint_backward_bytes(sharding, buffers, unsharded, working, has_loss=has_loss)

    def _memory(
        self, sharding: StageSharding, received: tuple[int, ...], num_microbatches: int, in_flight: int
    ) -> MemoryTerms:
        key = (sharding.key, received, num_microbatches if self.training.by_block else 0)
        if key not in self._terms:
            self.check_divides(sharding.operators, sharding.config)
            kept = self._kept_bytes(sharding.vectors, sharding.operators, received)
            self._terms[key] = self._memory_model.terms(sharding, kept, num_microbatches), kept
        one, kept = self._terms[key]
        return one if in_flight == 1 else self._memory_model.with_more(sharding, one, kept, in_flight)
