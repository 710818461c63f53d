"""Replicas that differ by stage: the devices that a pipeline leaves over go where they shorten its slowest stage most.

Takes the best cuts into stages that no ranks divide and deals the devices out anew, in each order of unlike ones, so
that the longest of what stages take is the least. Stages stay otherwise configured as they are, unless they are over
the memory. Leaves out tensor and context degrees, and stages on devices that do not follow each other in an order.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from costmodel.stages.config import RECOMPUTE
from planner.candidate.candidate import Candidate, StagePlacement, in_loop, is_looped
from planner.candidate.evaluate import Evaluated
from planner.search.proposers.enumeration import every_partition
from planner.search.space.family import Family
from planner.search.space.open_choices import REPLICA_SCHEDULES, allows_per_stage_replicas
from planner.search.space.partitions import by_stage
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState, Subsolver

NUM_CUTS = 8
"""Cuts that are varied, the best of each number of stages first."""
MOST_ACTIONS = 20_000
"""Actions of a step up to which every replica is simulated."""
TIE = 1e-9
"""Part of what all stages take by which ways are told apart whose longest stages are alike."""


class ReplicasByStage(Subsolver):
    """What replicas of the slowest stages make of the best cuts into stages of single devices."""

    name = "replicas by stage"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether stages may have replicas of their own number."""
        return super().supports(state) and allows_per_stage_replicas(state.problem, state.prepared.pinned)

    def steps(self) -> Generator[None]:
        """Vary one cut after the other."""
        prepared, problem = self.state.prepared, self.state.problem
        for found in _starts(prepared, self.state.pool):
            count = problem.global_batch // found.microbatch_size
            if found not in self.done and 4 * count * found.num_stages <= MOST_ACTIONS:
                self.done.add(found)
                with prepared.dropped.candidate():
                    self.state.offer_by_stage(_varied(prepared, found))
                yield


def _varied(prepared: PreparedProblem, found: Candidate) -> Iterator[Evaluated]:
    """Yield a cut with devices dealt out anew, in each order of unlike ones and under each schedule."""
    problem = prepared.problem
    names = REPLICA_SCHEDULES if problem.schedule == "auto" else (problem.schedule,)
    for number, order in enumerate(prepared.families.device_permutations):
        dealt = _dealt(prepared, found, number)
        for schedule in names if dealt else ():
            places = _places(found.places, dealt or (), order)
            plain = replace(found, places=places, schedule=schedule, line=False, orders=())
            under = prepared.evaluated(plain)
            yield from under
            if not any(each.fits for each in under):
                yield from _saving(prepared, plain)


def _saving(prepared: PreparedProblem, found: Candidate) -> Iterator[Evaluated]:
    """Yield a candidate that is over the memory under every other way to run forwards again and to use hosts."""
    recompute = [name for name in RECOMPUTE if prepared.problem.space.allows("recompute", name)]
    offload = {family.config.offload: None for family in prepared.families.single_replicas}
    for again, kept in product(recompute, offload):
        places = tuple(
            replace(each, config=replace(each.config, recompute=again, offload=kept)) for each in found.places
        )
        if places != found.places:
            yield from prepared.evaluated(replace(found, places=places))


def _starts(prepared: PreparedProblem, pool: CandidatePool) -> list[Candidate]:
    """Return the best cuts into stages that no ranks divide, one for each number of stages and size.

    Where there are few cuts, all of those as the best of these is configured.
    """
    ranked = (each.candidate for each in sorted(pool.found.values(), key=lambda each: each.sort_key))
    whole = [found for found in ranked if _is_whole(found)]
    if not whole:
        return []
    best: dict[tuple[int, int], Candidate] = {}
    for found in whole:
        if found.num_stages > 1:
            best.setdefault((found.num_stages, found.microbatch_size), found)
    config, one = replace(whole[0].places[0].config, data=1, shard_group=0), replace(whole[0], in_flight=())
    few = filter(any, every_partition(prepared.cuts(Family(config, one.microbatch_size))))
    rows = [replace(one, partition=each, places=in_loop(config, max(each) + 1, max(each) + 1)) for each in few]
    return list(best.values())[:NUM_CUTS] + rows


def _is_whole(found: Candidate) -> bool:
    """Whether each stage has ranks of its own, on each of which it is whole."""
    return not is_looped(found.places) and all(len(place.ranks) == place.config.data for place in found.places)


def _dealt(prepared: PreparedProblem, found: Candidate, number: int) -> list[range] | None:
    """Return the positions in an order of devices that each stage gets; None if none gets several.

    The longest of what stages take is the least, each on devices that follow each other in the order, whose slowest one
    sets its pace; devices that serve nothing stay idle.
    """
    family = Family(replace(found.places[0].config, data=1, shard_group=0), found.microbatch_size, arrangement=number)
    cuts, speeds = prepared.cuts(family), np.array(prepared.families.speeds(family))
    works, closings = by_stage(found.partition, cuts.paces_ns), by_stage(found.partition, cuts.closing_ns)
    count, size = prepared.problem.global_batch // found.microbatch_size, len(speeds)
    replicas = np.arange(size + 1) - np.arange(size)[:, None]  # of a stage that begins at i and ends before j
    slowest = np.full(replicas.shape, np.inf)
    for first in range(size):
        slowest[first, first + 1 :] = np.minimum.accumulate(speeds[first:])
    open_ones = (replicas > 0) & (replicas <= count)
    rounds = np.where(open_ones, -(-count // np.maximum(replicas, 1)), 0)
    longest, total = np.full(size + 1, np.inf), np.zeros(size + 1)
    longest[0] = 0.0
    firsts: list[np.ndarray] = []
    ends = np.arange(size + 1)
    for work, closing in zip(works, closings, strict=True):
        load = np.where(open_ones, (rounds * work + closing) / slowest, np.inf)
        worst = np.maximum(longest[:-1, None], load)
        first = np.argmin(worst + TIE * np.where(open_ones, total[:-1, None] + load, 0.0), axis=0)
        longest, total = worst[first, ends], total[first] + load[first, ends]
        firsts.append(first)
    stop = int(np.argmin(longest + TIE * np.where(np.isfinite(longest), total, 0.0)))
    if not np.isfinite(longest[stop]):
        return None
    dealt: list[range] = []
    for first in reversed(firsts):
        dealt.insert(0, range(int(first[stop]), stop))
        stop = dealt[0].start
    return dealt if max(map(len, dealt)) > 1 else None


def _places(
    places: Sequence[StagePlacement], dealt: Sequence[range], order: Sequence[int]
) -> tuple[StagePlacement, ...]:
    """Return the places of stages that get these positions in an order of the ranks."""
    return tuple(
        StagePlacement(replace(place.config, data=len(row), shard_group=0), tuple(order[row.start : row.stop]))
        for place, row in zip(places, dealt, strict=True)
    )
