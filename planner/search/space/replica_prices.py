"""What replicas send, hold and step, for many families at once.

The formulas are those of `costmodel.stages.strategies` (`steps`, `gradients`, `states`, `memory_terms`), whose
docstrings cite their sources, written for arrays. What only code knows (a collective over some ranks, an optimizer's
step) is asked for at sizes that double, and taken to be straight between two of them. Leaves out what a search does not
need to choose where to look: rounding, and the units in which the executor gathers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import LinkGroup
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, reduce_scatter_ns
from costmodel.stages.config import OFFLOAD, StageConfig
from costmodel.stages.strategies import StrategyModel, host
from costmodel.stages.strategies.gradients import Overlap
from costmodel.stages.strategies.groups import Ranks
from costmodel.stages.strategies.memory import CUBLAS_BYTES
from costmodel.stages.strategies.states import SCATTERED
from planner.plan.rank_order import RankOrder, first_ranks, strides
from planner.question.problem import Problem
from planner.search.space.even_stages import Floats, Ints
from planner.search.space.family_rows import FamilyRows, distinct

PROBES = 2.0 ** np.arange(6, 42)
"""Sizes at which prices are asked for, bytes."""
OPTIMIZER, PARAMETERS, ACTIVATIONS = (OFFLOAD.index(name) for name in ("optimizer", "parameters", "activations"))
Collective = Callable[[Cluster, tuple[int, ...], int], int]


@dataclass(frozen=True)
class StageWeights:
    """Bytes of a stage's parameters on one rank before ZeRO divides any: all, and those that get a gradient.

    ``unit`` is the largest block.
    """

    dense: Floats
    experts: Floats
    trained: Floats
    trained_experts: Floats
    unit: Floats

    def plus(self, more: "StageWeights", where: NDArray[np.bool_]) -> "StageWeights":
        """Return both together."""
        summed = {f.name: getattr(self, f.name) + where * getattr(more, f.name) for f in fields(self)}
        return replace(self, **summed | {"unit": self.unit})

    @property
    def all_trained(self) -> Floats:
        """Both kinds that get a gradient."""
        return self.trained + self.trained_experts


class ReplicaPrices:
    """Prices of what the replicas of each row of a table do.

    Parameters
    ----------
    problem : Problem
    model : StrategyModel
        Any of the problem's.
    rows : Rows
    orders : sequence of RankOrder
        By arrangement.
    """

    def __init__(self, problem: Problem, model: StrategyModel, rows: FamilyRows, orders: Sequence[RankOrder]) -> None:
        self._problem, self._model, self._rows, self._training = problem, model, rows, problem.training
        self._copies = rows.sharers
        ends, parts = rows.tensor * rows.sharers, rows.expert * rows.expert_tensor
        self._expert_copies = np.maximum(1, ends // parts)
        self._groups: list[Ranks] = []
        self._expert_groups: list[Ranks] = []
        self._across: list[Ranks] = []
        self._known: dict[tuple[Collective, tuple[int, ...]], list[float]] = {}
        self._hops: dict[LinkGroup, tuple[int, int]] = {}
        self._known_hops: dict[tuple[int, int], list[float]] = {}
        self._on_host = np.isin(rows.offload, (OPTIMIZER, PARAMETERS))
        self._place_apart(orders)

    def _place_apart(self, orders: Sequence[RankOrder]) -> None:
        """Find the ranks of the first groups of each row's first place, and how far the next place is apart."""
        rows = self._rows
        spreads = np.array([order[-1] != "pipeline" for order in orders])[rows.arrangement]
        columns = (rows.data, rows.tensor, rows.context, rows.expert, rows.expert_tensor, rows.sharers,
                   rows.arrangement, np.where(spreads, rows.places, 1))  # fmt: skip
        first, self._number = distinct(*columns)
        apart = []
        for data, tensor, context, *experts, sharers, arrangement, places in np.stack(columns, 1)[first].tolist():
            config = StageConfig(data, tensor, context=context, expert=experts[0], expert_tensor=experts[1])
            order, end = orders[arrangement], tensor * sharers
            ranks = first_ranks(config, places, order)
            self._groups.append(ranks[:end:tensor])
            self._expert_groups.append(ranks[: end : config.num_expert_parts])
            self._across.append(ranks[::end])
            apart.append(strides(config, places, order)["pipeline"])
        self._apart = np.array(apart)[self._number]

    # --- time

    def with_microbatches_ns(
        self, weights: StageWeights, forward: Floats, backward: Floats, kept: Floats, stages: Ints
    ) -> Floats:
        """Return what ZeRO-2, ZeRO-3 and offload add to one micro-batch of a stage."""
        zero, parts = self._rows.zero, np.maximum(1.0, self._model.num_blocks / stages)
        scatter = self._reduce_ns(reduce_scatter_ns, weights, parts) * (zero >= SCATTERED)
        gather = self._both_ns(all_gather_ns, weights.dense, weights.experts, parts) * (zero > SCATTERED)
        overlap, gathers = self._model.overlap, self._model.overlap_of_gathers
        if gathers.enabled:
            found = _exposed(gathers, gather, forward, parts) + _exposed(overlap, gather + scatter, backward, parts)
        else:
            found = 2 * gather + scatter
        if not self._rows.offload.any():
            return found
        there, back = self._moved_bytes(weights, kept)
        ns = 1.0 / host.link_gbs(self._problem.machines, 0)
        return found + _exposed(overlap, there * ns, forward, parts) + _exposed(overlap, back * ns, backward, parts)

    def _moved_bytes(self, weights: StageWeights, kept: Floats) -> tuple[Floats, Floats]:
        """Return what offload copies to the host and back with a micro-batch."""
        offload = self._rows.offload
        up = (weights.dense / self._copies + weights.experts / self._expert_copies) * (offload == PARAMETERS)
        back = up + self._shard(weights) * self._on_host
        held = kept * (offload == ACTIVATIONS)
        return up + held, back + held

    def closing_ns(self, weights: StageWeights, backward: Floats) -> Floats:
        """Return the exposed sum of gradients of a stage, its optimizer's step and what is gathered after it."""
        zero, overlap = self._rows.zero, self._model.overlap
        parts = self._num_buckets(overlap, weights.all_trained * self._wider)
        scattered, whole = (self._reduce_ns(each, weights, parts) for each in (reduce_scatter_ns, all_reduce_ns))
        summed = np.where(zero > 0, scattered, whole) * (zero < SCATTERED) + self._across_ns(weights, parts)
        exposed = _exposed(overlap, summed, backward, parts)
        if self._training.optimizer == "none":
            return exposed
        buckets = self._num_buckets(self._model.overlap_of_gathers, weights.all_trained)
        parts = self._copies.astype(float) if self._training.by_owner else buckets
        gathered = self._both_ns(all_gather_ns, weights.trained, weights.trained_experts, parts)
        found: Floats = exposed + gathered * ((zero == 1) | (zero == SCATTERED)) + self._update_ns(weights)
        return found

    def _update_ns(self, weights: StageWeights) -> Floats:
        shard = self._shard(weights)
        known = [float(self._model.update_ns(int(size))) for size in PROBES]
        on_device = np.interp(shard, PROBES, known)
        if not self._on_host.any():
            return on_device
        machines = self._problem.machines
        step = host.step_ns(machines, 0, 1 << 30) / (1 << 30) * self._states_on_host(weights)
        copied = shard / host.link_gbs(machines, 0) * (self._rows.offload == OPTIMIZER)
        return np.where(self._on_host, step + copied, on_device)

    def messages_ns(self, size_bytes: Floats) -> tuple[Floats, Floats]:
        """Return what a message takes between the neighbouring places farthest apart, and along the whole line.

        Where stages are looped the last place sends to the first.
        """
        rows = self._rows
        slowest, along = np.zeros(len(size_bytes)), np.zeros(len(size_bytes))
        columns = self._apart, rows.places, (rows.chunks > 1).astype(np.int64)
        first, of = distinct(*columns)
        for number, (apart, places, looped) in enumerate(np.stack(columns, 1)[first].tolist()):
            here = of == number
            firsts = range(0, (places - 1) * apart, apart)
            hops = Counter(self._hop(begin, begin + apart) for begin in firsts)
            ways = {*hops, *([self._hop((places - 1) * apart, 0)] if looped and hops else [])}
            taken = {hop: np.interp(size_bytes[here], PROBES, self._sent_ns(hop)) for hop in ways}
            slowest[here] = np.maximum.reduce([np.zeros(int(here.sum())), *taken.values()])
            along[here] = sum(times * taken[hop] for hop, times in hops.items())
        sends = size_bytes > 0
        return np.where(sends, slowest, 0.0), np.where(sends, along, 0.0)

    def _hop(self, first: int, second: int) -> tuple[int, int]:
        """Return two ranks that represent all pairs whose messages take what those between these two take."""
        return self._hops.setdefault(self._problem.machines.link_between(first, second), (first, second))

    def _sent_ns(self, hop: tuple[int, int]) -> list[float]:
        if hop not in self._known_hops:
            self._known_hops[hop] = [float(self._problem.machines.p2p_ns(*hop, int(size))) for size in PROBES]
        return self._known_hops[hop]

    def _num_buckets(self, overlap: Overlap, size_bytes: Floats) -> Floats:
        """Return in how many messages what may overlap is sent."""
        if not overlap.enabled:
            return np.ones(len(size_bytes))
        bucket = np.maximum(self._training.bucket_bytes, self._training.bucket_rank_bytes * self._copies)
        found: Floats = np.maximum(1.0, np.ceil(size_bytes / bucket))
        return found

    @property
    def _wider(self) -> float:
        """By how much gradients are wider than weights."""
        return self._training.gradient_width(4) / self._training.width(4)

    def _reduce_ns(self, collective: Collective, weights: StageWeights, parts: Floats) -> Floats:
        return self._both_ns(collective, weights.trained * self._wider, weights.trained_experts * self._wider, parts)

    def _across_ns(self, weights: StageWeights, parts: Floats) -> Floats:
        """Return the time in which shard groups sum what each of their ranks has summed."""
        if not self._rows.shard_group.any():
            return np.zeros(len(parts))
        size = (weights.trained / self._copies + weights.trained_experts / self._expert_copies) * self._wider
        return self._collective_ns(all_reduce_ns, self._across, size / parts) * parts

    def _both_ns(self, collective: Collective, dense: Floats, experts: Floats, parts: Floats) -> Floats:
        """Return the time of `parts` messages one after the other, of dense weights and of experts'."""
        found = self._collective_ns(collective, self._groups, dense / parts)
        if experts.any():
            found = found + self._collective_ns(collective, self._expert_groups, experts / parts)
        return found * parts

    def _collective_ns(self, collective: Collective, groups: list[Ranks], size_bytes: Floats) -> Floats:
        found, known = np.zeros(len(size_bytes)), list(dict.fromkeys(groups))
        group_of = np.array([known.index(ranks) for ranks in groups])[self._number]
        for number, ranks in enumerate(known):
            if len(ranks) > 1:
                here = group_of == number
                found[here] = np.interp(size_bytes[here], PROBES, self._probed(collective, ranks))
        return np.where(size_bytes > 0, found, 0.0)

    def _probed(self, collective: Collective, ranks: tuple[int, ...]) -> list[float]:
        key = collective, ranks
        if key not in self._known:
            machines = self._problem.machines
            self._known[key] = [float(collective(machines, ranks, int(size))) for size in PROBES]
        return self._known[key]

    # --- memory

    def _shard(self, weights: StageWeights) -> Floats:
        """Return the bytes whose optimizer states a rank has."""
        divided = self._rows.zero > 0
        dense = weights.trained / np.where(divided, self._copies, 1)
        return dense + weights.trained_experts / np.where(divided, self._expert_copies, 1)

    def _per_weight(self) -> tuple[float, float]:
        """Return the bytes of gradients, and of optimizer states with master weights, for each byte of a weight."""
        training = self._training
        width = training.width(0)
        states = training.state_width(1) / (width if training.precision else 1)
        if not training.mixed:
            return 1.0, states
        return training.gradient_width(0) / width, states + training.master_width / width

    def _divided(self, weights: StageWeights) -> tuple[Floats, Floats, Floats]:
        """Return what a rank has of parameters, gradients and states."""
        zero = self._rows.zero
        gradients, states = self._per_weight()
        parts = []
        for least, dense, experts, factor in (
            (3, weights.dense, weights.experts, 1.0),
            (2, weights.trained, weights.trained_experts, gradients),
            (1, weights.trained, weights.trained_experts, states),
        ):
            divided = zero >= least
            held = dense / np.where(divided, self._copies, 1) + experts / np.where(divided, self._expert_copies, 1)
            parts.append(held * factor)
        return parts[0], parts[1], parts[2]

    def states_bytes(self, weights: StageWeights) -> Floats:
        """Return what parameters, gradients and states take on a rank's device."""
        parameters, gradients, states = self._divided(weights)
        on_device = np.where(self._rows.offload == PARAMETERS, 0.0, parameters)
        return on_device + np.where(self._on_host, 0.0, gradients + states)

    def _states_on_host(self, weights: StageWeights) -> Floats:
        parameters, gradients, states = self._divided(weights)
        return gradients + states + np.where(self._rows.offload == PARAMETERS, parameters, 0.0)

    @property
    def workspace_bytes(self) -> int:
        """What matmuls work with on a GPU."""
        return CUBLAS_BYTES * (self._problem.machines.device_of(0).type == "cuda")

    def buffers_bytes(self, weights: StageWeights, chunks: Ints) -> Floats:
        """Return gradient buckets, and parameters that are gathered for use."""
        rows, unit = self._rows, weights.unit * chunks
        scattered = (rows.zero >= SCATTERED) | self._on_host
        buckets = np.where(self._copies > 1, 2.0 * self._training.bucket_bytes * chunks, 0.0)
        found = np.minimum(weights.all_trained, np.where(scattered, unit, buckets))
        gathered = (rows.offload == PARAMETERS) | ((rows.zero > SCATTERED) & (self._copies > 1))
        return found + np.where(gathered, np.minimum(2 * unit, weights.dense + weights.experts), 0.0)


def _exposed(overlap: Overlap, communication_ns: Floats, compute_ns: Floats, parts: Floats) -> Floats:
    """Return by how much compute grows (`Overlap.exposed_ns`)."""
    if not overlap.enabled:
        return communication_ns
    exposed = np.maximum(communication_ns - compute_ns, communication_ns / np.maximum(1.0, parts))
    return exposed + (communication_ns - exposed) * overlap.least_exposed
