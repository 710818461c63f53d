"""Orders by list simulations in which each stage has a number of micro-batches in flight at most.

Fused ones by given numbers: every rank takes, whenever it is free, a ready backward first (lowest micro-batch, then
highest stage index), else a ready forward (highest stage index first); where each rank has one stage, it is the fixed
order of 1F1B. Split ones of one stage a rank at several paces, within memory: a ready input gradient first, else a
forward, else a weight gradient that fits into the wait or makes room. They win where a rank can hold less than 1F1B
asks for, because every rank goes at its own pace. Never looks ahead further than what has started.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product, zip_longest
from operator import itemgetter

from costmodel.stages.costs import Costs
from simulator.actions import Action, Kind
from simulator.schedule import StageGraph
from simulator.schedules.job_shop import JobShop, job_shop_of
from simulator.schedules.job_shop_list import Manner, listed
from simulator.schedules.job_shop_times import ShopArrays
from simulator.schedules.kind import Orders, Request
from simulator.schedules.one_stage import forwards, one_forward_one_backward
from simulator.schedules.order_timing import NEVER, Ints

Numbers = tuple[int, ...]
"""For each stage the actions that each of its replicas keeps in flight at most."""
PACES = tuple(product((Fraction(1), Fraction(2), Fraction(3, 2), Fraction(1, 2)), (100, 50, 0)))
"""Forwards in flight for each stage from here to the end of the pipeline, and the patience of lists."""
BEST = 2
"""Paces that are tried at full length."""
Pace = tuple[Fraction, int]
Key = tuple[int, int]
"""Span and step, what counts first before the other."""


def list_orders(costs: Costs, graph: StageGraph, num_microbatches: int, in_flight: Numbers) -> Orders:
    """Return the fused orders of all ranks by numbers in flight."""
    if all(len(graph.stages_of(rank)) == 1 for rank in range(graph.num_ranks)):
        return tuple(_fixed_order(graph, rank, num_microbatches, in_flight) for rank in range(graph.num_ranks))
    jobs = job_shop_of(costs, graph, num_microbatches, None, split=False)
    late, last = graph.num_stages * num_microbatches, graph.num_stages - 1
    urgency = [last - a.stage + (late if a.kind is Kind.F else graph.num_stages * a.microbatch) for a in jobs.actions]
    shop = ShopArrays(_alternating(jobs, in_flight))
    row = _listed(shop, urgency, 0, in_flight)
    assert row is not None  # noqa: S101 - memory has no end, and numbers are as large as the stage graph asks for
    return jobs.orders(shop.sequences(row))


def _alternating(jobs: JobShop, numbers: Numbers) -> JobShop:
    """Return jobs whose backwards, on ranks with one stage, wait for the forwards that 1F1B runs before them."""
    needs, feeds = list(jobs.needs), list(jobs.feeds)
    for queues in jobs.queues:
        if len(queues) == 2 and jobs.actions[queues[1][0]].kind is Kind.B:
            ahead = numbers[jobs.actions[queues[0][0]].stage] - 1
            for index, backward in enumerate(queues[1]):
                forward = queues[0][min(index + ahead, len(queues[0]) - 1)]
                needs[backward] = (*needs[backward], (forward, 0))
                feeds[forward] = (*feeds[forward], (backward, 0))
    return replace(jobs, needs=tuple(needs), feeds=tuple(feeds))


def _fixed_order(graph: StageGraph, rank: int, num_microbatches: int, in_flight: Numbers) -> tuple[Action, ...]:
    """Return the 1F1B order of a rank with one stage."""
    (stage,) = graph.stages_of(rank)
    microbatches = graph.microbatches_of(stage, rank, num_microbatches)
    if not graph.backward[stage]:
        return forwards(stage, microbatches)
    return one_forward_one_backward(stage, microbatches, in_flight[stage])


def paced(request: Request, depth: Numbers, room: Sequence[int]) -> tuple[Key, Orders] | None:
    """Return the best split orders that the best paces on the first 2 p micro-batches lead to; None where none fits.

    Parameters
    ----------
    depth : tuple of int
        For each stage the stages from it to the end of the pipeline.
    room : sequence of int
        Bytes for activations on each rank.
    """
    most = min(request.num_microbatches, 2 * request.graph.num_stages * request.graph.multiples[0])
    shop = _shop(request, most, room)
    ranked = sorted(
        (found[0], index)
        for index, pace in enumerate(PACES)
        if (found := _at_pace(shop, depth, pace, request.objective))
    )
    if most < request.num_microbatches:
        shop = _shop(request, request.num_microbatches, room)
    tried = [_at_pace(shop, depth, PACES[index], request.objective) for _, index in ranked[:BEST]]
    found = min((one for one in tried if one), key=itemgetter(0), default=None)
    return (found[0], shop.jobs.orders(shop.sequences(found[1]))) if found else None


def _shop(request: Request, num_microbatches: int, room: Sequence[int]) -> ShopArrays:
    jobs = job_shop_of(request.costs, request.graph, num_microbatches, None, split=True)
    return ShopArrays(replace(jobs, room=tuple(room)))


def _at_pace(shop: ShopArrays, depth: Numbers, pace: Pace, objective: str) -> tuple[Key, Ints] | None:
    urgency = [int(action.kind is Kind.F) for action in shop.jobs.actions]
    row = _listed(shop, urgency, pace[1], [max(1, int(pace[0] * number)) for number in depth])
    if row is None:
        return None
    shop.step_ns(row)
    start, duration = shop.times.start, shop.jobs.duration_ns
    ends = [(row[begin], row[end - 1]) for begin, end in pairwise(shop.row_at)]
    spans = [(int(start[first]), int(start[last]) + duration[last]) for first, last in ends]
    key = (max(end - begin for begin, end in spans), max(end for _, end in spans))
    return key if objective == "span" else key[::-1], row


def _listed(shop: ShopArrays, urgency: Sequence[int], patience: int, in_flight: Sequence[int]) -> Ints | None:
    """Return the orders that some urgency leads to, with a number of forwards of each stage ahead of its backwards."""
    jobs = shop.jobs
    heads = [jobs.actions[queue[0]] for row in jobs.queues for queue in row]
    most = [
        in_flight[a.stage] if a.kind is Kind.F and after is not None and after.kind is not Kind.F else NEVER
        for a, after in zip_longest(heads, heads[1:])
    ]
    exact = shop.kernels.noisy(shop.ints(urgency), 0.0, shop.ints([1]))
    return listed(shop, exact, Manner(patience, ahead=False), shop.ints(most))
