"""Rank orders: which of a job's degrees stand next to each other on the cluster, innermost first.

Ranks count along the degrees as digits of one number, the first of an order the fastest. A stage lists its ranks as
ever, tensor innermost, then context, then replicas, whatever numbers these have. Experts spread over a replica's own
ranks and over replicas that follow each other: ``expert`` stands for these, ``data`` for the others. Leaves out which
order is best, and ranks that follow none, as on unlike devices.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, permutations

from costmodel.stages.config import StageConfig

RankOrder = tuple[str, ...]
RANK_ORDER: RankOrder = ("tensor", "context", "expert", "data", "pipeline")
"""The usual order: replicas of a stage side by side, stages on ranks that follow each other."""
PIPELINE_INSIDE: RankOrder = ("tensor", "context", "expert", "pipeline", "data")
"""The stages of a replica side by side."""
SEARCHED = (RANK_ORDER, PIPELINE_INSIDE)
"""Orders that a search tries: those that leave a replica's own ranks, which send each other most, together."""


def completed(names: Sequence[str]) -> RankOrder:
    """Return an order with the names that it leaves out, each behind the one that it usually follows."""
    found = list(names)
    for i, name in enumerate(RANK_ORDER):
        if name not in found:
            found.insert(found.index(RANK_ORDER[i - 1]) + 1 if i else 0, name)
    return tuple(found)


def expert_replicas(config: StageConfig) -> int:
    """Return how many replicas experts spread over; 1 where a replica's own ranks are enough."""
    own = config.tensor * config.context
    return max(1, config.num_expert_parts // own) if config.num_expert_parts % own == 0 else 1


def strides(config: StageConfig, num_places: int, order: RankOrder = RANK_ORDER) -> dict[str, int]:
    """Return how far apart ranks are that follow each other along each degree."""
    sizes, stride, found = _sizes(config, num_places), 1, {}
    for name in order:
        found[name] = stride
        stride *= sizes[name]
    return found


def first_ranks(config: StageConfig, num_places: int = 1, order: RankOrder = RANK_ORDER) -> tuple[int, ...]:
    """Return the ranks of the first place of a pipeline; of one place alone those that lie closest."""
    return _first_ranks(config.degrees, num_places, order)


def ranks_of_places(config: StageConfig, num_places: int, order: RankOrder = RANK_ORDER) -> list[tuple[int, ...]]:
    """Return the ranks of each place of a pipeline whose stages have the same degrees."""
    first, apart = first_ranks(config, num_places, order), strides(config, num_places, order)["pipeline"]
    return [tuple([rank + place * apart for rank in first]) for place in range(num_places)]


def rank_order_of(
    configs: Sequence[StageConfig], ranks: Sequence[tuple[int, ...]], orders: Sequence[RankOrder] = ()
) -> RankOrder:
    """Return the first of some orders (of all, the usual one first) that stages' ranks follow; empty where of none."""
    places = list(dict.fromkeys(ranks))
    if len({config.degrees for config in configs}) > 1:
        return ()
    known = orders or chain(SEARCHED, permutations(RANK_ORDER))
    return next((order for order in known if ranks_of_places(configs[0], len(places), order) == places), ())


def _sizes(config: StageConfig, num_places: int) -> dict[str, int]:
    spread = expert_replicas(config)
    sizes = config.tensor, config.context, spread, config.data // spread, num_places
    return dict(zip(RANK_ORDER, sizes, strict=True))


@lru_cache(maxsize=4096)
def _first_ranks(config: StageConfig, num_places: int, order: RankOrder) -> tuple[int, ...]:
    sizes, apart, found = _sizes(config, num_places), strides(config, num_places, order), [0]
    for name in RANK_ORDER[:-1]:
        found = [rank + k * apart[name] for k in range(sizes[name]) for rank in found]
    return tuple(found)
