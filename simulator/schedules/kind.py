"""What the catalogue says about a schedule, and what a generator is asked for.

A generator takes a `Request` and returns, for each rank, the order of its compute actions; it knows
nothing of lowering, gradient reduction or the optimizer. Closed forms are kept as text for people and
as functions for tests, each with the conditions under which it holds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from costmodel.stages.costs import Costs
from simulator.actions import Action
from simulator.schedule import StageGraph

Orders = tuple[tuple[Action, ...], ...]
"""For each rank its compute actions in order."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a generator is asked for.

    Attributes
    ----------
    costs : Costs
        Times, bytes and edges of the stages.
    graph : StageGraph
        The stage graph of `costs`.
    num_microbatches : int
    group_size : int or None
        Micro-batches that a chunk takes before its rank turns to the next chunk (interleaved schedules).
    memory_limit_bytes : int or None
        Most bytes (static part included) that a rank may hold; for schedules that plan within a limit.
    objective : str
        What a synthesis minimises: ``span`` or ``step``.
    num_slices : int
        Slices of a sequence, for schedules that work in slices.
    in_flight : tuple of int
        Actions that each replica of a stage keeps in flight, for a schedule that would seek them; else empty.
    seed : int
        Of a synthesis that tries things at random.
    effort : float
        Part of its usual work that such a synthesis does.
    """

    costs: Costs
    graph: StageGraph
    num_microbatches: int
    group_size: int | None = None
    memory_limit_bytes: int | None = None
    objective: str = "span"
    num_slices: int = 1
    in_flight: tuple[int, ...] = ()
    seed: int = 0
    effort: float = 1.0


@dataclass(frozen=True, slots=True)
class Uniform:
    """A pipeline whose ranks all cost the same: what closed forms are about.

    Attributes
    ----------
    ranks, chunks, microbatches : int
        p, v and m.
    forward, backward_input, backward_weight, p2p : Fraction
        F, I and W of all of one rank's work for one micro-batch, and the delay c of an edge.
    w_memory_fraction : Fraction
        f: the part of an activation that stays from I until W.
    slices : int
        n: the slices of a sequence.
    """

    ranks: int
    chunks: int
    microbatches: int
    forward: Fraction
    backward_input: Fraction
    backward_weight: Fraction
    p2p: Fraction = Fraction(0)
    w_memory_fraction: Fraction = Fraction(1, 2)
    slices: int = 1

    @property
    def work(self) -> Fraction:
        """T = F + I + W: one rank's work for one micro-batch."""
        return self.forward + self.backward_input + self.backward_weight


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A formula, in words and as a function, and when it is exact.

    Attributes
    ----------
    text, condition : str
        In p, v, m, r (rank), F, I, W, T = F + I + W, c (delay of an edge) and f (part kept until W).
    value : callable
        From the pipeline and a rank to the value.
    holds : callable
        Whether the formula is exact for a pipeline.
    """

    text: str
    condition: str
    value: Callable[[Uniform, int], Fraction | int]
    holds: Callable[[Uniform], bool]


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """One row of the catalogue.

    Attributes
    ----------
    name : str
    placement : str
        ``line`` (one stage a rank, in index order), ``loop`` (stage c p + r on rank r), ``wave`` (the same, and on
        rank p - 1 - r where c is odd), ``two-way`` (stage s on the ranks s and p - 1 - s) or ``graph`` (any).
    split : bool
        Whether the backward is split into I and W.
    description, source : str
    orders : callable
        The generator.
    bubble : ClosedForm or None
        Step time less the work of a rank, m T; for `bubble_of` "span", the span less that work.
    peak : ClosedForm or None
        Peak activations of a rank, in activation shares.
    bubble_of : str
        ``step`` or ``span``.
    synthesis : bool
        Whether it searches for its orders.
    chunks : int
        Stages a rank unless the caller says otherwise.
    sliced : bool
        Whether it works on slices of sequences.
    overlapped : callable or None
        From its orders to the forwards that overlap the backward behind them, where it has such pairs.
    """

    name: str
    placement: str
    split: bool
    description: str
    source: str
    orders: Callable[[Request], Orders]
    bubble: ClosedForm | None = None
    peak: ClosedForm | None = None
    bubble_of: str = "step"
    synthesis: bool = False
    chunks: int = 1
    sliced: bool = False
    overlapped: Callable[[Orders], Iterable[Action]] | None = None
