"""Which gradients there are: what no gradient of the loss reaches has none, as in one process, and no zeros either.

What the captured program detaches is known beforehand; what a loss leaves out of the model's outputs only when it has
run. The ranks agree on it once, at the end of the first step (before it where a device works behind its host), and
hold each later step to it: an optimizer with momentum or weight decay moves a parameter whose gradient is zero. Leaves
out what happens within the stage of the loss, where autograd sees to it.
"""

import json
from collections.abc import Collection, Iterable, Mapping

from torch import fx

from costmodel.capture.shapes import fetch
from costmodel.model.graph import LOSS
from executor.communication.groups import ProcessGroups
from executor.communication.wiring import Wiring
from executor.context import RankContext
from executor.stages.stage import Stage


class Reached:
    """What gradients of the loss reach in a plan's stages.

    Parameters
    ----------
    context : RankContext
        As long as its capture's program reads the model's own parameters.
    wiring : Wiring

    Attributes
    ----------
    left_out : set of str
        Parameters that no gradient reaches; of the stage of the loss, which a loss may read by itself, those of one
        that is divided: what gathers parameters fills gradients up with zeros.
    """

    def __init__(self, context: RankContext, wiring: Wiring) -> None:
        plan, capture, owned = context.plan, context.capture, context.owned
        program = capture.program.module
        self._loss = next(index for index, stage in enumerate(plan.stages) if LOSS in stage.operators)
        self._received = {wire.names[i] for wire in wiring.incoming(self._loss) for i in wire.gradients}
        self._parameters = {
            node.name: capture.name_of.get(id(fetch(program, node.target)))
            for node in program.graph.find_nodes(op="get_attr")
        }
        self._reach, self._owned = wiring.reach, owned
        self._names = self._reach.behind(leaf.name for leaf in capture.outputs if isinstance(leaf, fx.Node))
        self._agreed: set[str] | None = None
        divides = plan.stages[self._loss].config.divides
        self.left_out = self._not_reached(set() if divides else set(owned[self._loss]))

    @property
    def are_agreed(self) -> bool:
        """Whether the ranks have agreed."""
        return self._agreed is not None

    def silence(self, stages: Iterable[Stage]) -> None:
        """Let stages run no backward for what is not reached."""
        for stage in stages:
            stage.silent = frozenset(name for wire in stage.outgoing for name in wire.names) - self._names

    def begin(self, stages: Mapping[int, Stage]) -> None:
        """Start a step, which must use of the model's outputs what the first one did."""
        if self._loss in stages:
            stages[self._loss].expect(self._agreed)

    def agree(
        self, stages: Mapping[int, Stage], had: Iterable[str], groups: ProcessGroups, unseen: Collection[int] = ()
    ) -> set[str]:
        """Return the parameters that have no gradient; collective, once.

        Parameters
        ----------
        stages : mapping
            This rank's, by index.
        had : iterable of str
            Those for which this rank has a gradient, which may be zeros that came from the stage of the loss.
        unseen : collection of int
            Stages that have run no backward yet: of the loss's all is taken to be used that may be.
        """
        loss, expected = stages.get(self._loss), self._received & self._names
        used = expected if self._loss in unseen else set() if loss is None else loss.arrived
        told = json.dumps([sorted(had), None if loss is None else sorted(used)]).encode()
        rows = [json.loads(row) for row in groups.all_gather_bytes(told)]
        arrived = {name for _, names in rows for name in names or ()}
        if arrived != expected:
            self._names = self._reach.behind(arrived)
            self.silence(stages.values())
            self.left_out |= self._not_reached(set(self._owned[self._loss]))
        self._agreed = set(used)
        there = {name for names, _ in rows for name in names} - self.left_out
        return {name for names in self._owned for name in names} - there

    def _not_reached(self, spared: set[str]) -> set[str]:
        reached = {self._parameters.get(name) for name in self._names}
        return {name for names in self._owned for name in names} - reached - spared
