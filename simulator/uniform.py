"""Costs of a pipeline whose ranks all cost the same: what ``simulate --ranks`` is asked about.

Times are of all of one rank's work for one micro-batch; with V chunks a rank each takes a V-th of them,
as integers by largest remainder in chunk order. With two copies of the parameters (placement ``two-way``) a
micro-batch runs on one of a rank's two stages, which takes the whole time. Memory is counted in activation
shares: what all chunks of one rank keep for one micro-batch is 1 share, held here as the least number of bytes at
which a chunk's (and a slice's) part, and what of it stays from I until W, are whole.
Leaves out static memory, reduction and optimizer.
"""

from collections.abc import Sequence
from fractions import Fraction

from costmodel.errors import UsageError
from costmodel.stages.costs import Costs, PairCost, StageCost
from simulator.schedule import chain_edges


def share_bytes(chunks: int = 1, w_memory_fraction: float | str = 0.5, slices: int = 1) -> int:
    """Return the bytes that represent one activation share: chunks times slices times the fraction's denominator.

    Parameters
    ----------
    chunks : int
    w_memory_fraction : float or str
        Part of an activation that stays from I until W, taken as the decimal that it prints as.
    slices : int
        Sequence slices of a micro-batch.
    """
    return chunks * slices * _fraction(w_memory_fraction).denominator


def uniform_costs(
    ranks: int,
    chunks: int,
    forward_ns: int,
    backward_input_ns: int,
    backward_weight_ns: int,
    p2p_ns: int = 0,
    w_memory_fraction: float | str = 0.5,
    placement: str = "loop",
    slices: int = 1,
    pair_ns: int | None = None,
    offload_ns: int = 0,
) -> Costs:
    """Return the costs of one chain of stages.

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
    placement : str
        ``wave``, ``two-way``, or any other for a loop (`simulator.schedules.placement`).
    slices : int
        Sequence slices of a micro-batch; the costs stay those of a whole one.
    pair_ns : int, optional
        An overlapped forward and backward of all of one rank's work for a micro-batch; with chunks a part, rounded up.
    offload_ns : int
        All that a rank keeps for one micro-batch copied to the host, and as long back.

    Raises
    ------
    UsageError
        For counts below one, negative times, a fraction outside 0 to 1, or two ways with chunks or an odd number of
        ranks.
    """
    if ranks < 1 or chunks < 1:
        raise UsageError(f"{ranks} ranks with {chunks} chunks; at least one of each is needed")
    times = (forward_ns, backward_input_ns, backward_weight_ns, offload_ns, p2p_ns)
    if min(times) < 0:
        raise UsageError(f"the times {times} ns hold a negative one; times are 0 or more")
    fraction = _fraction(w_memory_fraction)
    place_of = in_a_wave if placement == "wave" else in_a_loop
    where: tuple[tuple[int, ...], ...] = tuple((place_of(stage, ranks),) for stage in range(chunks * ranks))
    if placement == "two-way":
        if chunks > 1 or ranks % 2:
            raise UsageError(
                f"two pipelines in opposite directions need one stage a rank and an even number of ranks, not {chunks} "
                f"and {ranks}; take another number, or dualpipe-v"
            )
        where = tuple((stage, ranks - 1 - stage) for stage in range(ranks))
    forward, backward_input, backward_weight, copied = (split_evenly(total, chunks) for total in times[:4])
    stages = tuple(
        StageCost(
            forward[chunk],
            backward_input[chunk],
            backward_weight[chunk],
            activation_bytes=slices * fraction.denominator,
            weight_activation_bytes=slices * fraction.numerator,
            offload_ns=copied[chunk],
        )
        for chunk in range(chunks)
        for _ in range(ranks)
    )
    pairs = () if pair_ns is None else pair_costs(where, pair_ns, chunks)
    return Costs(stages, tuple(chain_edges(len(stages), p2p_ns)), where, pairs=pairs)


def pair_costs(ranks: Sequence[Sequence[int]], pair_ns: int, chunks: int) -> tuple[PairCost, ...]:
    """Return the time of every overlapped pair that stages on some ranks can make."""
    stages_of: dict[int, list[int]] = {}
    for stage, row in enumerate(ranks):
        for rank in row:
            stages_of.setdefault(rank, []).append(stage)
    met = {(a, b) for stages in stages_of.values() for a in stages for b in stages}
    return tuple(PairCost(a, b, -(-pair_ns // chunks)) for a, b in sorted(met))


def in_a_loop(stage: int, positions: int) -> int:
    """Return the place of a stage that goes round and round."""
    return stage % positions


def in_a_wave(stage: int, positions: int) -> int:
    """Return the place of a stage that goes to and fro: down with even chunks, up with odd ones."""
    chunk, place = divmod(stage, positions)
    return positions - 1 - place if chunk % 2 else place


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
