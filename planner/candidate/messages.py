"""What messages take: the time on the slowest pair of ranks that an edge joins, and host time at both ends.

Micro-batch m goes from replica (m // k) mod r of its source to the replica of its target that works on it, every rank
of a block to its counterpart. Host time counts where the two ranks differ; where replicas make some of a stage's
messages stay on a rank, its actions differ. Leaves out borders between blocks of unequal size but for their slowest
pair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import lcm

from costmodel.machines.cluster import Cluster
from costmodel.stages.costs import Amount, StageCost
from planner.candidate.candidate import StagePlacement
from planner.plan.lockstep import Block

Pair = tuple[Block, Block]


def pairs(source: StagePlacement, target: StagePlacement, num_microbatches: int) -> list[Pair]:
    """Return the blocks that exchange messages."""
    senders, receivers = source.blocks, target.blocks
    sizes = source.microbatch_multiple, target.microbatch_multiple
    period = min(num_microbatches, lcm(sizes[0] * len(senders), sizes[1] * len(receivers)))
    return list(
        dict.fromkeys(
            (senders[m // sizes[0] % len(senders)], receivers[m // sizes[1] % len(receivers)]) for m in range(period)
        )
    )


def unlike_lanes(cluster: Cluster, joined: Sequence[Pair]) -> list[tuple[int, int]]:
    """Return pairs of ranks that send to each other, one for each time that their messages take."""
    return cluster.unlike(*zip(*(pair for mine, theirs in joined for pair in lanes(mine, theirs)), strict=True))


def slowest_ns(cluster: Cluster, ends: Sequence[tuple[int, int]], size_bytes: int) -> int:
    """Return the time of the slowest of some pairs of ranks; 0 where no message leaves its rank."""
    return max(cluster.p2p_ns(first, second, size_bytes) for first, second in ends)


def lanes(mine: Block, theirs: Block) -> Iterator[tuple[int, int]]:
    """Yield the ranks of two blocks that send to each other: counterparts, or any where blocks differ in size."""
    return zip(mine, theirs, strict=True) if len(mine) == len(theirs) else product(mine, theirs)


class HostTimes:
    """Host time that messages add to the F and I of each stage's actions."""

    def __init__(self, places: Sequence[StagePlacement], num_microbatches: int) -> None:
        self.places, self.num_microbatches = places, num_microbatches
        counts = [-(-num_microbatches // place.microbatch_multiple) for place in places]
        self._forward = [[0] * count for count in counts]
        self._backward = [[0] * count for count in counts]

    def add(self, source: int, target: int, forward_ns: Sequence[int], backward_ns: Sequence[int]) -> None:
        """Add the messages of one edge.

        `forward_ns` and `backward_ns` are what either end loses to a message of 1, 2, ... micro-batches.
        """
        senders, receivers = ([block[0] for block in self.places[stage].blocks] for stage in (source, target))
        for (there, here), count in self._messages(source, target):
            if senders[there % len(senders)] != receivers[here % len(receivers)]:
                for stage, group in ((source, there), (target, here)):
                    self._forward[stage][group] += forward_ns[count - 1]
                    self._backward[stage][group] += backward_ns[count - 1]

    def _messages(self, source: int, target: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the number of the action at both ends of each message, and the micro-batches in it."""
        sizes = [self.places[stage].microbatch_multiple for stage in (source, target)]
        first = 0
        while first < self.num_microbatches:
            groups = (first // sizes[0], first // sizes[1])
            stop = min((group + 1) * size for group, size in zip(groups, sizes, strict=True))
            stop = min(stop, self.num_microbatches)
            yield groups, stop - first
            first = stop

    def onto(self, stages: Sequence[StageCost]) -> list[StageCost]:
        """Return the stages with their host times."""
        return [
            replace(
                stage,
                forward_ns=_plus(stage.forward_ns, forward),
                backward_input_ns=_plus(stage.backward_input_ns, backward),
            )
            for stage, forward, backward in zip(stages, self._forward, self._backward, strict=True)
        ]


def _plus(amount: Amount, more: Sequence[int]) -> Amount:
    base = (amount,) * len(more) if isinstance(amount, int) else amount
    found = [a + b for a, b in zip(base, more, strict=True)]
    return found[0] if len(set(found)) == 1 else tuple(found)
