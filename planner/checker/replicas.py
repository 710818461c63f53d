"""Replicas that do what the first one does, each with its own micro-batches: to check the first is to check them all.

The k-th micro-batch of replica d is number k x replicas + d. What is found this way is only that nothing is wrong: a
plan whose first replica has a problem is judged as a whole, so that problems name its own actions. Leaves out stages
whose replicas differ in number, in ranks' speeds, or work on several micro-batches an action.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.stages.costs import PER_ACTION
from planner.checker.steps import Layout, Orders, lead_of_ranks, read_texts
from planner.plan import Plan

_NAMED = re.compile(r"([0-9]+[A-Z_]+?)([0-9]+)([<>][0-9]+)?")
Parts = list[tuple[str, int, str]]


@dataclass(frozen=True)
class FirstReplica:
    """The first of several replicas that do the same.

    Attributes
    ----------
    layout : Layout
        Who works on its micro-batches, which are numbered from 0 on.
    orders : tuple of tuple of Step
        None for the ranks of other replicas.
    stand_in : dict of int to int
        For each rank the one of the first replica that does the same.
    """

    layout: Layout
    orders: Orders
    stand_in: dict[int, int]


def first_replica(plan: Plan, layout: Layout) -> FirstReplica | None:
    """Return the first replica of a plan whose replicas all do the same; None where they do not."""
    count = len(layout.ranks[0])
    if count == 1 or not _may_be_alike(plan, layout, count):
        return None
    copies = _copies(layout)
    texts: list[Sequence[str]] = [()] * len(plan.orders)
    for lead, ranks in copies.items() if copies else ():
        parts = _parts(plan.orders[lead], count)
        if parts is None or any(plan.orders[rank] != _renamed(parts, d) for d, rank in enumerate(ranks)):
            return None
        texts[lead] = [f"{head}{k // count}{tail}" if k >= 0 else head for head, k, tail in parts]
    batch = replace(plan.batch, global_size=plan.batch.global_size // count,
                    num_microbatches=plan.batch.num_microbatches // count)  # fmt: skip
    orders, unread = read_texts(replace(plan, batch=batch), texts)
    if copies is None or unread:
        return None
    of_lead = {rank: lead for lead, ranks in copies.items() for rank in ranks}
    small = replace(layout, num_microbatches=batch.num_microbatches, ranks=tuple(row[:1] for row in layout.ranks))
    return FirstReplica(small, orders, {rank: of_lead[lead] for rank, lead in lead_of_ranks(plan).items()})


def _may_be_alike(plan: Plan, layout: Layout, count: int) -> bool:
    uneven = any(not isinstance(getattr(stage.cost, name), int) for stage in plan.stages for name in PER_ACTION)
    alike = {len(row) for row in layout.ranks} == {count} and set(layout.multiples) == {1}
    return alike and not uneven and not plan.cluster.speeds and layout.num_microbatches % count == 0


def _copies(layout: Layout) -> dict[int, tuple[int, ...]] | None:
    """Return for each lead of the first replica those that do the same; None where stages disagree."""
    copies: dict[int, tuple[int, ...]] = {}
    if any(copies.setdefault(row[0], row) != row for row in layout.ranks):
        return None
    ranks = [rank for row in copies.values() for rank in row]
    return copies if len(set(ranks)) == len(ranks) else None


def _parts(order: Sequence[str], count: int) -> Parts | None:
    """Divide texts around their micro-batches (-1 where there is none); None where one is not the first replica's."""
    found: Parts = []
    for text in order:
        match = _NAMED.fullmatch(text)
        if match and int(match[2]) % count:
            return None
        found.append((match[1], int(match[2]), match[3] or "") if match else (text, -1, ""))
    return found


def _renamed(parts: Parts, number: int) -> tuple[str, ...]:
    return tuple([f"{head}{k + number}{tail}" if k >= 0 else head for head, k, tail in parts])
