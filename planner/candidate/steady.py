"""Steps of many micro-batches, told exactly from a run of few: a pipeline that has come to a pace goes on alike.

A rank under 1F1B, interleaved or not, runs some forwards, then a forward and a backward in turn, then the backwards
left over; forwards, and backwards, follow each other in one sequence that repeats every q micro-batches (interleaved:
every p). A run of q micro-batches more therefore repeats a part of every rank's order, and is the same before and
behind it. Let *early* be all actions that end before any rank starts on what follows its last forward: both runs do
them at the same times, since all that they wait for is early, too. Let *earlier* be the actions whose counterparts, q
micro-batches later, are early. Every action of the longer run that is not early is the counterpart of one that is not
earlier, and waits for the counterparts of what that one waits for. So if the last actions of each rank that are
earlier, back to the first for which anything not earlier waits, have their counterparts T later, then by induction all
that is not early happens T after what it is the counterpart of: the step is T longer, and so for every further q.

Memory: before the first action that is not early starts, both runs hold the same. Once all that is earlier, and T
later all that is early, has ended with its messages, the longer run holds what the shorter one held T before: whatever
q micro-batches take they give back. Where the second moment comes before the first, no rank's peak differs.

This is how max-plus systems come to their periodic regime (Baccelli et al., Synchronization and Linearity, 1992,
chapter 3). How soon depends on the times, so a run is asked, and there is no regime for one that has not come to it.
Leaves out other orders (all forwards first, split backwards) and actions whose times differ.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.engine import Times
from simulator.engine.order_arrays import REDUCE, B, Bools, F, Ints, R

_NEVER = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class Regime:
    """The period of a pipeline: `microbatches` further on, all but the early actions are `time_ns` later."""

    microbatches: int
    time_ns: int


def regime(times: Times, unit: int) -> Regime | None:
    """Return the regime at the end of a run; None where it has not come to one, or its orders are of another form.

    Parameters
    ----------
    times : Times
        Of orders as described above, each stage on one rank and its actions alike, messages as delays alone.
    unit : int
        Micro-batches after which the orders repeat.
    """
    run = _Run(times)
    if run.has_form:
        for period in run.periods(unit):
            earlier = run.early - period * run.actions_a_microbatch
            time_ns = run.pace_ns(period, earlier)
            if time_ns is not None and run.holds_the_same(earlier, time_ns):
                return Regime(period, time_ns)
    return None


class _Run:
    """A run, rank by rank: where its parts begin in `times.actions`, and what is early."""

    def __init__(self, times: Times) -> None:
        self.times, arrays = times, times.structure.arrays
        self.arrays, self.count = arrays, arrays.schedule.num_microbatches
        self._ranks = np.arange(arrays.graph.num_ranks)
        self.begin = np.searchsorted(arrays.rank, self._ranks)
        self._stop = np.searchsorted(arrays.rank, self._ranks, side="right")
        self.backs = np.flatnonzero((arrays.code == B) | (arrays.code == R))
        self._forwards = np.flatnonzero(arrays.code == F)

    @cached_property
    def has_form(self) -> bool:
        """Whether ranks run F, R and B alone, all of them forwards, and what closes the step comes after the last."""
        code = self.arrays.code
        if not ((code == F) | (code == B) | (code == R) | self._closes).all():
            return False
        first = np.bincount(self.arrays.rank[self._forwards], minlength=len(self._ranks))
        behind = np.flatnonzero(self._closes)
        return bool(first.all() and (behind > self._last_forward[self.arrays.rank[behind]]).all())

    @cached_property
    def _closes(self) -> Bools:
        found: Bools = self.arrays.code >= REDUCE
        return found

    @cached_property
    def _last_forward(self) -> Ints:
        """The last F of each rank."""
        return self._forwards[np.searchsorted(self.arrays.rank[self._forwards], self._ranks, side="right") - 1]

    @cached_property
    def leading(self) -> Ints:
        """Index of each rank's first B or R, from where orders repeat; of the second F where there is none."""
        first = np.searchsorted(self.arrays.rank[self.backs], self._ranks)
        has = np.append(self.arrays.rank[self.backs], -1)[first] == self._ranks
        return np.where(has, np.append(self.backs, 0)[first], self.begin + 1)

    @cached_property
    def actions_a_microbatch(self) -> Ints:
        """How many F, R and B a rank has of each micro-batch."""
        compute = np.bincount(self.arrays.rank[~self._closes], minlength=len(self._ranks))
        return compute // self.count

    @cached_property
    def early(self) -> Ints:
        """Index of each rank's first action that is not early."""
        behind = np.minimum(self._last_forward + 1, self._stop - 1)
        more = (behind > self._last_forward) & ~self._closes[behind]
        cut = self.times.start[behind[more]].min(initial=_NEVER)
        compute = np.flatnonzero(~self._closes)
        ended = compute[self.times.end[compute] < cut]
        return self.begin + np.bincount(self.arrays.rank[ended], minlength=len(self._ranks))

    def periods(self, unit: int) -> list[int]:
        """Return the periods that orders have room for and the last early action of each rank keeps to, rising."""
        last, step = self.early[:, None] - 1, self.actions_a_microbatch[:, None]
        most = int(((self.early - self.leading) // self.actions_a_microbatch).min())
        found = np.arange(unit, most + 1, unit)
        later = self.times.end[last] - self.times.end[last - found * step]
        kept: list[int] = found[(later == later[0]).all(axis=0)].tolist()
        return kept

    @cached_property
    def _before(self) -> tuple[Ints, Ints]:
        """Pairs (needed, needing) of actions beyond what orders imply."""
        flow = self.times.structure.wiring.flow
        return np.append(flow.messages.source, flow.local[0]), np.append(flow.messages.target, flow.local[1])

    @cached_property
    def _index(self) -> Ints:
        """The F, B and R of each micro-batch and stage; -1 where there is none."""
        arrays = self.arrays
        found = np.full((R + 1, arrays.graph.num_stages, self.count), -1)
        compute = np.flatnonzero(~self._closes)
        found[arrays.code[compute], arrays.stage[compute], arrays.microbatch[compute]] = compute
        return found

    def pace_ns(self, period: int, earlier: Ints) -> int | None:
        """Return by how much counterparts are later, None where they are not alike or orders do not repeat."""
        rank, (source, target) = self.arrays.rank, self._before
        crossing = source[(source < earlier[rank[source]]) & (target >= earlier[rank[target]])]
        back = earlier - 1
        np.minimum.at(back, rank[crossing], crossing)
        low = np.minimum(self.leading, back)
        own = np.concatenate([np.arange(a, b) for a, b in zip(low.tolist(), earlier.tolist(), strict=True)])
        later = self._counterparts(own, period)
        ordered = own >= self.leading[rank[own]]
        step = period * self.actions_a_microbatch[rank[own]]
        if (later < 0).any() or not np.array_equal(later[ordered], (own + step)[ordered]):
            return None
        settled = own >= back[rank[own]]
        found = self.times.end[later[settled]] - self.times.end[own[settled]]
        return int(found[0]) if (found == found[0]).all() else None

    def _counterparts(self, actions: Ints, period: int) -> Ints:
        arrays = self.arrays
        later = arrays.microbatch[actions] + period
        found = self._index[arrays.code[actions], arrays.stage[actions], np.minimum(later, self.count - 1)]
        return np.where(later < self.count, found, -1)

    def holds_the_same(self, earlier: Ints, time_ns: int) -> bool:
        """Whether no rank's peak differs from that of a longer run."""
        times, rank = self.times, self.arrays.rank
        starts, ends = times.start, times.end
        last = np.maximum(ends[earlier - 1], ends[self.early - 1] - time_ns)
        # a rank that runs forwards alone may have done all of them: nothing follows in the shorter run
        there = self.early < self._stop
        follows = np.where(there, starts[np.minimum(self.early, len(starts) - 1)], _NEVER)
        first = np.minimum(follows, starts[np.minimum(earlier, len(starts) - 1)] + time_ns)
        source = times.structure.wiring.messages.source
        if len(source):
            left, sent = times.sent
            late, later = source >= earlier[rank[source]], source >= self.early[rank[source]]
            arrived = max(sent[~late].max(initial=0), sent[~later].max(initial=0) - time_ns)
            leaving = min(left[later].min(initial=_NEVER), left[late].min(initial=_NEVER) + time_ns)
            last, first = np.maximum(last, arrived), np.minimum(first, leaving)
        return bool((last < first).all())


def num_closing(times: Times) -> int:
    """Return how many actions of a run only close the step."""
    return int((times.structure.arrays.code >= REDUCE).sum())
