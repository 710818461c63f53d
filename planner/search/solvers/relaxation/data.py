"""The cut problem in whole numbers: all that the solver's process needs, as JSON.

Times are in units of `unit_ns`, each rounded so that a bound stays a bound
(`planner.search.solvers.relaxation.build`). Leaves out what a bound must not count: reductions, contention, the order
of actions.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Crossing:
    """What flows from one atom to another: the level of its transfer time, and whether a gradient comes back."""

    producer: int
    consumer: int
    level: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A tensor that atoms read: its bytes, and whether its gradient comes back."""

    producer: int
    consumers: tuple[int, ...]
    size: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class SizeTime:
    """From `least_bytes` on a message takes ``fixed_ns + bytes * slope / SLOPE`` ns at least."""

    least_bytes: int
    fixed_ns: int
    slope: int


SLOPE = 1 << 16
"""Parts of a ns in which `SizeTime` gives the time of a byte."""


@dataclass(frozen=True, slots=True)
class SentTensors:
    """What stages send to each other, for the proof, where a message takes the time of all its tensors.

    Attributes
    ----------
    line : bool
        Whether tensors pass from stage to next stage, else straight to the stages that read them.
    tensors : tuple of Sent
    transfer, host : tuple of SizeTime
        What a message takes on its way, and from either of its ends; no host time where none was measured.
    """

    line: bool
    tensors: tuple[Sent, ...]
    transfer: tuple[SizeTime, ...]
    host: tuple[SizeTime, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a stage holds; once, or for each micro-batch in flight.

    It does if one of `atoms` is in it, or one of `readers` without their `producer`.
    """

    size: int
    atoms: tuple[int, ...]
    in_flight: bool
    readers: tuple[int, ...] = ()
    producer: int = -1


class FarSums(NamedTuple):
    """Sums of gradients over the slowest link of stages that have more replicas than it leaves together.

    Attributes
    ----------
    together : int
        Replicas of one device each that may lie in one block; 0 where nothing is known.
    exposed : float
        Part of a sum by which the step grows at least, whatever hides it.
    ns : tuple of int
        What each atom's gradients take at least, with what is gathered of them after the step.
    """

    together: int = 0
    exposed: float = 0.0
    ns: tuple[int, ...] = ()


NO_SUMS = FarSums()
"""Where nothing is known of them."""


@dataclass(frozen=True, slots=True)
class CutData:
    """A cut problem.

    Attributes
    ----------
    num_stages, num_microbatches : int
    unit_ns : int
    forward, backward, closing : tuple of int
        F, B and optimizer step of each atom.
    precedence : tuple of (int, int)
        Atoms that must not be in a later stage than others (transitive reduction).
    sinks : tuple of int
        Atoms that nothing reads.
    bottlenecks, gradient_bottlenecks : tuple of int
        Atoms that every other atom leads to or comes from; and those to which, besides, all that comes before
        them leads by tensors that carry a gradient.
    crossings : tuple of Crossing
    levels : tuple of int
        Transfer times, rising; the first is the least between ranks.
    held : tuple of Held
    limit : int
        Largest memory limit of a rank; 0 when it cannot bind.
    in_flight : str
        Micro-batches in flight: ``depth`` (the longest path to a sink), ``line`` (stages from this one on),
        ``all``.
    least : int
        A bound that is known already.
    host : int
        Least time that a stage loses to one end of a message.
    apart : tuple
        For each pin the atoms that each of its patterns matches; no two patterns share a stage.
    again : tuple of int
        What each atom's forward takes that its stage runs again before each backward, which may be while it waits.
    all_stages : bool
        Whether no stage may be empty.
    split : bool
        Whether backwards are split, so that nothing has to come back before a stage may end.
    far, together : int
        What a message takes at least between stages that bottlenecks are in and a slow link joins, and how many stages
        no such link parts at most; 0 where none parts any.
    messages : SentTensors, optional
        Instead of `crossings`, for graphs of stages alone or for lines alone.
    """

    num_stages: int
    num_microbatches: int
    unit_ns: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    closing: tuple[int, ...]
    precedence: tuple[tuple[int, int], ...]
    sinks: tuple[int, ...]
    bottlenecks: tuple[int, ...]
    gradient_bottlenecks: tuple[int, ...]
    crossings: tuple[Crossing, ...]
    levels: tuple[int, ...]
    held: tuple[Held, ...]
    limit: int
    in_flight: str
    least: int = 0
    host: int = 0
    apart: tuple[tuple[tuple[int, ...], ...], ...] = ()
    again: tuple[int, ...] = ()
    all_stages: bool = False
    split: bool = False
    far: int = 0
    together: int = 0
    messages: SentTensors | None = None

    @property
    def num_atoms(self) -> int:
        """How many atoms there are."""
        return len(self.forward)

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "CutData":
        """Read it back."""
        body = json.loads(text)
        crossings = tuple(Crossing(**crossing) for crossing in body.pop("crossings"))
        held = tuple(
            Held(h["size"], tuple(h["atoms"]), h["in_flight"], tuple(h["readers"]), h["producer"])
            for h in body.pop("held")
        )
        precedence = tuple((u, v) for u, v in body.pop("precedence"))
        apart = tuple(tuple(map(tuple, patterns)) for patterns in body.pop("apart"))
        messages = _messages(body.pop("messages"))
        rest: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
        return cls(crossings=crossings, held=held, precedence=precedence, apart=apart, messages=messages, **rest)


def _messages(body: dict[str, Any] | None) -> SentTensors | None:
    if body is None:
        return None
    tensors = tuple(Sent(t["producer"], tuple(t["consumers"]), t["size"], t["gradient"]) for t in body["tensors"])
    transfer, host = (tuple(SizeTime(**part) for part in body[name]) for name in ("transfer", "host"))
    return SentTensors(body["line"], tensors, transfer, host)
