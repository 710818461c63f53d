"""What ranks of one stage send each other during F and B, operator by operator.

Tensor parallel (Shoeybi et al., 2019): an all-reduce of a row operator's output, and one of the gradient of each
undivided value that column operators read, and of the statistics of norms over divided values. Sequence parallel
(Korthikanti et al., 2022, section 4.2.2): an all-gather before and a reduce-scatter after, the gathered input gathered
again in the backward. As in Megatron-LM the backward's collectives overlap the layer's own gradient matmuls: only what
exceeds them is exposed. Context parallel (Liu et al., Ring Attention, 2023): keys and values travel c - 1 steps around
the ring during attention, their gradients too. Expert parallel (Lepikhin et al., GShard, 2020): an all-to-all to the
experts and one back, both again in the backward, of every copy of a token, or of one a host (flex); or an all-gather
of all tokens and a reduce-scatter (Megatron-LM core, token_dispatcher.py: allgather); during another micro-batch's
compute where the trainer interleaves two (Megatron-LM core, --overlap-moe-expert-parallel-comm; DeepSeek-V3, 2024,
section 3.2.1). Leaves out what overlapped compute loses here, and uneven loads of experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import all_gather_ns, all_reduce_ns, all_to_all_ns, reduce_scatter_ns
from costmodel.model.graph import OperatorGraph, Tensor
from costmodel.model.launches import Times
from costmodel.model.work import Work
from costmodel.stages.strategies.division import WITHIN_TENSOR, Degrees, ceil, feeds_experts
from costmodel.stages.strategies.groups import Ranks, StageGroups
from costmodel.stages.strategies.shared_sums import Item
from costmodel.stages.strategies.trainers import DISPATCHERS

OF_TENSORS = ("entering", "to experts", "dispatch")
"""What is sent once for all operators that read a tensor."""
LOSS_SUMS = 3
"""All-reduces of a loss over a divided vocabulary: largest logit, sum of exponentials, the target's logit."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Positions of the tensors that each operator reads, and of those that it makes."""

    read: tuple[tuple[int, ...], ...]
    made: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Among:
    """Ranks that divide the width of operators, and what they send each other on the way in and out.

    They pass on `parts` of every `of` of a block's values: all of them, or of experts' rows those that are theirs.
    Where they `gather`, each has other rows before and after.
    """

    entering: str
    leaving: str
    group: Ranks
    parts: int
    of: int
    gathers: bool

    def part(self, block_bytes: int) -> int:
        """Return what of a block's bytes passes among them."""
        return ceil(block_bytes * self.parts, self.of)


@dataclass(frozen=True)
class Traffic:
    """In-stage communication of one configuration.

    Attributes
    ----------
    graph : OperatorGraph
    reads : Reads
    cluster : Cluster
    degrees : Degrees
    groups : StageGroups
    sizes : sequence of int
        Bytes of each tensor of the graph, whole, at the micro-batch size and precision.
    width : int
        Bytes of a value.
    microbatch_size : int
    overlap : bool
    alone : bool
        Each column layer sums the gradient of its input by itself, as torch's do, and not once for all that read it.
    hidden : int
        Another micro-batch's compute, ns, which hides as much of each all-to-all of experts; 0 where none does.
    together : int
        Experts of a token that lie side by side.
    dispatcher : str
        How tokens reach experts, of `trainers.DISPATCHERS`.
    """

    graph: OperatorGraph
    reads: Reads
    cluster: Cluster
    degrees: Degrees
    groups: StageGroups
    sizes: Sequence[int]
    width: int
    microbatch_size: int
    overlap: bool = True
    alone: bool = False
    hidden: int = 0
    together: int = 1
    dispatcher: str = DISPATCHERS[0]

    def items(self, times: Mapping[int, Times]) -> tuple[list[Item], list[Item], list[Item]]:
        """Return exposed ns in F and in I, and bytes of gathered values; what operators share has one key.

        Keys that start with one of `OF_TENSORS` name a tensor next, others an operator.

        Parameters
        ----------
        times : mapping of int
            What each operator's own part takes; operators that it lacks are left out.
        """
        forward: list[Item] = []
        backward: list[Item] = []
        gathered: list[Item] = []
        for position, own in times.items():
            operator = self.graph.operators[position]
            work = operator.work
            if work is None:
                continue
            for key, there, back, held in self._of(position, work, self.reads.read[position], own):
                forward.append((position, key, there))
                gathered.append((position, key, held))
                if operator.trainable:
                    backward.append((position, key, back))
        return forward, backward, gathered

    def _of(
        self, position: int, work: Work, read: Sequence[int], times: Times
    ) -> Iterator[tuple[object, int, int, int]]:
        """Yield (key, ns in F, ns in I, bytes held gathered) of one operator."""
        among = self._among(work)
        if len(among.group) > 1:
            yield from self._entering(position, work, read, times)
            if work.split == "row" or (work.split == "expert" and not feeds_experts(self.graph, position)):
                yield (among.leaving, position), *self._leaving(among, self._output_bytes(position))
        if self.degrees.tensor > 1:
            size = 4 * ceil(work.tokens, self.degrees.context) * self.microbatch_size
            if work.kind == "norm" and work.split == "column":
                summed = all_reduce_ns(self.cluster, self.groups.tensor, size)
                yield ("statistics", position), summed, summed, 0
            if work.kind == "loss" and work.split == "inner":
                yield ("loss", position), LOSS_SUMS * all_reduce_ns(self.cluster, self.groups.tensor, size), 0, 0
        if self.degrees.context > 1 and work.kind == "attention":
            yield ("ring", position), *self._ring(work, times)
        if self.degrees.expert > 1 and work.experts:
            yield from self._dispatched(position, work, read)

    def _output_bytes(self, position: int) -> int:
        whole = max((self.sizes[i] for i in self.reads.made[position]), default=0)
        return ceil(whole, self.degrees.context)

    def _among(self, work: Work) -> Among:
        """Return the ranks that divide an operator's width, and how much of a block's values passes among them."""
        degrees = self.degrees
        if work.split != "expert":
            return Among("entering", "leaving", self.groups.tensor, 1, 1, gathers=degrees.sequence)
        inner, alike = degrees.expert_tensor, degrees.expert_tensor == degrees.tensor
        gathers = degrees.sequence or not alike
        return Among("to experts", "from experts", self.groups.expert_tensor, inner, degrees.tensor, gathers=gathers)

    def _leaving(self, among: Among, block_bytes: int) -> tuple[int, int, int]:
        """Price the sum of a row operator's parts."""
        group, size_bytes = among.group, among.part(block_bytes)
        if not among.gathers:
            return all_reduce_ns(self.cluster, group, size_bytes), 0, 0
        back = all_gather_ns(self.cluster, group, size_bytes)
        return reduce_scatter_ns(self.cluster, group, size_bytes), back, size_bytes

    def _entering(
        self, position: int, work: Work, read: Sequence[int], times: Times
    ) -> Iterator[tuple[object, int, int, int]]:
        """Price undivided values on their way into column operators and experts.

        Which expert takes a token, the one value without a gradient that experts read, travels with the tokens.
        """
        if work.split not in ("column", "expert"):
            return
        among = self._among(work)
        routed = work.split == "expert" and self.graph.operators[position].trainable
        for index in read:
            tensor = self.graph.tensors[index]
            if routed and not tensor.gradient:
                continue
            source = self.graph.operators[self.graph.index[tensor.producer]].work
            if source is None or source.split in WITHIN_TENSOR or self._among_experts(tensor):
                continue
            size = among.part(ceil(self.sizes[index], self.degrees.context))
            key = (f"{among.entering} {index}", position) if self.alone else (among.entering, index)
            gathers = among.gathers and source.split != "whole"
            yield key, *self._entrance(among.group, size, gathers, tensor.gradient, times)

    def _among_experts(self, tensor: Tensor) -> bool:
        source = self.graph.operators[self.graph.index[tensor.producer]].work
        return source is not None and source.split == "expert"

    def _entrance(
        self, group: Ranks, size_bytes: int, gathers: bool, gradient: bool, times: Times
    ) -> tuple[int, int, int]:
        if not gathers:
            back = all_reduce_ns(self.cluster, group, size_bytes) if gradient else 0
            return 0, self._exposed(back, times[2]), 0
        there = all_gather_ns(self.cluster, group, size_bytes)
        back = self._exposed(there, times[1])
        if gradient:
            back += self._exposed(reduce_scatter_ns(self.cluster, group, size_bytes), times[2])
        return there, back, size_bytes

    def _exposed(self, communication_ns: int, compute_ns: int) -> int:
        """Return what compute does not hide; never nothing of what is sent, since the host issues it either way."""
        return max(min(1, communication_ns), communication_ns - compute_ns) if self.overlap else communication_ns

    def _ring(self, work: Work, times: Times) -> tuple[int, int, int]:
        """Price the ring's exposed steps; a chunk of keys and values is there and one arrives."""
        parts, group = self.degrees.context, self.groups.context
        keys = ceil(work.context, parts) * ceil(work.kv_heads, self.degrees.tensor) * (work.inner + work.outer)
        size = keys * self.width * self.microbatch_size
        steps = parts - 1
        there = steps * self._exposed(self._around_ns(group, size), times[0] // parts)
        back = steps * self._exposed(self._around_ns(group, 2 * size), times[1] // parts)
        return there, back, 2 * size

    def _around_ns(self, group: Ranks, size_bytes: int) -> int:
        """Return the time of one step around a ring: its slowest hop."""
        if (group, size_bytes) not in self._hops:
            hops = zip(group, (*group[1:], group[0]), strict=True)
            self._hops[group, size_bytes] = max(self.cluster.p2p_ns(a, b, size_bytes) for a, b in hops)
        return self._hops[group, size_bytes]

    @cached_property
    def _hops(self) -> dict[tuple[Ranks, int], int]:
        return {}

    def _dispatched(self, position: int, work: Work, read: Sequence[int]) -> Iterator[tuple[object, int, int, int]]:
        rows = ceil(work.tokens, self.degrees.context) * max(1, work.active) * self.microbatch_size
        rows = ceil(rows, self.degrees.tensor) if self.degrees.sequence else rows
        rows_of = (i for i in read if self.graph.tensors[i].gradient)  # where experts' rows end goes to no other rank
        outside = [i for i in rows_of if not self._among_experts(self.graph.tensors[i])]
        if outside:
            size = rows * work.inner * self.width
            there, back = self._to_experts_ns(size, work)
            yield ("dispatch", max(outside, key=self.sizes.__getitem__)), there, back, size
        if not feeds_experts(self.graph, position):
            size = rows * work.outer * self.width
            there, back = self._to_experts_ns(size, work)
            yield ("combine", position), back, there, size

    def _to_experts_ns(self, size_bytes: int, work: Work) -> tuple[int, int]:
        """Return what is exposed of the way to experts of all copies, and of their gradients' way back."""
        if self.dispatcher == "allgather":
            group = self.groups.expert
            all_bytes = len(group) * ceil(size_bytes, max(1, work.active))
            return all_gather_ns(self.cluster, group, all_bytes), reduce_scatter_ns(self.cluster, group, all_bytes)
        sent_ns = self._all_to_all_ns(size_bytes, work)
        exposed_ns = max(min(1, sent_ns), sent_ns - self.hidden)
        return exposed_ns, exposed_ns

    def _all_to_all_ns(self, size_bytes: int, work: Work) -> int:
        """Return the time of an all-to-all, of every copy or with one to a host.

        Of a token's copies under flex as many cross the network as there are hosts among those drawn; the host's own
        links pass on the others meanwhile (DeepEP, 2025: one copy a node over RDMA, NVLink within). Experts that lie
        side by side are drawn at once, and their rank takes one copy. A router that reaches a few groups of experts
        reaches as few hosts, or as many more as hold a group (DeepSeek-V3, 2024, section 2.1.2).
        """
        group, inner = self.groups.expert, self.cluster.groups[0].group
        if self.dispatcher == "alltoall":
            return all_to_all_ns(self.cluster, group, size_bytes)
        within = tuple(rank for rank in group if not inner or rank // inner == group[0] // inner)
        hosts, active = ceil(len(group), len(within)), max(1, work.active)
        draws = ceil(active, self.together)
        copies = min(active, draws * ceil(self.together * len(group), max(1, work.experts)))
        if hosts == 1 or active < 2:
            return all_to_all_ns(self.cluster, group, size_bytes * copies // active)
        near = min(hosts, work.reached * ceil(hosts, work.groups)) if work.groups else hosts
        reached = near * (1 - (1 - 1 / near) ** draws)
        across_ns = all_to_all_ns(self.cluster, group, round(size_bytes * reached / active))
        return max(across_ns, all_to_all_ns(self.cluster, within, size_bytes * copies // active))
