"""How much memory a candidate may take at most: its simulated peak, and by how much each term may exceed its estimate.

Works for whatever was evaluated, plans that nobody makes as well. Leaves out the peak itself
(`planner.candidate.evaluate`) and what terms are made of (`costmodel.stages.strategies`).
"""

from collections import Counter
from collections.abc import Sequence

from costmodel.stages.strategies import MemoryTerms
from costmodel.stages.strategies.memory import COMMUNICATOR_BYTES, KINDS, MESSAGES_BYTES, UNSEEN
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.price import compact
from simulator.actions import Action


def upper_bytes(evaluator: Evaluator, candidate: Candidate, run: Run, kind: str = "device") -> list[int]:
    """Return the upper bound of each simulated rank: its peak, and by how much its stages' terms may exceed theirs.

    What actions work with (`TrainingJob.once_a_rank`) and the context, which no stage has for itself, count once a
    rank; so do communicators, which its stages share: one for each group, one with each neighbour for messages, and
    the one of all ranks.

    Parameters
    ----------
    evaluator, candidate, run
    kind : str
        One of `KINDS`: what is counted.
    """
    schedule = run.times.structure.schedule
    peaks = list(run.times.peak_memory_bytes)
    neighbours = schedule.graph.neighbours(evaluator.num_microbatches)
    on_gpus = any(device.type == "cuda" for device in evaluator.problem.machines.devices)
    names = evaluator.problem.training.once_a_rank
    more, shared, points, outside = ([0] * len(peaks) for _ in range(4))
    for stage in range(candidate.num_stages):
        for rank in schedule.graph.ranks[stage]:
            terms = stage_terms(evaluator, candidate, run, stage, most_in_flight(schedule.orders[rank], stage))
            own = [getattr(terms, name) for name in names]
            point, upper = sum(amount.point for amount in own), sum(amount.upper for amount in own)
            more[rank] += terms.tensors_upper - terms.point_bytes - (upper - point)
            shared[rank], points[rank] = max(shared[rank], upper), max(points[rank], point)
            communicators = terms.communicators
            if on_gpus:
                communicators += len(neighbours[rank]) * MESSAGES_BYTES + (len(peaks) > 1) * COMMUNICATOR_BYTES
            outside[rank] = max(outside[rank], communicators + terms.context)
    beyond = UNSEEN if kind == KINDS[0] else evaluator.problem.training.fragmentation
    tensors = [peak + a + b - c for peak, a, b, c in zip(peaks, more, shared, points, strict=True)]
    return [
        size + round(beyond * size) + (kind == KINDS[-1]) * besides
        for size, besides in zip(tensors, outside, strict=True)
    ]


def stage_terms(evaluator: Evaluator, candidate: Candidate, run: Run, stage: int, in_flight: int) -> MemoryTerms:
    """Return the memory of a stage term by term, on the type of device where the upper bound is largest."""
    place = candidate.places[stage]
    flows = run.priced.flows.items()
    received = sorted({t for (_, target), row in flows if target == stage for t in row})
    operators = compact(run.priced.operators[stage])
    count = evaluator.num_microbatches // place.config.data or 1
    found = [
        model.terms(operators, place.config, place.ranks, count, max(1, in_flight), received)
        for model in evaluator.pricer.models(place)
    ]
    return max(found, key=lambda terms: terms.upper_bytes)


def most_in_flight(order: Sequence[Action], stage: int) -> int:
    """Return the most micro-batch groups of a stage that an order has alive at once; one where it has no backward."""
    alive = most = 0
    if not any(action.stage == stage and _CHANGE[action.kind] < 0 for action in order):
        return 1
    for action in order:
        alive += (action.stage == stage) * _CHANGE[action.kind]
        most = max(most, alive)
    return most


_CHANGE = Counter({"F": 1, "B": -1, "W": -1})
"""Micro-batches in flight after an action; 0 for others."""
