"""The plan before the solver: orders, segments, simulation, local search.

A few orders are cut for every micro-batch size; sizes that turn out near the best get more orders and the
local search. All effort is counted, so that the result depends on the inputs alone; the clock is a backstop.
"""

from collections.abc import Iterable, Sequence
from random import Random

from planner.pricing import Partition, numbered
from planner.search.evaluate import GRAPH, LINE, Candidate, Evaluator
from planner.search.improve import improve, shake
from planner.search.incumbent import NEAR, Incumbent
from planner.search.limits import Limits
from planner.search.orders import orders
from planner.search.segments import Aim, segmentations

NUM_RANDOM_ORDERS = 6
BEAM = 6
NUM_TRIED_EVERYWHERE = 12
"""Partitions of a size that are simulated under every schedule; the others under the first and the last."""
NUM_EVALUATIONS = 500
WORTH_A_CLOSER_LOOK = 1.05


def search(evaluators: Sequence[Evaluator], shape: str, incumbent: Incumbent, limits: Limits) -> None:
    """Offer the incumbent what orders, segments and local search find."""
    reached: dict[int, Candidate] = {}
    for evaluator in evaluators:
        if reached and limits.over:
            break
        candidates = cut(evaluator, shape, 0, incumbent, limits)
        reached[evaluator.microbatch_size] = min(candidates, key=lambda c: c.rank)
    best = incumbent.best
    for evaluator in evaluators:
        first = reached.get(evaluator.microbatch_size)
        if first and _promising(first, best) and not limits.over:
            candidates = cut(evaluator, shape, NUM_RANDOM_ORDERS, incumbent, limits)
            polish(evaluator, candidates, incumbent, limits)


def _promising(candidate: Candidate, best: Candidate) -> bool:
    if not candidate.fits:
        return not best.fits
    return not best.fits or candidate.step_time_ns <= best.step_time_ns * WORTH_A_CLOSER_LOOK


def cut(evaluator: Evaluator, shape: str, num_random: int, incumbent: Incumbent, limits: Limits) -> list[Candidate]:
    """Cut orders into segments and simulate what comes out, most stages first; one stage is always tried."""
    problem, atoms = evaluator.problem, evaluator.atoms
    found = [evaluator.evaluate((0,) * len(atoms), problem.schedules[0], shape)]
    few = dict.fromkeys((problem.schedules[0], problem.schedules[-1]))
    for order in orders(atoms, evaluator.work_ns, num_random, problem.seed):
        for partition in _segmented(evaluator, order, shape):
            if limits.over and len(found) > 1:
                break
            if _worth_simulating(evaluator, partition, incumbent):
                found += [evaluator.evaluate(partition, name, shape) for name in few]
                incumbent.offer(found[-len(few) :])
    found.sort(key=lambda c: c.rank)
    best = dict.fromkeys(c.partition for c in found)
    for partition in list(best)[:NUM_TRIED_EVERYWHERE]:
        found += [evaluator.evaluate(partition, name, shape) for name in problem.schedules if name not in few]
    incumbent.offer(found)
    incumbent.say("order and segments")
    return found


def _segmented(evaluator: Evaluator, order: Sequence[int], shape: str) -> list[Partition]:
    """Return partitions of one order, those with most stages first."""
    groups: dict[tuple[int, ...], None] = {}
    for bound in (False, True):
        aim = Aim(evaluator.problem.num_stages, evaluator.num_microbatches, BEAM, shape == LINE, bound)
        groups.update(dict.fromkeys(segmentations(evaluator.atoms, order, evaluator.work_ns, aim)))
    partitions = [p for row in groups if (p := row if shape == LINE else numbered(evaluator.atoms, row))]
    return sorted(dict.fromkeys(partitions), key=max, reverse=True)


def _worth_simulating(evaluator: Evaluator, partition: Partition, incumbent: Incumbent) -> bool:
    """Whether the largest stage alone leaves room to come near the best that fits."""
    if not incumbent.found or not incumbent.best.fits:
        return True
    load = [0] * (max(partition) + 1)
    for stage, work in zip(partition, evaluator.work_ns, strict=True):
        load[stage] += work
    least = max(load) * evaluator.num_microbatches / max(evaluator.problem.speeds)
    return least <= incumbent.best.step_time_ns * NEAR


def polish(evaluator: Evaluator, candidates: Iterable[Candidate], incumbent: Incumbent, limits: Limits) -> None:
    """Improve the best candidate of each schedule by local search, the most promising schedule first."""
    schedules = evaluator.problem.schedules
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.rank):
        best.setdefault(candidate.schedule, candidate)
    for rank, candidate in enumerate(best.values()):
        if limits.over:
            return
        better = improve(evaluator, candidate, NUM_EVALUATIONS if rank < 2 else NUM_EVALUATIONS // 4, limits)
        incumbent.offer(evaluator.evaluate(better.partition, name, better.shape) for name in schedules)
        incumbent.say("local search")


def shake_best(evaluator: Evaluator, incumbent: Incumbent, num_shakes: int, seed: int, limits: Limits) -> None:
    """Shake the best candidate of all."""
    better = shake(evaluator, incumbent.best, Random(seed), (num_shakes, NUM_EVALUATIONS // 2), limits)  # noqa: S311
    incumbent.offer(evaluator.evaluate(better.partition, name, better.shape) for name in evaluator.problem.schedules)
    incumbent.say("shaken and improved")


def as_graph(evaluator: Evaluator, partition: Partition, incumbent: Incumbent) -> None:
    """Offer the partition of a chain with tensors that go straight to their readers."""
    incumbent.offer(evaluator.evaluate(partition, name, GRAPH) for name in evaluator.problem.schedules)
