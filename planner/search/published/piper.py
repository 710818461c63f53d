"""Piper (Tarnawski et al., NeurIPS 2021): a line of stages cut from any downsets, with data, tensor and recompute.

Modelled: a stage is what lies between two downsets; with d replicas it takes 1/d of its operators' time and of its
messages', forward and backward, for each micro-batch, and the sum of its gradients shared by the micro-batches; its
tensor degree and whether it runs its forwards again are its own; memory with the micro-batches in flight that its
position implies (`planner.search.published.bottleneck`). The slowest stage counts, found exactly. Its limit is the
number of downsets: pieces of the model are joined along one order until there are at most `MOST_SETS`, and a model
that has more even as eight pieces is refused. Left out: recompute node by node (a stage of ours runs all again, or
nothing).
"""

from collections.abc import Sequence

from planner.search.budget import Deadline
from planner.search.published.bottleneck import fastest_chain
from planner.search.published.downsets import downsets
from planner.search.published.pieces import Floats, Pieces
from planner.search.published.prices import View, Ways, ways_of
from planner.search.published.proposals import ProposedStage

MOST_SETS = 350
"""Downsets up to which every pair is gone through."""
PIECES = (48, 32, 24, 16, 12, 8)
"""Pieces to which a model is joined, until its downsets are few enough."""
LIMIT = f"it goes through all pairs of downsets, at most {MOST_SETS} of them, and fits none into memory or time"


def propose(view: View, memory_bytes: float, limits: Deadline) -> Sequence[ProposedStage] | None:
    """Return the stages whose slowest is fastest."""
    pieces = _pieces(view)
    if pieces is None:
        return None
    return fastest_chain(view, ways_of(view, pieces, "tensor", "recompute"), time_ns, memory_bytes, limits)


def time_ns(ways: Ways, replicas: int) -> Floats:
    """Return what each piece takes for each micro-batch."""
    messages = 2 * (ways.view.message_ns(ways.received_bytes) + ways.view.message_ns(ways.sent_bytes))
    found: Floats = ways.own_ns(replicas) + messages / replicas
    return found


def _pieces(view: View) -> Pieces | None:
    """Return the pieces between all downsets of the model, joined as little as their number admits."""
    for most in PIECES:
        groups = view.joined(most)
        group_of = {atom: number for number, row in enumerate(groups) for atom in row}
        edges = {(group_of[a], group_of[b]) for a, b in view.atoms.edges if group_of[a] != group_of[b]}
        masks = downsets(len(groups), edges, MOST_SETS)
        if masks is not None:
            return Pieces.between(masks, groups)
    return None
