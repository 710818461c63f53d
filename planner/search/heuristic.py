"""The plan before the solver: orders, segments, simulation, local search.

A few orders are cut for every micro-batch size; sizes that turn out near the best get more orders and the
local search. All effort is counted, so that the result depends on the inputs alone; the clock is a backstop.
"""

from collections.abc import Iterable, Sequence

from planner.pricing import numbered
from planner.search.evaluate import GRAPH, LINE, Candidate, Evaluator
from planner.search.improve import improve
from planner.search.incumbent import Incumbent
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
        candidates = cut(evaluator, shape, 0, incumbent)
        reached[evaluator.microbatch_size] = min(candidates, key=lambda c: c.rank)
    best = incumbent.best
    for evaluator in evaluators:
        first = reached.get(evaluator.microbatch_size)
        if first and _promising(first, best) and not limits.over:
            candidates = cut(evaluator, shape, NUM_RANDOM_ORDERS, incumbent)
            polish(evaluator, candidates, incumbent, limits)


def _promising(candidate: Candidate, best: Candidate) -> bool:
    if not candidate.fits:
        return not best.fits
    return not best.fits or candidate.step_time_ns <= best.step_time_ns * WORTH_A_CLOSER_LOOK


def cut(evaluator: Evaluator, shape: str, num_random: int, incumbent: Incumbent) -> list[Candidate]:
    """Cut orders into segments and simulate what comes out."""
    problem, atoms = evaluator.problem, evaluator.atoms
    groups: dict[tuple[int, ...], None] = {}
    for order in orders(atoms, evaluator.work_ns, num_random, problem.seed):
        for bound in (False, True):
            aim = Aim(problem.num_stages, evaluator.num_microbatches, BEAM, shape == LINE, bound)
            groups.update(dict.fromkeys(segmentations(atoms, order, evaluator.work_ns, aim)))
    partitions = dict.fromkeys(p for row in groups if (p := row if shape == LINE else numbered(atoms, row)))
    few = dict.fromkeys((problem.schedules[0], problem.schedules[-1]))
    found = [evaluator.evaluate(partition, name, shape) for partition in partitions for name in few]
    found.sort(key=lambda c: c.rank)
    best = dict.fromkeys(c.partition for c in found[: 2 * NUM_TRIED_EVERYWHERE])
    found += [
        evaluator.evaluate(partition, name, shape)
        for partition in list(best)[:NUM_TRIED_EVERYWHERE]
        for name in problem.schedules
        if name not in few
    ]
    for candidate in found:
        incumbent.offer(candidate, "order and segments")
    return found


def polish(evaluator: Evaluator, candidates: Iterable[Candidate], incumbent: Incumbent, limits: Limits) -> None:
    """Improve the best candidate of each schedule by local search, the most promising schedule first."""
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.rank):
        best.setdefault(candidate.schedule, candidate)
    for rank, candidate in enumerate(best.values()):
        if limits.over:
            return
        better = improve(evaluator, candidate, NUM_EVALUATIONS if rank < 2 else NUM_EVALUATIONS // 4, limits)
        for name in evaluator.problem.schedules:
            incumbent.offer(evaluator.evaluate(better.partition, name, better.shape), "local search")


def as_graph(evaluator: Evaluator, candidates: Iterable[Candidate], incumbent: Incumbent) -> None:
    """Offer the partitions of a chain with tensors that go straight to their readers."""
    for candidate in candidates:
        for name in evaluator.problem.schedules:
            incumbent.offer(evaluator.evaluate(candidate.partition, name, GRAPH), "chain as a graph")
