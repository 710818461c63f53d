"""A schedule is its orders: for each rank the actions in the order in which it issues them.

`StageGraph` says where stages run and what feeds what; `Schedule` adds the orders. Leaves out times:
the engine starts every action as early as order, data and links allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs, EdgeCost
from simulator.actions import Action, Kind


@dataclass(frozen=True, slots=True)
class StageEdge:
    """What flows from stage `source` to stage `target`; `gradient` says whether something flows back."""

    source: int
    target: int
    gradient: bool = True


@dataclass(frozen=True)
class StageGraph:
    """Stages, their ranks and edges.

    Attributes
    ----------
    ranks : tuple of tuple of int
        Ranks of each stage. The g-th action of a stage runs on ``ranks[g mod len(ranks)]``.
    edges : tuple of StageEdge
        Acyclic (`costmodel.stages.costs.Costs` checks it).
    multiples : tuple of int
        Micro-batches that one action of each stage works on; an action is named by its first.
    backward : tuple of bool
        False for a stage that has forwards only.
    """

    ranks: tuple[tuple[int, ...], ...]
    edges: tuple[StageEdge, ...]
    multiples: tuple[int, ...] = ()
    backward: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.multiples:
            object.__setattr__(self, "multiples", (1,) * len(self.ranks))
        if not self.backward:
            object.__setattr__(self, "backward", (True,) * len(self.ranks))

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.ranks)

    @cached_property
    def num_ranks(self) -> int:
        """How many ranks they use."""
        return 1 + max(rank for ranks in self.ranks for rank in ranks)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Stages whose outputs each stage reads, rising."""
        return tuple(tuple(sorted(e.source for e in self.edges if e.target == s)) for s in range(self.num_stages))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Stages that read an output of each stage, rising."""
        return tuple(tuple(sorted(e.target for e in self.edges if e.source == s)) for s in range(self.num_stages))

    @cached_property
    def gradient_successors(self) -> tuple[tuple[int, ...], ...]:
        """Stages that send each stage a gradient, rising."""
        return tuple(
            tuple(sorted(e.target for e in self.edges if e.source == s and e.gradient)) for s in range(self.num_stages)
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Stages in a topological order, lowest index first among the ready ones."""
        waiting = [len(p) for p in self.predecessors]
        ready = [s for s, count in enumerate(waiting) if count == 0]
        found: list[int] = []
        while ready:
            stage = min(ready)
            ready.remove(stage)
            found.append(stage)
            for successor in self.successors[stage]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    ready.append(successor)
        return tuple(found)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that run (also) on `rank`, rising."""
        return tuple(stage for stage, ranks in enumerate(self.ranks) if rank in ranks)

    def rank_of(self, stage: int, microbatch: int) -> int:
        """Rank on which a stage works on a micro-batch."""
        ranks = self.ranks[stage]
        return ranks[microbatch // self.multiples[stage] % len(ranks)]

    def neighbours(self, num_microbatches: int) -> tuple[frozenset[int], ...]:
        """Return for each rank those that it exchanges micro-batches with."""
        found: list[set[int]] = [set() for _ in range(self.num_ranks)]
        for edge in self.edges:
            for k in range(num_microbatches):
                ends = self.rank_of(edge.source, k), self.rank_of(edge.target, k)
                if ends[0] != ends[1]:
                    found[ends[0]].add(ends[1])
                    found[ends[1]].add(ends[0])
        return tuple(map(frozenset, found))

    def microbatches_of(self, stage: int, rank: int, num_microbatches: int) -> tuple[int, ...]:
        """First micro-batch of each action that a stage runs on `rank`, rising."""
        return tuple(k for k in range(0, num_microbatches, self.multiples[stage]) if self.rank_of(stage, k) == rank)


@dataclass(frozen=True)
class Schedule:
    """Orders of all ranks over a stage graph.

    `orders` holds compute actions (and REDUCE and OPT) in the order of each rank; a lowered schedule
    holds SEND and RECV too. `paired` holds each F that runs overlapped with the whole backward directly behind it: both
    start when what either needs has come, and the results of both leave when the pair ends.
    """

    name: str
    graph: StageGraph
    num_microbatches: int
    orders: tuple[tuple[Action, ...], ...]
    num_slices: int = 1
    paired: frozenset[Action] = frozenset()

    @cached_property
    def pairs(self) -> dict[Action, Action]:
        """The backward that overlaps each paired F.

        Raises
        ------
        InvalidInput
            When no backward directly follows one, or its own.
        """
        if not self.paired:
            return {}
        behind = {a: b for order in self.orders for a, b in pairwise(order) if a in self.paired}
        for first in sorted(self.paired, key=str):
            second = behind.get(first)
            if first.kind is not Kind.F or second is None or second.kind is not Kind.B:
                raise InvalidInput(f"{first} is to overlap a whole backward, but {second or 'nothing'} follows it")
            if (first.stage, first.microbatch) == (second.stage, second.microbatch):
                raise InvalidInput(f"{first} cannot overlap {second}, which needs it; pair two micro-batches")
        return behind


def stage_graph(costs: Costs) -> StageGraph:
    """Return the stage graph that a set of costs describes."""
    return StageGraph(
        costs.ranks,
        tuple(StageEdge(e.source, e.target, e.gradient) for e in costs.edges),
        costs.multiples,
        tuple(stage.backward for stage in costs.stages),
    )


def check_multiples(graph: StageGraph, num_microbatches: int) -> None:
    """Refuse multiples that do not divide the number of micro-batches."""
    if num_microbatches < 1:
        raise InvalidInput(f"{num_microbatches} micro-batches; at least one is needed")
    for stage, multiple in enumerate(graph.multiples):
        if multiple < 1 or num_microbatches % multiple:
            raise InvalidInput(
                f"stage {stage} takes {multiple} micro-batches in one action, which does not divide {num_microbatches}"
            )


def chain_edges(num_stages: int, p2p_ns: int = 0) -> Sequence[EdgeCost]:
    """Edges of stages in one line."""
    return tuple(EdgeCost(i, i + 1, p2p_ns) for i in range(num_stages - 1))
