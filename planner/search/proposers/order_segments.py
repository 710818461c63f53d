"""The cut of a family before the solver: orders, segments, simulation, local search.

All effort is counted, so that the result depends on the inputs alone; the clock is a backstop.
"""

from collections.abc import Iterable, Sequence

from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition, numbered
from planner.graph.topological_orders import orders
from planner.search.budget import Deadline
from planner.search.proposers.local_search import improve
from planner.search.solvers.segment_dp import SegmentationParams, segmentations
from planner.search.space.partitions import FamilyPartitions, by_stage
from planner.search.state.pool import CandidatePool

NUM_RANDOM_ORDERS = 6
BEAM = 6
NUM_TRIED_EVERYWHERE = 12
"""Partitions of a size that are simulated under every schedule; the others under the first and the last."""
NUM_EVALUATIONS = 500


def cut(
    cuts: FamilyPartitions, num_random: int, pool: CandidatePool, limits: Deadline, *, line: bool
) -> list[Evaluated]:
    """Cut orders into segments and simulate what comes out, most stages first."""
    found: list[Evaluated] = []
    few = dict.fromkeys((cuts.schedules[0], cuts.schedules[-1]))
    for order in orders(cuts.atoms, cuts.works_ns, num_random, cuts.evaluator.problem.effort.seed):
        if limits.expired and found:
            break
        with cuts.dropped.candidate():
            for partition in _segmented(cuts, order, line):
                if limits.expired and found:
                    break
                if _worth_simulating(cuts, partition, pool):
                    under = cuts.evaluate_under(partition, few, line=line)
                    pool.offer(under)
                    found += under
    found.sort(key=lambda each: each.sort_key)
    best = dict.fromkeys(each.candidate.partition for each in found)
    for partition in list(best)[:NUM_TRIED_EVERYWHERE]:
        found += cuts.evaluate_under(partition, (name for name in cuts.schedules if name not in few), line=line)
    pool.offer(found)
    return found


def _segmented(cuts: FamilyPartitions, order: Sequence[int], line: bool) -> list[Partition]:
    """Return partitions of one order, those with most stages first."""
    groups: dict[tuple[int, ...], None] = {}
    for bound in (False, True):
        speeds = cuts.stage_speeds if len(set(cuts.speeds)) > 1 else ()
        aim = SegmentationParams(cuts.num_stages, cuts.num_microbatches, BEAM, line or cuts.always_line, bound, speeds)
        groups.update(dict.fromkeys(segmentations(cuts.atoms, order, cuts.shares_ns, aim)))
    partitions = [p for row in groups if (p := row if aim.line else numbered(cuts.atoms, row))]
    full = [p for p in partitions if (max(p) + 1) % cuts.family.chunks == 0]  # each place holds as many
    allowed = [p for p in full if cuts.fixed_stages in (None, max(p) + 1)]
    return sorted(dict.fromkeys(allowed), key=max, reverse=True)


def _worth_simulating(cuts: FamilyPartitions, partition: Partition, pool: CandidatePool) -> bool:
    """Whether the largest stage alone leaves room to come near the best that fits."""
    if not pool.best_fits or cuts.pinned.places:
        return True
    largest_ns = max(by_stage(partition, cuts.works_ns))  # without what closes the step, which is an estimate
    return largest_ns * cuts.num_microbatches / max(cuts.speeds) <= pool.best.step_time_ns * pool.problem.near


def polish(cuts: FamilyPartitions, candidates: Iterable[Evaluated], pool: CandidatePool, limits: Deadline) -> None:
    """Improve the best candidate of each schedule by local search, the most promising schedule first."""
    best: dict[str, Evaluated] = {}
    for each in sorted(candidates, key=lambda each: each.sort_key):
        best.setdefault(each.candidate.schedule, each)
    for number, each in enumerate(best.values()):
        if limits.expired:
            return
        better = improve(cuts, each, NUM_EVALUATIONS if number < 2 else NUM_EVALUATIONS // 4, limits)
        under_all(cuts, better, pool)


def under_all(cuts: FamilyPartitions, each: Evaluated, pool: CandidatePool) -> None:
    """Offer a candidate's partition under every schedule."""
    partition, line = each.candidate.partition, each.candidate.line
    pool.offer(cuts.evaluate_under(partition, cuts.schedules, line=line))
