"""The plan: what runs where, in which order, what it is predicted to take, and how good that is.

Actions stay text here, so that the independent checker reads plans without the simulator. Leaves out the file
(`planner.plan.file`), and how plans are found (`planner.search`) and run (`executor`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from costmodel.codec import Json, Positive
from costmodel.errors import InvalidInput
from costmodel.machines.cluster import Cluster
from costmodel.stages.costs import Costs, EdgeCost
from planner.plan.lockstep import Block, blocks_of
from planner.plan.part_forms import SEARCH, STAGES
from planner.plan.parts import Assumptions, Batch, PlanEdge, PlanStage, Prediction, Rung, SearchResult, Training
from planner.plan.rank_order import RankOrder


@dataclass(frozen=True)
class Plan:
    """A plan file's content; `orders` holds each rank's actions as text, lowered.

    The ranks of a block (`planner.plan.lockstep`) have one order: what is simulated is one rank a block, its lead.
    `rank_order` is what stands next to each other on the cluster; empty where ranks follow no order.
    """

    model_name: str
    fingerprint: str
    num_operators: Positive
    cluster: Cluster
    batch: Batch
    schedule: str
    stages: Annotated[tuple[PlanStage, ...], Json(form=STAGES, rules={"minItems": 1})]
    edges: tuple[PlanEdge, ...]
    orders: tuple[tuple[str, ...], ...]
    prediction: Prediction
    search: Annotated[SearchResult, Json(form=SEARCH)]
    runs_on: tuple[str, ...]
    training: Training = field(default_factory=Training)
    assumptions: Assumptions = field(default_factory=Assumptions)
    rungs: tuple[Rung, ...] = ()
    schedule_options: Annotated[
        Mapping[str, object], Json(says="What the schedule was made with besides its name.")
    ] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    rank_order: RankOrder = ()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The micro-batches in flight that the schedule was made with, by stage; empty where it has none of its own."""
        numbers = self.schedule_options.get("in_flight")
        if not isinstance(numbers, list | tuple) or len(numbers) != len(self.stages):
            return ()
        return tuple(number for number in numbers if isinstance(number, int))

    def __post_init__(self) -> None:
        costs = self._costs([stage.ranks for stage in self.stages])  # checks stages, edges and ranks
        if costs.num_ranks > self.cluster.num_devices or len(self.orders) != costs.num_ranks:
            raise InvalidInput(
                f"the stages use {costs.num_ranks} ranks, the plan orders {len(self.orders)} and the cluster has "
                f"{self.cluster.num_devices} devices"
            )
        self.costs()  # checks the blocks

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Ranks that work in lockstep; without tensor and context parallelism each rank is one by itself."""
        return blocks_of([stage.blocks for stage in self.stages])

    @property
    def lead_orders(self) -> tuple[tuple[str, ...], ...]:
        """The order of each block: that of its lead."""
        return tuple(self.orders[block[0]] for block in self.blocks)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each block: that of its slowest rank."""
        known = dict(self.cluster.speeds)
        return tuple(min(known.get(rank, 1.0) for rank in block) for block in self.blocks)

    def costs(self) -> Costs:
        """Return what the stages and edges cost, as the simulator takes it: its ranks are the plan's blocks."""
        number = {block: i for i, block in enumerate(self.blocks)}
        return self._costs([tuple(number[block] for block in stage.blocks) for stage in self.stages])

    def _costs(self, ranks: Iterable[tuple[int, ...]]) -> Costs:
        return Costs(
            tuple(stage.cost for stage in self.stages),
            tuple(EdgeCost(e.source, e.target, e.p2p_ns, e.size_bytes, e.gradient) for e in self.edges),
            tuple(ranks),
            tuple(stage.microbatch_multiple for stage in self.stages),
        )
