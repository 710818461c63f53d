"""Replicas that differ by stage: the devices that a pipeline leaves over go to its slowest stages.

Takes the best cuts of single devices and adds replicas, each time to the stage that takes longest for its share of the
micro-batches, until no device is left. Stages stay otherwise configured as they are. Leaves out tensor and context
degrees, and every other way to divide devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product

from costmodel.stages.config import StageConfig
from planner.candidate.candidate import IN_FLIGHT, Candidate, Place, in_loop
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.search.cuts import by_stage
from planner.search.family import Family
from planner.search.few_cuts import every_partition
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting

NUM_CUTS = 8
"""Cuts that are varied, the best of each number of stages first."""
MOST_ACTIONS = 20_000
"""Actions of a step up to which every replica is simulated."""
SCHEDULES = ("graph-1f1b", "graph-eager-1f1b")
"""Schedules of the catalogue for stages with replicas of their own number, in the order of `auto`."""


def may_vary(setting: Setting, *, singly: bool = False) -> bool:
    """Whether replicas may differ by stage: nothing fixes them, and the target takes stages configured differently.

    A proof (`planner.search.exact`) leaves them out. With `singly` they may be fixed to one each.
    """
    problem = setting.problem
    data = (None, 1) if singly else (None,)
    fixed = problem.space.data not in data or problem.space.stages or setting.pinned.places or problem.num_devices == 1
    run = problem.schedule in ("auto", IN_FLIGHT, WITHIN_LIMIT, *SCHEDULES)
    run = run and problem.target in ("", "any", "executor")
    return run and not fixed and not problem.machines.speeds and problem.planner == "ours" and not problem.exact


def varied(setting: Setting, incumbent: Incumbent, limits: Limits) -> Iterator[Evaluated]:
    """Yield what replicas of the slowest stages make of the best cuts into stages of single devices."""
    problem = setting.problem
    if not may_vary(setting):
        return
    for found in _starts(setting, incumbent):
        count = problem.global_batch // found.microbatch_size
        if limits.over or 4 * count * found.num_stages > MOST_ACTIONS:
            continue
        replicas = _replicas(setting, found)
        if replicas is None:
            continue
        names = SCHEDULES if problem.schedule == "auto" else (problem.schedule,)
        for order, schedule in product(setting.families.orders, names):
            places = _places(found.places, replicas, order)
            each = replace(found, places=places, schedule=schedule, line=False)
            yield from setting.evaluated(each)


def _starts(setting: Setting, incumbent: Incumbent) -> list[Candidate]:
    """Return the best cuts whose stages stand on single devices, one for each number of stages and size.

    Where there are few cuts, all of those as such a best one is configured.
    """
    best: dict[tuple[int, int], Candidate] = {}
    for each in sorted(incumbent.found.values(), key=lambda each: each.rank):
        found = each.candidate
        alone = all(len(place.ranks) == 1 for place in found.places) and found.num_devices == found.num_stages
        if alone and found.num_stages > 1:
            best.setdefault((found.num_stages, found.microbatch_size), found)
    chosen = list(best.values())[:NUM_CUTS]
    if not chosen:
        return []
    one, config = chosen[0], chosen[0].places[0].config
    one = replace(one, in_flight=())
    few = filter(any, every_partition(setting.cuts(Family(config, one.microbatch_size))))
    return chosen + [replace(one, partition=each, places=in_loop(config, max(each) + 1, max(each) + 1)) for each in few]


def _replicas(setting: Setting, found: Candidate) -> list[int] | None:
    """Return how many devices each stage gets with those left over; None if none are, or micro-batches are too few."""
    num_devices = setting.problem.num_devices
    cuts = setting.cuts(Family(StageConfig(), found.microbatch_size))
    works, closing = by_stage(found.partition, cuts.paces_ns), by_stage(found.partition, cuts.closing_ns)
    count = setting.problem.global_batch // found.microbatch_size
    replicas = [1] * found.num_stages

    def load_ns(stage: int) -> int:
        return works[stage] * -(-count // replicas[stage]) + closing[stage]

    for _ in range(num_devices - found.num_stages):
        slowest = max(range(found.num_stages), key=load_ns)
        replicas[slowest] += 1
    return None if max(replicas) == 1 or max(replicas) > count else replicas


def _places(places: Sequence[Place], replicas: Sequence[int], order: Sequence[int]) -> tuple[Place, ...]:
    """Return the places of stages with so many replicas, which take the ranks in this order."""
    ends = accumulate(replicas)
    return tuple(
        Place(replace(place.config, data=number), tuple(order[end - number : end]))
        for place, number, end in zip(places, replicas, ends, strict=True)
    )
