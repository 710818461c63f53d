"""Every schedule of the catalogue on one uniform pipeline: what `penstock schedules` shows.

Each schedule runs on its own placement of the same work: p ranks, m micro-batches, the times of all of one rank's
work for one micro-batch. Memory is in activation shares and leaves out parameters, of which a schedule with two
copies holds twice as many. A schedule that the case does not admit says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.errors import NoPlanFits, UsageError
from simulator.bounds import bound_of
from simulator.engine import simulate
from simulator.schedules import SCHEDULES, build_schedule
from simulator.timeline import Timeline
from simulator.uniform import share_bytes, uniform_costs


@dataclass(frozen=True, slots=True)
class Case:
    """A uniform pipeline.

    Attributes
    ----------
    ranks, microbatches : int
    forward_ns, backward_input_ns, backward_weight_ns, p2p_ns : int
    memory_limit_shares : float or None
        Activation shares that a rank may hold.
    w_memory_fraction : float
        Part of an activation that stays from I until W.
    chunks : int or None
        Stages a rank of the schedules that run any number of them; each one's own default unless given.
    slices : int
        Sequence slices of the schedules that work on slices.
    pair_ns : int or None
        An overlapped forward and backward, for the schedules that have such pairs.
    """

    ranks: int
    microbatches: int
    forward_ns: int = 1000
    backward_input_ns: int = 1000
    backward_weight_ns: int = 1000
    p2p_ns: int = 0
    memory_limit_shares: float | None = None
    w_memory_fraction: float = 0.5
    chunks: int | None = None
    slices: int = 2
    pair_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """How one schedule does on a case; without a timeline where the case does not admit it.

    Attributes
    ----------
    name : str
    chunks, copies : int
        Stages a rank, and copies of the parameters.
    why : str
        Why the case does not admit it, or by how much it goes beyond the memory limit; empty where it fits.
    timeline : Timeline or None
    peak_activations : float
        Largest of any rank, in shares.
    messages : int
        Sent between ranks, in all; each is one activation or gradient of a stage's edge (or a slice of it).
    volume : float
        The same in whole activations: what slices send adds up to one.
    lower_bound_ns : int
    """

    name: str
    chunks: int
    copies: int
    why: str = ""
    timeline: Timeline | None = None
    peak_activations: float = 0.0
    messages: int = 0
    volume: float = 0.0
    lower_bound_ns: int = 0

    @property
    def fits(self) -> bool:
        """Whether the case admits it within the memory limit."""
        return self.timeline is not None and not self.why


INTERLEAVED_CHUNKS = 2
"""Stages a rank of schedules on a loop, unless a case says otherwise."""


def standings(case: Case, names: Sequence[str] = ()) -> list[ScheduleResult]:
    """Return how each schedule does, in the order of the catalogue."""
    return [standing(name, case) for name in names or SCHEDULES]


def standing(name: str, case: Case) -> ScheduleResult:
    """Return how one schedule does."""
    kind = SCHEDULES[name]
    chunks, slices = chunks_of(name, case), case.slices if kind.sliced else 1
    copies = 2 if kind.placement == "two-way" else 1
    share = share_bytes(chunks, case.w_memory_fraction, slices)
    limit = None if case.memory_limit_shares is None else int(case.memory_limit_shares * share)
    times = (case.forward_ns, case.backward_input_ns, case.backward_weight_ns, case.p2p_ns)
    try:
        pair_ns = case.pair_ns if kind.overlapped else None
        costs = uniform_costs(case.ranks, chunks, *times, case.w_memory_fraction, kind.placement, slices, pair_ns)
        schedule = build_schedule(name, costs, case.microbatches, memory_limit_bytes=limit, num_slices=slices)
    except (UsageError, NoPlanFits) as error:
        return ScheduleResult(name, chunks, copies, str(error))
    timeline = simulate(schedule, costs)
    peak = max(timeline.peak_memory_bytes)
    over = "" if limit is None or peak <= limit else f"needs {peak / share:g} activation shares"
    messages = sum(span.stream == "send" for span in timeline.spans)
    return ScheduleResult(
        name, chunks, copies, over, timeline, peak / share, messages, messages / slices,
        bound_of(schedule, costs, None if over else limit).ns,
    )  # fmt: skip


def chunks_of(name: str, case: Case) -> int:
    """Return the stages a rank that a schedule runs in a case."""
    kind = SCHEDULES[name]
    if kind.placement == "loop":
        return case.chunks or INTERLEAVED_CHUNKS
    if name == "hanayo":
        return case.chunks or kind.chunks
    return kind.chunks
