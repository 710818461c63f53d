"""Orders by a list simulation over time, of any stages on any ranks, that never runs out of memory.

A rank that is free starts the most urgent job that is ready; a weight gradient fills the wait for what is known to
arrive, or makes room, unless it counts as urgent as others. A forward starts only if the rank can still finish all
micro-batches that it has begun or has yet to begin one after the other (the banker's rule), so that ranks never block
each other: the least unfinished micro-batch finds room on every rank. Never looks further ahead than what has started.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.schedules.job_shop_times import ShopArrays
from simulator.schedules.order_timing import Ints


@dataclass(frozen=True, slots=True)
class Manner:
    """How a list simulation goes about it.

    Attributes
    ----------
    patience : int
        Per cent of a weight gradient that has to fit into a wait; -1 where it is no filler, but as urgent as others.
    ahead : bool
        Whether a stage may run ahead of others of its rank into memory that these need for the same micro-batches.
    """

    patience: int
    ahead: bool


def listed(shop: ShopArrays, urgency: Sequence[float], manner: Manner, most: Ints | None = None) -> Ints | None:
    """Return the orders that some urgency of all jobs (least first) leads to; None where a rank gets no room.

    Parameters
    ----------
    most : array of int, optional
        How many jobs each queue may be ahead of the one behind it.
    """
    row, free = shop.ints(range(shop.num_jobs)), shop.unlimited if most is None else most
    fits = shop.kernels.list_row(shop.arrays, row, urgency, free, manner.patience, manner.ahead)  # type: ignore[arg-type]
    return row if fits else None
