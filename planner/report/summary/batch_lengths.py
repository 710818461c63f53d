"""What a plan's step takes where samples have unlike lengths, and what packing, sorting and orders of batches gain.

Batches are drawn from the histogram. Micro-batches hold the plan's number of samples as they come, or sorted by length;
packed ones hold samples of about equal work, whatever their number, by the longest first to where least is
(Graham, 1969: within a third of the best), and are tried in a few orders, of which the best of each batch counts.
Leaves out cuts that other lengths would move.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median

from planner.candidate.length_costs import LengthCosts
from planner.plan import Plan
from planner.plan.replay import plan_schedule
from planner.question.lengths import Lengths
from planner.question.problem import Problem
from planner.report.summary.text import Table, duration, percent, size
from simulator.actions import Kind
from simulator.bubbles import bubble_causes
from simulator.engine import Structure, Times

NUM_BATCHES = 8
"""That are drawn; the mean over them is told."""
AS_THEY_COME, SORTED, PACKED = WAYS = ("as they come", "sorted", "packed")

Microbatches = list[list[int]]


@dataclass
class WayFigures:
    """What one way to make micro-batches comes to, a value a batch."""

    steps_ns: list[int] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Return means over the batches; idle time by cause is the sum over ranks."""
        number = len(self.steps_ns)
        return {
            "step_time_ns": round(fmean(self.steps_ns)),
            "idle": fmean(self.idle),
            "peak_memory_bytes": self.peak_bytes,
            "bubble_causes": {cause: round(ns / number) for cause, ns in self.causes.items()},
        }


class BatchLengths:
    """A plan under batches of a histogram.

    Raises
    ------
    UsageError
        When samples are not made of tokens.
    """

    def __init__(self, problem: Problem, plan: Plan, lengths: Lengths, seed: int = 0) -> None:
        self.plan, self.lengths, self.costs = plan, lengths, LengthCosts(problem, plan)
        self.schedule = plan_schedule(plan)
        self.structure = Structure(self.schedule)
        self.ways = {way: WayFigures() for way in WAYS}
        self.bounds_ns: list[float] = []
        self.seconds: list[float] = []
        for batch in lengths.batches(NUM_BATCHES, plan.batch.global_size, seed):
            self._add(batch)

    @property
    def best(self) -> str:
        """The way whose steps take least in the mean."""
        return min(WAYS, key=lambda way: fmean(self.ways[way].steps_ns))

    def _add(self, batch: list[int]) -> None:
        start = time.process_time()
        found = {way: self._best_of(list(tried)) for way, tried in self._tried(batch).items()}
        self.seconds.append(time.process_time() - start)
        self.bounds_ns.append(self.bound_ns(batch))
        for way, times in found.items():
            figures, timeline = self.ways[way], times.timeline()
            figures.steps_ns.append(times.step_time_ns)
            figures.idle.append(times.bubble_ratio)
            figures.peak_bytes = max(figures.peak_bytes, *timeline.peak_memory_bytes)
            figures.causes.update(bubble_causes(self.schedule, times.costs, timeline).totals)

    def _tried(self, batch: list[int]) -> dict[str, Iterator[Microbatches]]:
        size = self.plan.batch.microbatch_size
        rising = in_runs(sorted(batch), size)
        packed = in_bins(batch, self.plan.batch.num_microbatches, self.costs.work_ns)
        return {
            AS_THEY_COME: iter([in_runs(batch, size)]),
            SORTED: iter([rising, rising[::-1]]),
            PACKED: orders(packed, self.costs.work_ns),
        }

    def _best_of(self, tried: Sequence[Microbatches]) -> Times:
        times = self.structure.times_many([self.costs.of(each) for each in tried], [self.plan.speeds] * len(tried))
        return min(times, key=lambda each: each.step_time_ns)

    def bound_ns(self, batch: Sequence[int]) -> float:
        """Return what no way to make and order micro-batches of a batch is below.

        The work of all stages on the same ranks, over their speeds, behind the shortest forward path to one of these
        stages, of the shortest sample. Rounding takes half a nanosecond of each part of an action.
        """
        work: dict[tuple[int, ...], float] = {}
        before: dict[tuple[int, ...], float] = {}
        heads = self._heads(min(batch))
        for stage, ranks in enumerate(self.plan.costs().ranks):
            if self._forwards[stage] * self.plan.stages[stage].microbatch_multiple >= self.plan.batch.num_microbatches:
                work[ranks] = work.get(ranks, 0.0) + self.costs.stage_ns(stage, batch)
                before[ranks] = min(before.get(ranks, heads[stage]), heads[stage])
        rounded = 2 * self.plan.batch.num_microbatches * len(self.plan.stages)
        speeds = self.plan.speeds
        found = [before[ranks] + work[ranks] / sum(speeds[rank] for rank in ranks) - rounded for ranks in work]
        return max(found, default=0.0)

    @cached_property
    def _forwards(self) -> Counter[int]:
        """Forwards of each stage: with two copies of the parameters a stage has those of half of the micro-batches."""
        return Counter(each.stage for order in self.schedule.orders for each in order if each.kind is Kind.F)

    def _heads(self, shortest: int) -> list[float]:
        """Return the longest forward path before each stage, of a sample."""
        found = [0.0] * len(self.plan.stages)
        graph = self.schedule.graph
        fastest = max(self.plan.speeds, default=1.0)
        for stage in graph.order:
            ahead = [
                found[each] + self.costs.forward_ns(each, shortest) / fastest for each in graph.predecessors[stage]
            ]
            found[stage] = max(ahead, default=0.0)
        return found

    @cached_property
    def lower_bound_ns(self) -> int:
        """Return the mean of the batches' bounds."""
        return int(fmean(self.bounds_ns))

    def to_json(self) -> dict[str, object]:
        """Return the JSON object; `cpu_s_per_batch` is a reading of a clock."""
        best = fmean(self.ways[self.best].steps_ns)
        return {
            "tokens_mean": self.lengths.mean,
            "batches": NUM_BATCHES,
            "ways": {way: figures.to_json() for way, figures in self.ways.items()},
            "best": self.best,
            "step_time_ns": round(best),
            "lower_bound_ns": self.lower_bound_ns,
            "gap": best / self.lower_bound_ns - 1 if self.lower_bound_ns else None,
            "cpu_s_per_batch": median(self.seconds),
        }

    def text(self) -> list[str | Table]:
        """Return what people read."""
        rows = []
        for way, figures in self.ways.items():
            most = ", ".join(
                f"{cause} {duration(ns // NUM_BATCHES)}" for cause, ns in figures.causes.most_common(2) if ns
            )
            rows.append(
                (
                    way,
                    duration(round(fmean(figures.steps_ns))),
                    percent(fmean(figures.idle)),
                    size(figures.peak_bytes),
                    most or "-",
                )
            )
        title = f"samples of {self.lengths.mean:.0f} tokens in the mean, {NUM_BATCHES} drawn batches"
        bound = f"no way is below {duration(self.lower_bound_ns)}; best: {self.best}"
        return [Table(("micro-batches", "step", "idle", "memory", "most idle by"), rows, title), bound]


def in_runs(samples: Sequence[int], size: int) -> Microbatches:
    """Return samples in micro-batches of equal numbers, in their order."""
    return [list(samples[i : i + size]) for i in range(0, len(samples), size)]


def in_bins(samples: Sequence[int], number: int, work_ns: Callable[[int], float]) -> Microbatches:
    """Return samples in micro-batches of about equal work, each sample to where least work is, the longest first."""
    bins: Microbatches = [[] for _ in range(number)]
    heap = [(0.0, i) for i in range(number)]
    for tokens in sorted(samples, reverse=True):
        least, i = heap[0]
        bins[i].append(tokens)
        heapq.heapreplace(heap, (least + work_ns(tokens), i))
    return bins


def orders(bins: Microbatches, work_ns: Callable[[int], float]) -> Iterator[Microbatches]:
    """Yield micro-batches by rising and falling work, and with the shortest ones at both ends of the step."""
    rising = sorted(bins, key=lambda row: sum(map(work_ns, row)))
    yield rising
    yield rising[::-1]
    yield [*rising[::2], *rising[1::2][::-1]]
