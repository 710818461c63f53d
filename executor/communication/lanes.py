"""Lanes: ranks that hold parts of one replica of a stage, side by side, and which of them talk to each other.

Ranks of a stage follow each other data outermost, then tensor (`planner.plan.lockstep`). What crosses an edge is whole
on every lane: lane j of b receives it from lane floor(j a / b) of a. Leaves out what lanes do together inside a stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.plan import Plan
from planner.plan.lockstep import Block
from simulator.actions import SENDS, parse_action
from simulator.schedule import StageGraph, stage_graph


@dataclass(frozen=True)
class Lanes:
    """The blocks of a plan's stages: each replica's ranks.

    Attributes
    ----------
    blocks : tuple of tuple of Block
        Of each stage, a replica each.
    graph : StageGraph
        Where each replica is its first rank alone.
    """

    blocks: tuple[tuple[Block, ...], ...]
    graph: StageGraph

    @classmethod
    def of(cls, plan: Plan) -> "Lanes":
        """Return those of a plan."""
        blocks = tuple(stage.blocks for stage in plan.stages)
        graph = stage_graph(plan.costs())
        return cls(blocks, replace(graph, ranks=tuple(tuple(block[0] for block in row) for row in blocks)))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that run (also) on a rank, rising."""
        return tuple(i for i, row in enumerate(self.blocks) if any(rank in block for block in row))

    def lane_of(self, stage: int, rank: int) -> int:
        """Place of a rank among those of its replica of a stage."""
        return next(block.index(rank) for block in self.blocks[stage] if rank in block)

    def lead_of(self, stage: int, rank: int) -> int:
        """First rank of a rank's replica of a stage."""
        return next(block[0] for block in self.blocks[stage] if rank in block)

    def replicas(self, stage: int, rank: int) -> tuple[int, ...]:
        """Ranks that hold the same part of a stage as one of its ranks."""
        lane = self.lane_of(stage, rank)
        return tuple(block[lane] for block in self.blocks[stage])

    def sharers(self, plan: Plan, stage: int, rank: int) -> tuple[int, ...]:
        """Replicas of a rank with which it divides states under ZeRO: all, or those of its shard group."""
        replicas = self.replicas(stage, rank)
        size = plan.stages[stage].config.shard_group or len(replicas)
        first = replicas.index(rank) // size * size
        return replicas[first : first + size]

    def across_groups(self, plan: Plan, stage: int, rank: int) -> tuple[int, ...]:
        """Replicas of a rank that hold the same part of the states: one of each shard group."""
        replicas, size = self.replicas(stage, rank), len(self.sharers(plan, stage, rank))
        return replicas[replicas.index(rank) % size :: size]

    def sender(self, source: int, target: int, microbatch: int, rank: int) -> int:
        """Rank of `source` from which a rank of `target` gets a message."""
        senders = self._block(source, microbatch)
        return senders[self.lane_of(target, rank) * len(senders) // len(self.blocks[target][0])]

    def receivers(self, source: int, target: int, microbatch: int, rank: int) -> Sequence[int]:
        """Ranks of `target` that get a message from a rank of `source`."""
        return [r for r in self._block(target, microbatch) if self.sender(source, target, microbatch, r) == rank]

    def pairs(self, plan: Plan) -> set[tuple[int, int]]:
        """Return all (sender, receiver) ranks of the plan."""
        found = set()
        for rank, order in enumerate(plan.orders):
            for action in (parse_action(text) for text in order if "SEND" in text):
                if action.kind in SENDS:
                    receivers = self.receivers(action.stage, action.peer, action.microbatch, rank)
                    found |= {(rank, receiver) for receiver in receivers}
        return found

    def _block(self, stage: int, microbatch: int) -> Block:
        lead = self.graph.rank_of(stage, microbatch)
        return next(block for block in self.blocks[stage] if block[0] == lead)
