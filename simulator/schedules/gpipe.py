"""`gpipe`: all forwards, then all backwards."""

from simulator.actions import Action, Kind
from simulator.schedules.closed_forms import always, everything_held, fill_and_drain
from simulator.schedules.kind import Orders, Request, ScheduleKind
from simulator.schedules.one_stage import forwards
from simulator.schedules.placement import LineRank, line_orders


def orders(request: Request) -> Orders:
    """Return all forwards of each rank, then all its backwards, both in order of micro-batch."""
    return line_orders("gpipe", request, _order)


def _order(place: LineRank) -> tuple[Action, ...]:
    backwards = tuple(Action(Kind.B, place.stage, k) for k in place.microbatches)
    return forwards(place.stage, place.microbatches) + backwards


KIND = ScheduleKind(
    name="gpipe",
    placement="line",
    split=False,
    description="All forwards, then all backwards: every activation is held",
    source="Huang et al., GPipe, NeurIPS 2019 (arXiv:1811.06965)",
    orders=orders,
    bubble=fill_and_drain("always", always),
    peak=everything_held(),
)
