"""What every part of a rank has to know of the run that it belongs to, in one object that is handed down.

Leaves out what a rank makes of it (stages, edges, messages) and all that changes while it runs.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from costmodel.capture.capture import Capture
from executor.communication.groups import ProcessGroups
from executor.communication.lanes import Lanes
from planner.plan import Plan
from simulator.actions import Action, parse_action


@dataclass(frozen=True)
class RankContext:
    """One rank of a running plan.

    Attributes
    ----------
    plan : Plan
    capture : Capture
        Of the very model whose parameters are trained; already found to be the plan's.
    rank : int
        Within the pipeline.
    device : torch.device
    joined : ProcessGroups or None
        None until the ranks are connected.
    """

    plan: Plan
    capture: Capture
    rank: int
    device: torch.device
    joined: ProcessGroups | None = None

    @property
    def groups(self) -> ProcessGroups:
        """The ranks' process groups, once they are connected."""
        assert self.joined is not None
        return self.joined

    @property
    def works_behind_host(self) -> bool:
        """Whether what the device, or what carries its tensors, is given to do is done later than the call returns."""
        return self.groups.asynchronous or self.device.type != "cpu"

    @cached_property
    def lanes(self) -> Lanes:
        """The ranks of each replica of a stage."""
        return Lanes.of(self.plan)

    @cached_property
    def order(self) -> tuple[Action, ...]:
        """The rank's actions."""
        return tuple(parse_action(text) for text in self.plan.orders[self.rank])

    @cached_property
    def owned(self) -> tuple[tuple[str, ...], ...]:
        """Names of the trainable parameters that each stage of the plan reads; asked once the model has its values."""
        groups, found = self.capture.groups, []
        for stage in self.plan.stages:
            read = dict.fromkeys(name for o in stage.operators if o in groups for name in groups[o].parameters)
            found.append(tuple(name for name in read if self.capture.parameter(name).requires_grad))
        return tuple(found)

    @cached_property
    def lowest_owners(self) -> dict[str, int]:
        """The lowest rank that has each trainable parameter, in the order of stages."""
        lowest: dict[str, int] = {}
        for stage, names in zip(self.plan.stages, self.owned, strict=True):
            for name in names:
                lowest[name] = min(*stage.ranks, lowest.get(name, stage.ranks[0]))
        return lowest

    def microbatches_of(self, stage: int) -> tuple[int, ...]:
        """Return the first micro-batches of the groups that this rank's replica of a stage works on."""
        lead = self.lanes.lead_of(stage, self.rank)
        return self.lanes.graph.microbatches_of(stage, lead, self.plan.batch.num_microbatches)
