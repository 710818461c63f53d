"""A candidate: one answer to every open decision, before anything is known of what it takes.

Leaves out prices (`planner.candidate.price`) and times (`planner.candidate.evaluate`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.stages.config import StageConfig, but_operators
from planner.graph.atoms import Partition
from planner.plan.lockstep import Block, in_blocks
from planner.plan.rank_order import RANK_ORDER, RankOrder, ranks_of_places
from simulator.schedules.kind import Orders

IN_FLIGHT = "graph-auto"
"""The schedule whose micro-batches in flight are decided for each stage."""


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """Where and how a stage runs: its configuration, its ranks (tensor innermost, data outermost), its multiple."""

    config: StageConfig
    ranks: tuple[int, ...]
    microbatch_multiple: int = 1

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its ranks by replica."""
        return in_blocks(self.ranks, self.config.tensor * self.config.context)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is to be priced, ordered and simulated.

    Attributes
    ----------
    partition : Partition
        Stage of each atom.
    places : tuple of StagePlacement
        One a stage.
    microbatch_size : int
        Samples of a micro-batch on one replica.
    schedule : str
        A key of `simulator.schedules.SCHEDULES`; with `orders` any name.
    line : bool
        Whether tensors pass from stage to next stage, else straight to their readers.
    in_flight : tuple of int
        Under `IN_FLIGHT` the micro-batches that each replica of a stage keeps in flight, by stage; else empty.
    orders : tuple of tuple of Action
        The compute of each place for one replica, where somebody else made it; else empty. Places are listed by their
        lowest rank.
    """

    partition: Partition
    places: tuple[StagePlacement, ...]
    microbatch_size: int
    schedule: str
    line: bool = False
    in_flight: tuple[int, ...] = ()
    orders: Orders = ()

    @property
    def num_stages(self) -> int:
        """How many stages it has."""
        return len(self.places)

    @property
    def num_devices(self) -> int:
        """How many devices it uses."""
        return len({rank for place in self.places for rank in place.ranks})


def is_looped(places: Sequence[StagePlacement]) -> bool:
    """Whether stages share ranks."""
    return len({rank for place in places for rank in place.ranks}) < sum(len(place.ranks) for place in places)


def in_loop(
    config: StageConfig,
    num_stages: int,
    num_places: int,
    permutation: Sequence[int] = (),
    rank_order: RankOrder = RANK_ORDER,
) -> tuple[StagePlacement, ...]:
    """Return places alike: stage i at place i mod `num_places`, which take the ranks of a permutation (rising) so."""
    rows = ranks_of_places(config, num_places, rank_order)
    if permutation:
        rows = [tuple([permutation[rank] for rank in row]) for row in rows]
    return tuple(StagePlacement(config, rows[stage % num_places]) for stage in range(num_stages))


def alike(places: Sequence[StagePlacement]) -> bool:
    """Whether all stages are configured alike, but for operators that run again, and work on single micro-batches."""
    return len({(but_operators(place.config), place.microbatch_multiple) for place in places}) == 1 and (
        places[0].microbatch_multiple == 1
    )


def replicated_alike(places: Sequence[StagePlacement]) -> bool:
    """Whether all stages have equally many replicas, which work on single micro-batches."""
    return {(place.config.data, place.microbatch_multiple) for place in places} == {(places[0].config.data, 1)}
