"""What all stages of a device keep in host memory, held against the device's share of it.

Offloaded activations count for every micro-batch in flight. Leaves out shares that a device could leave to another.
"""

from collections import Counter

from costmodel.stages.strategies.host import check_room
from planner.candidate.candidate import Candidate
from planner.candidate.price import Priced, Pricer, compact
from simulator.actions import Kind
from simulator.schedule import Schedule


def check_host_room(pricer: Pricer, candidate: Candidate, priced: Priced, schedule: Schedule) -> None:
    """Refuse a candidate whose devices keep more on a host than it has for each.

    Raises
    ------
    NoPlanFits
    """
    if all(place.config.offload == "none" for place in candidate.places):
        return
    held: Counter[int] = Counter()
    in_flight = most_in_flight(schedule)
    for stage, (place, operators) in enumerate(zip(candidate.places, priced.operators, strict=True)):
        config = place.config
        if config.offload != "none":
            received = tuple(sorted({t for (_, end), row in priced.flows.items() if end == stage for t in row}))
            count = in_flight[stage] if config.offload == "activations" else 1
            sizes = [
                model.terms(compact(operators), config, place.ranks, count, count, received).host
                for model in pricer.models(place)
            ]
            held.update(dict.fromkeys(place.ranks, max(sizes)))
    for rank, size in held.items():
        check_room(pricer.problem.machines, rank, size)


def most_in_flight(schedule: Schedule) -> Counter[int]:
    """Return how many actions of each stage are between forward and backward at once, the most on any rank."""
    most: Counter[int] = Counter()
    for order in schedule.orders:
        now: Counter[int] = Counter()
        for action in order:
            now[action.stage] += (action.kind is Kind.F) - (action.kind in (Kind.B, Kind.W))
            most[action.stage] = max(most[action.stage], now[action.stage])
    return most
