"""What a memory limit adds to the lower bounds: idle time before backwards free what forwards keep.

Both additions count activations only, taken at F's start and freed no earlier than the end of the first I
or B of the same micro-batches; buffers and the part that stays until W would only add to them. c is the
number of forwards of a stage on one rank that fit the limit in addition to the static part.

Round trips. Let f_1 <= f_2 <= ... be the starts of the n forwards of a stage on one rank, rho the least time
from the start of one forward to the end of its own I or B (its path through the stages after it and back).
When forward i + c starts, i backwards have ended, for else c + 1 forwards would be kept. The last-started of
those i forwards started at f_i or later, so f_{i+c} >= f_i + rho, hence f_n >= head + floor((n-1)/c) rho, and
its own backward ends rho later: step >= head + (floor((n-1)/c) + 1) rho + tail.

Weights kept out. Where I and W are apart and c activations leave no room for what stays from I until W, each
trip but the last takes min(F, W) longer. When forward i + c starts, either i + 1 backwards have ended, and
then f_{i+c} >= f_{i+1} + rho >= f_i + F + rho; or i have, c activations are kept, and so no weights: the W of those
i are over, that of the last-started one no earlier than f_i + rho + W.

First backward and last forward. Before the first I or B of a rank begins, at t, nothing of its stages is freed: the
forwards that ran by then fit the limit together, and take at most Phi (a knapsack). All other forwards, and
every backward, run at t or later, and t is at least the earliest start of any of the rank's backwards. If not all
forwards fit, the last one, x, begins behind t. From then until x's own I or B begins, rho - I later at least, the
rank has x itself and what is left of the others: I and W where the activation is kept, W where only its part is.
These fit the limit together with x, and take at most Psi (a knapsack again); the rest of that time nothing of them
runs. So step >= t + (sum of F - Phi) + sum of backwards + max(0, rho - I - F - Psi) + tail.

Leaves out forwards of stages without backward (they free what they take), those whose orders hold an R (they
keep their inputs only), and how several stages of a rank share its memory over time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from costmodel.errors import NoPlanFits
from simulator.actions import Action, Kind
from simulator.bounds.relaxation import Relaxation

_RETURNS = (Kind.B, Kind.I)


class MemoryLimit:
    """Lower bounds of a relaxed step whose ranks hold `limit_bytes` each.

    Raises
    ------
    NoPlanFits
        When some rank cannot hold its static part and a single forward.
    """

    def __init__(self, step: Relaxation, limit_bytes: int) -> None:
        self.step = step
        self.limit_bytes = limit_bytes
        again = {(job.stage, job.microbatch, job.slice_index) for job in step.jobs if job.kind is Kind.R}
        self._forwards: dict[int, list[Action]] = {}
        for job in step.jobs:
            kept = (job.stage, job.microbatch, job.slice_index) not in again
            if job.kind is Kind.F and kept and step.graph.backward[job.stage]:
                self._forwards.setdefault(step.rank(job), []).append(job)
        for rank in self._forwards:
            self._check(rank)

    def bounds(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield (ns, rank, stage, argument) of every bound."""
        for rank, forwards in self._forwards.items():
            yield self._first_and_last(rank, forwards)
            for stage in sorted({job.stage for job in forwards}):
                yield self._round_trips(rank, stage, [job for job in forwards if job.stage == stage])

    def _check(self, rank: int) -> None:
        most = max(map(self._bytes, self._forwards[rank]))
        missing = most - self._free_bytes(rank)
        if missing > 0:
            raise NoPlanFits(
                f"rank {rank} needs {self.limit_bytes + missing} bytes for its static part and one forward, the limit "
                f"is {self.limit_bytes}: {missing} too few; raise the limit, cut smaller stages or recompute"
            )

    def _free_bytes(self, rank: int) -> int:
        return self.limit_bytes - sum(self.step.costs.stages[s].static_bytes for s in self.step.graph.stages_of(rank))

    def _bytes(self, job: Action) -> int:
        return self.step.amount(self.step.costs.stages[job.stage].activation_bytes, job)

    def _round_trips(self, rank: int, stage: int, forwards: Sequence[Action]) -> tuple[int, int, int, str]:
        step = self.step
        num = sum(map(step.copies, forwards))
        least = min(map(self._bytes, forwards))
        num_kept = min(num, self._free_bytes(rank) // least) if least else num
        head = min(step.earliest[job] for job in forwards)
        trip = min(self._trips[job] for job in forwards)
        tail = min(step.tails[job] for job in step.jobs
                   if job.kind in _RETURNS and job.stage == stage and step.rank(job) == rank)  # fmt: skip
        num_turns = (num - 1) // num_kept
        total = head + num_turns * (trip + self._weights_kept_out(rank, forwards, num_kept)) + trip + tail
        return total, rank, stage, f"round trips of stage {stage} with {num_kept} forwards kept on rank {rank}"

    def _weights_kept_out(self, rank: int, forwards: Sequence[Action], num_kept: int) -> int:
        """Return min(F, W) of a stage on a rank where W must run before the next forward, else 0."""
        step = self.step
        if not step.split:
            return 0
        kept = min(step.amount(step.costs.stages[job.stage].weight_activation_bytes, job) for job in forwards)
        if num_kept * min(map(self._bytes, forwards)) + kept <= self._free_bytes(rank):
            return 0
        weights = (step.durations[replace(job, kind=Kind.W)] for job in forwards)
        return min(*weights, *(step.durations[job] for job in forwards))

    def _first_and_last(self, rank: int, forwards: Sequence[Action]) -> tuple[int, int, int, str]:
        step = self.step
        backs = [back for job in forwards for back in self._backward(job)]
        total_ns = sum(step.copies(job) * step.durations[job] for job in (*forwards, *backs))
        fitting = [(self._bytes(job), step.durations[job], step.copies(job)) for job in forwards]
        before_ns = most_within(self._free_bytes(rank), fitting)
        begin = min(step.earliest[job] for job in backs if job.kind in _RETURNS)
        tail = min(step.tails[job] for job in (*forwards, *backs))
        turn_ns = 0
        if sum(size * num for size, _, num in fitting) > self._free_bytes(rank):
            left = [item for job in forwards for item in self._left(job)]
            stages = sorted({job.stage for job in forwards})
            turn_ns = min(self._idle_behind(rank, [j for j in forwards if j.stage == s], left) for s in stages)
        where = max(
            sorted({job.stage for job in forwards}), key=lambda s: sum(step.durations[j] for j in backs if j.stage == s)
        )
        total = begin + total_ns - before_ns + turn_ns + tail
        return total, rank, where, f"first backward and last forward of rank {rank} under the limit"

    def _backward(self, forward: Action) -> Iterator[Action]:
        """Yield the B, or the I and W, of a forward."""
        for kind in (Kind.I, Kind.W) if self.step.split else (Kind.B,):
            yield replace(forward, kind=kind)

    def _left(self, forward: Action) -> Iterator[tuple[int, int, int]]:
        """Yield (bytes, time, number) of what may be left to do of a forward that is over: I and W, or W alone."""
        step, num = self.step, self.step.copies(forward)
        backs = [step.durations[back] for back in self._backward(forward)]
        yield self._bytes(forward), sum(backs), num
        if step.split:
            yield step.amount(step.costs.stages[forward.stage].weight_activation_bytes, forward), backs[1], num

    def _idle_behind(self, rank: int, last: Sequence[Action], left: Sequence[tuple[int, int, int]]) -> int:
        """Least idle time between the start of a rank's last forward, one of `last`, and that of its own I or B."""
        durations, own = self.step.durations, {job: next(self._backward(job)) for job in last}
        window = min(self._trips[job] - durations[job] - durations[own[job]] for job in last)
        return max(0, window - most_within(self._free_bytes(rank) - min(map(self._bytes, last)), left))

    @cached_property
    def _trips(self) -> dict[Action, int]:
        """For each forward the least time from its start to the end of its own I or B."""
        step = self.step
        trips: dict[Action, int] = {}
        for back in (job for job in step.jobs if job.kind in _RETURNS):
            beyond = 0
            for need in step.needs[back]:
                if need.kind in _RETURNS:
                    beyond = max(beyond, trips[_forward(need)] + 2 * step.delay(back, need))
            forward = _forward(back)
            trips[forward] = step.durations[forward] + beyond + step.durations[back]
        return trips


def _forward(back: Action) -> Action:
    return replace(back, kind=Kind.F)


def most_within(capacity: int, items: Sequence[tuple[int, int, int]]) -> int:
    """Return at least the largest value of items that fit a capacity together.

    Parameters
    ----------
    capacity : int
    items : sequence of (size, value, number of them)

    Returns
    -------
    int
        Exact for up to two kinds of items; for more with the last one taken in a fraction, rounded up.
    """
    kinds: dict[tuple[int, int], int] = {}
    for size, value, num in items:
        if value:
            kinds[size, value] = kinds.get((size, value), 0) + num
    free = sum(value * num for (size, value), num in kinds.items() if not size)
    sized = sorted(((s, v, n) for (s, v), n in kinds.items() if s), key=lambda i: Fraction(i[1], i[0]), reverse=True)
    if len(sized) <= 2:
        return free + _exactly(capacity, *sized)
    most = 0
    for size, value, num in sized:
        if size * num > capacity:
            return free + most - (-capacity * value // size)
        capacity -= size * num
        most += value * num
    return free + most


def _exactly(capacity: int, first: tuple[int, int, int] = (1, 0, 0), second: tuple[int, int, int] = (1, 0, 0)) -> int:
    counts = range(min(first[2], capacity // first[0]) + 1)
    return max(i * first[1] + min(second[2], (capacity - i * first[0]) // second[0]) * second[1] for i in counts)
