"""`seq1f1b`: 1F1B on slices of sequences: a rank holds a few slices more than it has ranks behind it.

Forwards take the slices of a micro-batch in order, backwards in reverse order (what an early slice keeps
is read by the later ones). Slices may take unequal times, as causal attention makes them: the costs then
list one value a slice.
"""

from fractions import Fraction

from simulator.actions import Action, Kind
from simulator.schedules.closed_forms import always
from simulator.schedules.kind import ClosedForm, Orders, Request, ScheduleKind, Uniform
from simulator.schedules.placement import LineRank, line_orders


def orders(request: Request) -> Orders:
    """Return 1F1B with as many slices ahead as ranks behind this one, and all slices but one of a micro-batch."""
    return line_orders("seq1f1b", request, lambda place: _order(place, request.num_slices))


def _order(place: LineRank, num_slices: int) -> tuple[Action, ...]:
    pieces = range(num_slices) if num_slices > 1 else (-1,)
    ahead = [Action(Kind.F, place.stage, k, piece) for k in place.microbatches for piece in pieces]
    back = [Action(Kind.B, place.stage, k, piece) for k in place.microbatches for piece in pieces[::-1]]
    warmup = min(place.depth + num_slices - 2, len(ahead))
    steady = [action for pair in zip(ahead[warmup:], back, strict=False) for action in pair]
    return (*ahead[:warmup], *steady, *back[len(ahead) - warmup :])


def _peak(u: Uniform, rank: int) -> Fraction:
    return min(Fraction(u.microbatches), Fraction(u.ranks - rank + u.slices - 1, u.slices))


KIND = ScheduleKind(
    name="seq1f1b",
    placement="line",
    split=False,
    description="1F1B on n slices of each sequence: 1/n of the bubble, little more than 1/n of the memory",
    source="Sun et al., Seq1F1B, 2024 (arXiv:2406.03488)",
    orders=orders,
    bubble=ClosedForm(
        "(p - 1) T / n",
        "c = 0 and n slices that all take as long",
        lambda u, _: Fraction(u.ranks - 1, u.slices) * u.work,
        lambda u: u.p2p == 0,
    ),
    peak=ClosedForm("min(m, (p - r + n - 1) / n)", "always", _peak, always),
    sliced=True,
)
