"""Puts together what every operator costs under one configuration.

Leaves out what the parts are: times (`efficiency`), traffic, kept bytes and weights have modules of their own.
"""

from functools import cached_property

from costmodel.stages.strategies.blocks import block_spans
from costmodel.stages.strategies.build import Build
from costmodel.stages.strategies.division import Degrees, ceil, output_parts
from costmodel.stages.strategies.groups import StageGroups
from costmodel.stages.strategies.host_dispatch import HostDispatch
from costmodel.stages.strategies.saved_activations import (
    runs_of,
    saved_activations,
    saved_items,
    training_scale,
)
from costmodel.stages.strategies.shared_sums import Item, SharedSums
from costmodel.stages.strategies.states import Weights, weights_of
from costmodel.stages.strategies.vectors import TimeVectors, Vectors
from costmodel.stages.strategies.workspace_memory import WorkspaceMemory


class VectorCache:
    """Vectors by configuration; what several configurations have in common is made once."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._names = build.block_names
        self._blocks = block_spans(self._names)
        self._vectors: dict[object, Vectors] = {}
        self._times: dict[object, tuple[TimeVectors, list[Item]]] = {}
        self._items: dict[Degrees, list[Item]] = {}
        self._weights: dict[tuple[int, int, int], Weights] = {}
        self._again: dict[tuple[Degrees, str | tuple[str, ...]], int] = {}
        self._savings: dict[tuple[Degrees, str | tuple[str, ...]], list[tuple[int, int]]] = {}
        self._running: dict[str | tuple[str, ...], list[bool]] = {}

    def of(self, degrees: Degrees, recompute: str | tuple[str, ...], groups: StageGroups) -> Vectors:
        """Return what each operator costs.

        Operators that cannot be divided so are taken whole: `why_whole` tells, and stages that hold them are refused.
        """
        inside = (degrees, groups.inside)
        if (inside, recompute) not in self._vectors:
            self._vectors[inside, recompute] = self._make(degrees, recompute, groups)
        return self._vectors[inside, recompute]

    def times(self, degrees: Degrees, groups: StageGroups) -> TimeVectors:
        """Return the times of operators alone."""
        return self._known_times(degrees, groups)[0]

    def kept_bytes(self, degrees: Degrees) -> int:
        """Return what all operators keep together of one micro-batch where nothing runs again."""
        largest: dict[object, int] = {}
        for _, key, size in self._kept_items(degrees):
            largest[key] = max(size, largest.get(key, 0))
        return sum(largest.values())

    def again_ns(self, degrees: Degrees, recompute: str | tuple[str, ...]) -> int:
        """Return what the forwards of all operators that run again take by themselves."""
        if (degrees, recompute) not in self._again:
            times = self._build.efficiency.times
            again = (times(i, degrees)[0] for i, runs in enumerate(self._runs(recompute)) if runs)
            self._again[degrees, recompute] = sum(again)
        return self._again[degrees, recompute]

    def forwards_again(self, degrees: Degrees, recompute: str | tuple[str, ...], *, whole: bool) -> list[int]:
        """Return what the own forward of each operator takes that may run again, with a `whole` stage all; else 0."""
        times = self._build.efficiency.times
        return [times(i, degrees)[0] if whole or runs else 0 for i, runs in enumerate(self._runs(recompute))]

    def savings(self, degrees: Degrees, recompute: str | tuple[str, ...]) -> list[tuple[int, int]]:
        """Return what the own forward of each operator that may run again takes, and the bytes that it keeps.

        Most bytes for their time first.
        """
        if (degrees, recompute) not in self._savings:
            kept: dict[int, int] = {}
            runs = self._runs(recompute)
            for position, _, size in self._kept_items(degrees):
                if runs[position]:
                    kept[position] = kept.get(position, 0) + size
            rows = [(self._build.efficiency.times(i, degrees)[0], size) for i, size in kept.items() if size]
            self._savings[degrees, recompute] = sorted(rows, key=lambda row: row[0] / row[1])
        return self._savings[degrees, recompute]

    def _kept_items(self, degrees: Degrees) -> list[Item]:
        build = self._build
        if degrees not in self._items:
            self._items[degrees] = saved_items(build.model, build.training, degrees, build.tensor_bytes(degrees))
        return self._items[degrees]

    def weights(self, degrees: Degrees) -> Weights:
        """Return what operators' parameters take on one rank."""
        shards = (degrees.tensor, degrees.expert, degrees.expert_tensor)
        if shards not in self._weights:
            graph = self._build.model.profile.graph
            self._weights[shards] = weights_of(graph, self._build.training, degrees, self._build.accumulation)
        return self._weights[shards]

    def _known_times(self, degrees: Degrees, groups: StageGroups) -> tuple[TimeVectors, list[Item]]:
        inside = (degrees, groups.inside)
        if inside not in self._times:
            self._times[inside] = _times(self._build, degrees, groups)
        return self._times[inside]

    def _make(self, degrees: Degrees, recompute: str | tuple[str, ...], groups: StageGroups) -> Vectors:
        build, graph = self._build, self._build.model.profile.graph
        times, forward = self._known_times(degrees, groups)
        runs = self._runs(recompute)
        again = [item for item in forward if runs[item[0]]]
        width, profiled = training_scale(build.model, build.training)
        working = [
            ceil(size * width // profiled, output_parts(graph, i, degrees))
            for i, size in enumerate(build.model.working_bytes)
        ]
        return Vectors(
            times,
            SharedSums(again, len(graph.operators)),
            times.host_dispatch.again(runs) if times.host_dispatch else SharedSums((), len(graph.operators)),
            saved_activations(
                graph,
                self._kept_items(degrees),
                recompute,
                build.tensor_bytes(degrees),
                build.block_names,
                self._held if build.training.selective == "operators" else None,
                build.training.fused,
            ),
            self.weights(degrees),
            self._names,
            self._blocks,
            self._made_together(recompute),
            WorkspaceMemory(working, self._kept_items(degrees)) if working else None,
        )

    def _made_together(self, recompute: str | tuple[str, ...]) -> tuple[range, ...]:
        """Return the positions of what runs again together: a block, an attention, a run of those that are named."""
        if recompute == "full" or (recompute == "selective" and self._build.training.selective == "operators"):
            return self._blocks
        if isinstance(recompute, tuple):
            return block_spans(runs_of(self._build.model.profile.graph, frozenset(recompute)))
        return tuple(range(i, i + 1) for i, runs in enumerate(self._runs(recompute)) if runs)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Operators whose outputs selective recompute by operator keeps: attention, every second product of a block."""
        graph, held = self._build.model.profile.graph, set[int]()
        kinds = [operator.work.kind if operator.work else "" for operator in graph.operators]
        for span in self._blocks:
            held |= {i for i in span if kinds[i] == "attention"}
            held |= set([i for i in span if kinds[i] == "matmul"][::2])
        return frozenset(held)

    def _runs(self, recompute: str | tuple[str, ...]) -> list[bool]:
        """Return whether each operator runs again."""
        if recompute not in self._running:
            names = frozenset(recompute) if isinstance(recompute, tuple) else recompute
            self._running[recompute] = [self._runs_again(names, i) for i in range(len(self._names))]
        return self._running[recompute]

    def _runs_again(self, recompute: str | frozenset[str], position: int) -> bool:
        """Whether an operator runs again: all of a block, or what is not held of it; attention; or those named."""
        if isinstance(recompute, frozenset):
            return self._build.model.profile.graph.operators[position].name in recompute
        if recompute == "selective" and self._build.training.selective == "operators":
            return bool(self._names[position]) and position not in self._held
        if recompute == "selective":
            work = self._build.model.profile.graph.operators[position].work
            return work is not None and work.kind == "attention"
        return recompute == "full" and bool(self._names[position])


def _times(build: Build, degrees: Degrees, groups: StageGroups) -> tuple[TimeVectors, list[Item]]:
    """Return the times of operators, and all that their forwards are made of."""
    count = len(build.model.profile.graph.operators)
    times = [build.efficiency.times(i, degrees) for i in range(count)]
    forward, backward, held = build.traffic(degrees, groups).items(dict(enumerate(times)))
    gathered = [0] * count
    for position, _, size_bytes in held:
        gathered[position] = max(gathered[position], size_bytes)
    own: list[Item] = [(i, ("own", i), time[0]) for i, time in enumerate(times)]
    found = TimeVectors(
        SharedSums(forward, count, [time[0] for time in times]),
        SharedSums(backward, count, [time[1] for time in times]),
        SharedSums((), count, [time[2] for time in times]),
        tuple(gathered),
        HostDispatch(build.model.profile.graph, build.training, degrees, forward, backward)
        if build.training.host_ns
        else None,
    )
    return found, own + forward
