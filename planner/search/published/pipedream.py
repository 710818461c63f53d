"""PipeDream (Narayanan et al., SOSP 2019): stages along one order, each with its own replicas, the slowest counting.

Modelled: the order is linear; a stage with r replicas takes 1/r of its operators' time for each micro-batch, and
messages overlap it, so that a boundary counts by itself: forward and backward over one link, divided by the
replicas of the stage behind it. Synchronous, as others compare with it: weights of one version, gradients summed once a
step, whose time is shared by the micro-batches. Memory as in `planner.search.published.bottleneck`. Left out: levels of
the network one by one (the slowest link counts), and asynchronous weights.
"""

from collections.abc import Sequence

import numpy as np

from planner.search.budget import Deadline
from planner.search.published.bottleneck import fastest_chain
from planner.search.published.pieces import Floats, Pieces
from planner.search.published.prices import View, Ways, ways_of
from planner.search.published.proposals import ProposedStage


def propose(view: View, memory_bytes: float, limits: Deadline) -> Sequence[ProposedStage] | None:
    """Return the stages whose slowest, or whose slowest boundary, is fastest."""
    ways = ways_of(view, Pieces.along(view.prepared.orders[0]))
    return fastest_chain(view, ways, time_ns, memory_bytes, limits)


def time_ns(ways: Ways, replicas: int) -> Floats:
    """Return what each piece takes for each micro-batch, or the boundary before it where that takes longer."""
    found: Floats = np.maximum(ways.own_ns(replicas), 2 * ways.view.message_ns(ways.received_bytes) / replicas)
    return found
