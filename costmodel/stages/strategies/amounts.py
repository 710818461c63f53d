"""What operators take and hold under a `StageConfig`, each alone or all together: bounds and estimates stand on this.

Everything that depends on operators alone is made once a configuration (`Vectors`). What several operators share counts
once, as in a stage; what a method calls least holds of every way to share the model among stages. Leaves out what one
stage costs (`costmodel.stages.strategies.model`).
"""

from collections.abc import Sequence
from functools import cached_property

from costmodel.machines.cluster import Cluster
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.amount_rows import ActionAmounts, HeldAmounts
from costmodel.stages.strategies.assembly import VectorCache
from costmodel.stages.strategies.blocks import block_spans
from costmodel.stages.strategies.build import Build
from costmodel.stages.strategies.division import Degrees
from costmodel.stages.strategies.efficiency import Efficiency
from costmodel.stages.strategies.gradients import Copies, Overlap
from costmodel.stages.strategies.groups import GroupFinder
from costmodel.stages.strategies.memory_terms import MemoryModel
from costmodel.stages.strategies.shared_sums import SharedSums
from costmodel.stages.strategies.stage_sharding import copies_of
from costmodel.stages.strategies.steps import StepTimes
from costmodel.stages.strategies.training import TrainingJob
from costmodel.stages.strategies.undivided_operators import UndividedOperators

NEVER = 1 << 60
"""More nanoseconds than any step takes."""


class OperatorAmounts:
    """Amounts of one profile's operators on one cluster at one micro-batch size.

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
        self._undivided = UndividedOperators(profile.graph.operators)
        self._bare: dict[Degrees, tuple[int, ...]] = {}
        self._vectors = VectorCache(self._build)

    def works_ns(self, config: StageConfig, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return what each operator alone takes of one action, F, I and W together."""
        return tuple(map(sum, zip(*(row.alone() for row in self._work_rows(config, ranks)), strict=True)))

    def bare_work_ns(self, config: StageConfig) -> int:
        """Return what all operators take of one action on one rank at least: their own work, nothing that is sent.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        return sum(self.bare_works_ns(config))

    def bare_works_ns(self, config: StageConfig) -> tuple[int, ...]:
        """Return the same of all operators of each kind.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        degrees = self._degrees(config)
        if degrees not in self._bare:
            self.check_divides(range(len(self.profile.graph.operators)), config)
            self._bare[degrees] = self._build.bare_works_ns(degrees)
        return self._bare[degrees]

    def least_work_ns(self, operators: Sequence[int], config: StageConfig, ranks: Sequence[int]) -> int:
        """Return what operators take of one action at least: as one stage, which gathers what is shared once.

        Those without gradient of their own may be in a stage that has no backward at all.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        self.check_divides(operators, config)
        if len(operators) == len(self.profile.graph.operators):
            return sum(self._build.whole_work_ns(self._degrees(config), self._groups.of(ranks, config)))
        forward, *backward = self._work_rows(config, ranks)
        all_trained = isinstance(self._trained, range)
        trained = operators if all_trained else [i for i in operators if self.profile.graph.operators[i].trainable]
        return forward.over(operators) + sum(row.over(trained) for row in backward)

    def kept_bytes(self, config: StageConfig) -> int:
        """Return what the whole model keeps of one micro-batch where nothing runs again or is offloaded.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        self.check_divides(range(len(self.profile.graph.operators)), config)
        return self._vectors.kept_bytes(self._degrees(config))

    def stays(
        self, config: StageConfig, ranks: Sequence[int], *, adds: bool, split_backward: bool = False
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return what each operator takes of one action, what it keeps of one micro-batch, and its forward run again.

        Where backwards are split, I frees what was kept: W does not count in the time.

        What several gather, or add up, together counts with the first of them, what several keep with the last; 0 for
        the backward and for what is kept of operators that have none, and for forwards that do not run again. Gradients
        are added to others if the step `adds` any.
        """
        degrees, groups = self._degrees(config), self._groups.of(ranks, config)
        forward, *backward = (row.at_first() for row in self._work_rows(config, ranks))
        kept = self._vectors.of(degrees, "none", groups).saved.until_backward.at_last()
        if split_backward:
            del backward[1:]
        elif adds:
            known = self._build.accumulation
            backward.append([known.least_ns(size) for size in self._vectors.weights(degrees).accumulated.at_first()])
        for i, operator in enumerate(self.profile.graph.operators):
            if operator.trainable:
                forward[i] += sum(row[i] for row in backward)
            else:
                kept[i] = 0
        whole = config.recompute == "full" and self.training.whole_stages
        return forward, kept, self._vectors.forwards_again(degrees, config.remade, whole=whole)

    def action_amounts(self, config: StageConfig, ranks: Sequence[int]) -> ActionAmounts:
        """Return what each operator takes of one action; what several share counts with the first of them."""
        forward, inputs, weights = (row.at_first() for row in self._work_rows(config, ranks))
        trained = [operator.trainable for operator in self.profile.graph.operators]
        vectors = self._vectors.of(self._degrees(config), config.remade, self._groups.of(ranks, config))
        added, host = vectors.weights.accumulated.at_first(), vectors.times.host_dispatch
        none = [0] * len(trained)
        return ActionAmounts(
            forward,
            [(i + w) * is_trained for i, w, is_trained in zip(inputs, weights, trained, strict=True)],
            list(map(self._build.accumulation.least_ns, added)),
            *(host.at_first() if host else (none, none)),
        )

    def held_amounts(self, config: StageConfig, ranks: Sequence[int]) -> HeldAmounts:
        """Return what each operator holds; what several share counts with the first of them."""
        vectors = self._vectors.of(self._degrees(config), config.remade, self._groups.of(ranks, config))
        operators, weights = range(len(self.profile.graph.operators)), vectors.weights
        whole = config.recompute == "full" and self.training.whole_stages
        return HeldAmounts(
            [whole or ns > 0 for ns in vectors.recomputed.alone()],
            vectors.saved.until_backward.at_first(),
            (weights.dense.at_first(), weights.experts.at_first()),
            (weights.trainable.at_first(), weights.trainable_experts.at_first()),
            vectors.recompute_peak(operators),
            vectors.largest_weights(operators),
            self._memory_model.working_bytes(vectors, operators, config.tensor),
        )

    def states_of(self, config: StageConfig, ranks: Sequence[int]) -> list[int]:
        """Return what weights that no operator before reads take on one rank, with gradients and states, unsharded."""
        weights = self._vectors.weights(self._degrees(config))
        pairs = (weights.dense, weights.experts), (weights.trainable, weights.trainable_experts)
        held, trained = ([a + b for a, b in zip(*(each.at_first() for each in pair), strict=True)] for pair in pairs)
        states = self.states_bytes(config, ranks) - sum(held)
        if states < 0:  # parameters live on the host
            return [0] * len(held)
        return [size + states * mine // max(1, sum(trained)) for size, mine in zip(held, trained, strict=True)]

    def states_bytes(self, config: StageConfig, ranks: Sequence[int]) -> int:
        """Return what parameters, gradients and states of the whole model take on one rank."""
        weights, operators = self._vectors.weights(self._degrees(config)), range(len(self.profile.graph.operators))
        states = self._memory_model.states(config, copies_of(weights, self._groups.of(ranks, config), operators))
        return states.parameters + states.gradients + states.optimizer + states.master_weights

    def least_microbatch_ns(self, config: StageConfig, ranks: Sequence[int], num_places: int, again_ns: int) -> int:
        """Return what one micro-batch takes of the whole model at least, what ZeRO sends with it included, ns.

        So many stages share the model, those of the first on `ranks`; `again_ns` of forwards run again.

        Raises
        ------
        UsageError
            When an operator cannot be divided as asked.
        """
        self.check_divides(range(len(self.profile.graph.operators)), config)
        forward, backward = self._build.whole_work_ns(self._degrees(config), self._groups.of(ranks, config))
        work = forward, backward + again_ns
        if config.data * config.context == 1 or not self._groups.lie_alike(len(ranks)):
            return sum(work)
        copies, trained = self._whole_copies(config, ranks)
        return self._steps.least_microbatch_ns(copies, trained, config.zero, work, num_places)

    def least_closing_ns(
        self,
        config: StageConfig,
        ranks: Sequence[int],
        num_stages: int,
        work_ns: float,
        most_kinds: int,
        *,
        alone: bool,
    ) -> int:
        """Return what copies of the whole model send at least when a step ends and nothing hides it, ns.

        `work_ns` is what one micro-batch takes at least, and hides sums of up to `most_kinds` kinds of copies, each as
        much; `alone`: one stage a place.
        """
        if config.data * config.context == 1 or not self._groups.lie_alike(len(ranks)):
            return 0
        trained = self._whole_copies(config, ranks)[1]
        return self._steps.least_closing_ns(trained, config.zero, num_stages, work_ns, most_kinds, alone=alone)

    def again_ns(self, config: StageConfig) -> int:
        """Return what forwards that run again take of the whole model, where every stage gains by it."""
        return self._vectors.again_ns(self._degrees(config), config.remade)

    def least_again_ns(self, config: StageConfig, freed_bytes: int) -> int:
        """Return the least time of recompute by which a micro-batch keeps `freed_bytes` fewer bytes.

        Operators that free most for their time come first, the last of them in part; what several keep counts for each
        of them. `NEVER` where all of them together free too little.
        """
        if freed_bytes <= 0:
            return 0
        if config.recompute == "full" and self.training.whole_stages:
            return NEVER  # all of a stage is made again at once, and is there then
        left, spent = freed_bytes, 0.0
        for time_ns, kept_bytes in self._vectors.savings(self._degrees(config), config.remade):
            if left <= kept_bytes:
                return int(spent + time_ns * left / kept_bytes)
            left, spent = left - kept_bytes, spent + time_ns
        return NEVER

    def least_accumulation_ns(self, config: StageConfig) -> int:
        """Return what adding the gradients of one micro-batch of the whole model takes at least, ns; stages round."""
        weights = self._vectors.weights(self._degrees(config))
        return self._build.accumulation.part_ns(weights.accumulated.over(self._trained))

    def least_update_ns(self, config: StageConfig, ranks: Sequence[int], num_places: int) -> int:
        """Return the least total time of the optimizer's steps on stages that share the model, ns.

        Parameters that only operators without gradient read do not count: their stage may have no backward.
        """
        if config.offload in ("optimizer", "parameters"):
            return 0
        weights = self._vectors.weights(self._degrees(config))
        copies = copies_of(weights, self._groups.of(ranks, config), self._trained)
        return self._steps.least_update_ns(copies, config.zero, num_places)

    def update_ns(self, shard_bytes: int) -> int:
        """Return the time of the optimizer's step on a device, given the bytes of trained parameters."""
        if self.training.optimizer == "none":
            return 0
        return self._steps.on_device_ns(shard_bytes, self.cluster.device_of(0).catalogue)

    @property
    def overlap(self) -> Overlap:
        """How sums of gradients, and copies to hosts, hide behind compute."""
        return self._steps.overlap

    @property
    def overlap_of_gathers(self) -> Overlap:
        """How gathers of parameters hide."""
        return self._steps.gathers

    @property
    def num_blocks(self) -> int:
        """Parts in which the whole model's weights are gathered, at least 1."""
        return max(1, len(block_spans(self._build.block_names)))

    def check_divides(self, operators: Sequence[int], config: StageConfig) -> None:
        """Refuse (`UsageError`) a configuration that does not divide some of these operators."""
        self._undivided.check(operators, self._degrees(config))

    @cached_property
    def _trained(self) -> Sequence[int]:
        """Operators that have a backward."""
        found = [i for i, operator in enumerate(self.profile.graph.operators) if operator.trainable]
        return range(len(found)) if len(found) == len(self.profile.graph.operators) else found

    def _whole_copies(
        self, config: StageConfig, ranks: Sequence[int]
    ) -> tuple[tuple[Copies, Copies], tuple[Copies, Copies]]:
        """Return the copies of all weights, and of those that operators with a backward read."""
        weights, groups = self._vectors.weights(self._degrees(config)), self._groups.of(ranks, config)
        everything = range(len(self.profile.graph.operators))
        return copies_of(weights, groups, everything), copies_of(weights, groups, self._trained)

    def _work_rows(self, config: StageConfig, ranks: Sequence[int]) -> tuple[SharedSums, ...]:
        times = self._vectors.times(self._degrees(config), self._groups.of(ranks, config))
        return times.forward, times.backward_input, times.backward_weight

    def _degrees(self, config: StageConfig) -> Degrees:
        return Degrees.of(config, self.training.sequence_parallel)
