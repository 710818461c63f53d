"""What copies of a stage and its host cost in time: with every micro-batch, and once a step.

Sources are in `costmodel.stages.strategies.gradients` (copies) and `host` (offload). Leaves out contention between
collectives of different stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from costmodel.machines.catalogue import device as catalogue_device
from costmodel.machines.catalogue import kept_in
from costmodel.roofline import optimizer_step_ns
from costmodel.stages.strategies import host
from costmodel.stages.strategies.build import Build
from costmodel.stages.strategies.division import ceil
from costmodel.stages.strategies.gradients import Collectives, Copies, Overlap
from costmodel.stages.strategies.memory import MemoryTerms
from costmodel.stages.strategies.stage_sharding import ActionTimes, StageSharding
from costmodel.stages.strategies.states import SCATTERED

OVERLAP_SLOWDOWN = 1.19
"""For devices that the catalogue does not know; its source is that of the catalogue's `overlap_slowdown`."""


@dataclass(frozen=True)
class StepTimes:
    """Times of stages of one `Build` beyond what adds up over operators."""

    build: Build

    def of_microbatch(self, sharding: StageSharding, times: ActionTimes, memory: MemoryTerms) -> ActionTimes:
        """Add what ZeRO-2, ZeRO-3 and offload send with every micro-batch."""
        return self._offloaded(sharding, self._scattered(sharding, times), memory)

    def _scattered(self, sharding: StageSharding, times: ActionTimes) -> ActionTimes:
        zero = sharding.config.zero
        if zero < SCATTERED or not sharding.sharded:
            return times
        known, parts = self._collectives, sharding.num_blocks
        scatter = sum(known.reduce_ns(copies, zero, parts) for copies in sharding.copies)
        gather = sum(known.gather_ns(copies, parts) for copies in sharding.copies) if zero > SCATTERED else 0
        if not self.gathers.enabled:
            return times._replace(
                forward=times.forward + gather,
                backward_input=times.backward_input + gather,
                backward_weight=times.backward_weight + scatter,
            )
        # one exchange at a time: the backward's gather and scatter share the links
        back = self.overlap.exposed_ns(gather + scatter, times.backward, parts)
        return times._replace(
            forward=times.forward + self.gathers.exposed_ns(gather, times.forward, parts),
            backward_weight=times.backward_weight + back,
        )

    def _offloaded(self, sharding: StageSharding, times: ActionTimes, memory: MemoryTerms) -> ActionTimes:
        """Add copies to the host and back: activations both ways, parameters up, gradients down."""
        offload, zero = sharding.config.offload, sharding.config.zero
        if offload == "none":
            return times
        if offload == "activations":
            there = back = memory.host // memory.in_flight
        else:
            part = sharding.config.offload_fraction
            gradients = sum(copies.trainable // (len(copies.ranks) if zero > 0 else 1) for copies in sharding.copies)
            weights = sum(copies.weights // len(copies.ranks) for copies in sharding.copies) * (offload == "parameters")
            there, back = int(part * weights), int(part * (weights + gradients))
        forward_copy, backward_copy = (
            host.transfer_ns(self.build.cluster, sharding.rank, size) if size else 0 for size in (there, back)
        )
        parts = sharding.num_blocks
        return times._replace(
            forward=times.forward + self.overlap.exposed_ns(forward_copy, times.forward, parts),
            backward_input=times.backward_input + self.overlap.exposed_ns(backward_copy, times.backward, parts),
        )

    def of_step(self, sharding: StageSharding, times: ActionTimes, memory: MemoryTerms) -> tuple[int, int]:
        """Return the exposed sum of gradients, and the optimizer's step with what is gathered after it."""
        zero = sharding.config.zero
        reduce_ns = optimizer_ns = 0
        for copies in sharding.copies:
            known, num_ranks = self._collectives, len(copies.ranks)
            parts = self._num_buckets(self.overlap, known.gradient_bytes(copies), num_ranks)
            summed = known.reduce_ns(copies, zero, parts) if zero < SCATTERED else 0
            summed += known.across_ns(copies, parts)
            reduce_ns += self.overlap.exposed_ns(summed, times.backward, parts)
            if zero in (1, SCATTERED):
                buckets = self._num_buckets(self.gathers, copies.trainable, num_ranks)
                parts = num_ranks if self.build.training.by_owner else buckets
                optimizer_ns += known.gather_stepped_ns(copies, parts)
        if self.build.training.optimizer == "none":
            # the executor lets go of what it has gathered, stepped or not
            return reduce_ns + (optimizer_ns if zero == SCATTERED and self.build.training.whole_stages else 0), 0
        return reduce_ns, optimizer_ns + self._update_ns(sharding, memory)

    def _num_buckets(self, overlap: Overlap, size_bytes: int, num_ranks: int) -> int:
        """Return in how many messages what may overlap is sent: one where it does not."""
        return ceil(size_bytes, self.build.training.bucket_of(num_ranks)) if overlap.enabled else 1

    def _update_ns(self, sharding: StageSharding, memory: MemoryTerms) -> int:
        """Return the step itself: of what is on the device, then of what is on the host."""
        config, cluster, rank = sharding.config, self.build.cluster, sharding.rank
        shard = sum(c.trainable // (len(c.ranks) if config.zero else 1) for c in sharding.copies)
        moved = int(config.offload_fraction * shard) if config.offload in ("optimizer", "parameters") else 0
        stays = shard - moved
        step = self.on_device_ns(stays, cluster.device_of(rank).catalogue) if stays or not moved else 0
        if not moved:
            return step
        # parameters that live on the host go up when they are used
        copied = moved if config.offload == "optimizer" else 0
        return step + host.step_ns(cluster, rank, memory.host) + host.transfer_ns(cluster, rank, copied)

    def least_microbatch_ns(
        self, copies: Sequence[Copies], trained: Sequence[Copies], zero: int, work: tuple[int, int], num_places: int
    ) -> int:
        """Return the least time of F and the backward of the whole model with what ZeRO sends, given their work.

        Parameters
        ----------
        copies, trained : sequence of Copies
            Weights of the whole model, and of the operators that have a backward.
        """
        if zero < SCATTERED:
            return sum(work)
        least, gathers = self._collectives.least_ns, zero > SCATTERED
        hidden = replace(self.overlap, enabled=self.overlap.enabled or self.gathers.enabled)
        gather = sum(least("all_gather", each, each.weights, num_places) for each in copies) * gathers
        again = sum(least("all_gather", each, each.weights, num_places) for each in trained) * gathers
        scatter = sum(least("reduce_scatter", each, each.trainable, num_places) for each in trained)
        growth = hidden.least_growth_ns
        grown = max(0, int(growth(gather, work[0])) + int(growth(again + scatter, work[1])) - 2 * num_places)
        return sum(work) + grown

    def least_closing_ns(
        self, trained: Sequence[Copies], zero: int, num_stages: int, work_ns: float, most_kinds: int, *, alone: bool
    ) -> int:
        """Return by how much what stages send when a step ends makes their time grow in total, at least.

        The sum of one kind of copies, c(s) of stage s, hides behind no more than the stage's last backward, so of k
        kinds and m micro-batches of w(s) it takes m w(s) + sum c(s) - k w(s) at least, which grows with w(s) where k is
        no more than m (`most_kinds`): all w(s) together are `work_ns` or more.
        Where a stage shares its ranks with others, the sum of its gradients may overlap another one's work; what is
        gathered after a step belongs to it.
        """
        least, found = self._collectives.least_ns, 0.0
        hidden_ns = work_ns if sum(each.trainable > 0 for each in trained) <= most_kinds else inf
        for each in trained:
            if alone:
                name = "reduce_scatter" if zero else "all_reduce"
                summed = least(name, each, each.trainable, num_stages) if zero < SCATTERED else 0.0
                summed += self._collectives.least_across_ns(each, num_stages)
                found += self.overlap.least_growth_ns(summed, hidden_ns)
            if zero in (1, SCATTERED) and self.build.training.optimizer != "none":
                found += least("all_gather", each, each.trainable, num_stages)
        return max(0, int(found) - num_stages)

    def least_update_ns(self, copies: Sequence[Copies], zero: int, num_places: int) -> int:
        """Return the least total time of steps over parts of these weights, one part for each stage's ranks.

        A step's time is no larger for two parts together than for each by itself; of every part less than a byte a
        rank, and half a nanosecond, is rounded off.
        """
        if self.build.training.optimizer == "none":
            return 0
        shard = sum(c.trainable // (len(c.ranks) if zero else 1) for c in copies) - len(copies) * num_places
        name = self.build.cluster.device_of(0).catalogue
        return max(0, self.on_device_ns(shard, name) - num_places) if shard > 0 else 0

    def on_device_ns(self, trainable_bytes: int, name: str) -> int:
        """Return the time of a step over these bytes: the profile's share, or the roofline's where there is none."""
        build = self.build
        whole = build.model.profile.whole.optimizer_ns
        if (whole and not build.training.precision) or not name:
            return round(whole * build.share(trainable_bytes))
        precision = kept_in(build.training.precision or build.profiled_precision)  # as states are
        if (trainable_bytes, name) not in self._steps:
            kind, flop = build.training.optimizer, round(build.update_flop * build.share(trainable_bytes))
            found = optimizer_step_ns(trainable_bytes, catalogue_device(name), kind, precision, flop)
            self._steps[trainable_bytes, name] = found.central_ns
        return self._steps[trainable_bytes, name]

    @cached_property
    def _steps(self) -> dict[tuple[int, str], int]:
        return {}

    @cached_property
    def _collectives(self) -> Collectives:
        training = self.build.training
        return Collectives(self.build.cluster, (training.gradient_width(4), training.width(4)))

    @cached_property
    def overlap(self) -> Overlap:
        """How sums of gradients, and copies to hosts, hide."""
        name, training = self.build.cluster.device_of(0).catalogue, self.build.training
        known = catalogue_device(name).overlap_slowdown if name else OVERLAP_SLOWDOWN
        measured = self.build.cluster.links.overlap_slowdown if self.build.cluster.links else 0.0
        return Overlap(training.overlap, training.overlap_slowdown or measured or known)

    @cached_property
    def gathers(self) -> Overlap:
        """How gathers of parameters ahead of their use hide."""
        return replace(self.overlap, enabled=self.build.training.hides("gathers"))
