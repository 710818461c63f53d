"""What one replica of a pipeline does: the compute of each place, with the replica's own micro-batches from 0.

For trainers whose replicas know nothing of each other. Micro-batch k of a replica is k x replicas + its number of the
plan. Leaves out messages, sums of gradients and the optimizer's steps, which such trainers add themselves.
"""

import re
from collections.abc import Sequence

from planner.plan.lockstep import in_blocks
from planner.plan.whole import Plan

_COMPUTE = re.compile(r"([0-9]+[FBIWR])([0-9]+)", re.ASCII)


def places_of(plan: Plan) -> list[tuple[int, ...]]:
    """Return the ranks that hold stages, each set once, in order of its first stage."""
    return list(dict.fromkeys(stage.ranks for stage in plan.stages))


def replica_orders(plan: Plan) -> tuple[tuple[str, ...], ...] | None:
    """Return the actions at each place of a plan whose stages are configured alike; None where replicas differ."""
    config = plan.stages[0].config
    found = []
    for ranks in places_of(plan):
        blocks = in_blocks(ranks, config.tensor * config.context)
        rows = {_own(plan.orders[block[0]], len(blocks), number) for number, block in enumerate(blocks)}
        if len(rows) > 1:
            return None
        found.append(rows.pop())
    return None if None in found else tuple(row for row in found if row is not None)


def _own(order: Sequence[str], replicas: int, number: int) -> tuple[str, ...] | None:
    """Return the compute of an order by the replica's own numbers; None where it has a micro-batch of another's."""
    actions = [(match[1], int(match[2])) for match in map(_COMPUTE.fullmatch, order) if match]
    if any(k % replicas != number for _, k in actions):
        return None
    return tuple(f"{head}{k // replicas}" for head, k in actions)
