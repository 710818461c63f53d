"""Costs of a pipeline whose ranks all cost the same: what ``simulate --ranks`` is asked about.

Times are of all of one rank's work for one micro-batch; with V chunks a rank each takes a V-th of them,
as integers by largest remainder in chunk order. Memory is counted in activation shares: what all chunks
of one rank keep for one micro-batch is 1 share, held here as the least number of bytes at which a chunk's
part, and what of it stays from I until W, are whole. Leaves out static memory, reduction and optimizer.
"""

from fractions import Fraction

from costmodel.errors import UsageError
from costmodel.stages.costs import Costs, StageCost
from simulator.schedule import chain_edges


def share_bytes(chunks: int = 1, w_memory_fraction: float | str = 0.5) -> int:
    """Return the bytes that stand for one activation share: chunks times the fraction's denominator.

    Parameters
    ----------
    chunks : int
    w_memory_fraction : float or str
        Part of an activation that stays from I until W, taken as the decimal that it prints as.
    """
    return chunks * _fraction(w_memory_fraction).denominator


def uniform_costs(
    ranks: int,
    chunks: int,
    forward_ns: int,
    backward_input_ns: int,
    backward_weight_ns: int,
    p2p_ns: int = 0,
    w_memory_fraction: float | str = 0.5,
) -> Costs:
    """Return the costs of stages c * ranks + r on rank r, one chain.

    Parameters
    ----------
    ranks, chunks : int
        Ranks, and stages on each.
    forward_ns, backward_input_ns, backward_weight_ns : int
        F, I and W of all of one rank's work for one micro-batch.
    p2p_ns : int
        Delay of every edge between ranks.
    w_memory_fraction : float or str
        Part of an activation that stays from I until W.

    Raises
    ------
    UsageError
        For counts below one, negative times, or a fraction outside 0 to 1.
    """
    if ranks < 1 or chunks < 1:
        raise UsageError(f"{ranks} ranks with {chunks} chunks; at least one of each is needed")
    times = (forward_ns, backward_input_ns, backward_weight_ns, p2p_ns)
    if min(times) < 0:
        raise UsageError(f"the times {times} ns hold a negative one; times are 0 or more")
    fraction = _fraction(w_memory_fraction)
    activation_bytes = fraction.denominator
    forward, backward_input, backward_weight = (split_evenly(total, chunks) for total in times[:3])
    stages = tuple(
        StageCost(
            forward[chunk],
            backward_input[chunk],
            backward_weight[chunk],
            activation_bytes=activation_bytes,
            weight_activation_bytes=fraction.numerator,
        )
        for chunk in range(chunks)
        for _ in range(ranks)
    )
    placement = tuple((rank,) for _ in range(chunks) for rank in range(ranks))
    return Costs(stages, tuple(chain_edges(len(stages), p2p_ns)), placement)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Return `parts` integers as even as can be that add up to `total`, the larger ones first."""
    least, more = divmod(total, parts)
    return tuple(least + (index < more) for index in range(parts))


def _fraction(w_memory_fraction: float | str) -> Fraction:
    try:
        fraction = Fraction(str(w_memory_fraction))
    except ValueError:
        raise UsageError(f"the part of an activation kept until W is {w_memory_fraction!r}; give a number") from None
    if not 0 <= fraction <= 1:
        raise UsageError(f"the part of an activation kept until W is {w_memory_fraction}; it lies between 0 and 1")
    return fraction
