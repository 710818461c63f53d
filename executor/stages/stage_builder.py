"""Stages as a rank runs them: a part of the model with its messages, its seeds and, where the order splits, its halves.

Leaves out what is done with them (`worker`), and how a user's function divides them (`user_parallelize`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from costmodel.capture.checkpointed import checkpointed_part, runs_of
from costmodel.capture.parts import Part, extract
from costmodel.capture.shapes import fetch
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Queue
from costmodel.capture.writes import Written, written_by
from costmodel.errors import DoesNotMatch
from executor.communication.wiring import Wiring
from executor.context import RankContext
from executor.stages.evaluation import evaluated_part
from executor.stages.randomness import Draws, seeded_part
from executor.stages.stage import Slot, Stage
from executor.state.microbatch_loader import MicrobatchLoader
from simulator.actions import Kind


@dataclass(frozen=True)
class StageBuilder:
    """What stages of one rank are made of.

    Attributes
    ----------
    context : RankContext
    wiring : Wiring
    loader : MicrobatchLoader
    draws : Draws
    """

    context: RankContext
    wiring: Wiring
    loader: MicrobatchLoader
    draws: Draws

    def stage(self, index: int, view: nn.Module | None = None) -> Stage:
        """Return a stage that trains, of the model's own modules or of a view's.

        Raises
        ------
        DoesNotMatch
            When it draws random numbers for several micro-batches at once.
        """
        plan, own = self.context.plan, [action for action in self.context.order if action.stage == index]
        planned, kinds = plan.stages[index], {action.kind for action in own}
        queue = Queue() if Kind.I in kinds else None
        part, draws = seeded_part(self.part(index, with_modules=True, view=view), self.draws)
        if draws and planned.microbatch_multiple > 1:
            raise DoesNotMatch(
                f"stage {index} draws random numbers and takes {planned.microbatch_multiple} micro-batches in one "
                "action, which would draw others than one at a time: plan with multiples of 1 (another --schedule than "
                "graph-kfkb)"
            )
        if planned.config.recomputed_operators:
            part = self._checkpointed(index, part, split=queue is not None)
        part = part if queue is None else split_part(part, queue)
        buffers = self._buffers(part)
        part = _rooted(part, view)
        written = written_by(self.context.capture, planned.operators)
        read = partial(self.loader.read, part.raw_inputs, part.has_loss, planned.microbatch_multiple)
        return Stage(
            index,
            part,
            self.wiring.incoming(index),
            self.wiring.outgoing(index),
            planned.microbatch_multiple,
            plan.batch.num_microbatches,
            self.wiring.graph.backward[index],
            read,
            recomputes=self.wiring.graph.backward[index] and (Kind.R in kinds or planned.config.recompute == "full"),
            queue=queue,
            num_backwards=sum(action.kind in (Kind.B, Kind.I) for action in own),
            buffers=buffers,
            slots=_slots(part, written),
            written=written,
            draws=self.draws if draws else None,
        )

    def _checkpointed(self, index: int, part: Part, *, split: bool) -> Part:
        """Return a part some of whose operators run again in the backward.

        Raises
        ------
        DoesNotMatch
            When its backward is split, or they read buffers that they write, which others do in between.
        """
        again = self.context.plan.stages[index].config.recomputed_operators
        why = "splits its backward" if split else ""
        if read := sum(one.is_read for one in written_by(self.context.capture, again)):
            why = why or f"they read {read} buffers that they write"
        if why:
            raise DoesNotMatch(
                f"stage {index} runs {len(again)} of its operators again and {why}; plan it with recompute none or full"
            )
        return checkpointed_part(part, self._buffers(part))

    def _buffers(self, part: Part) -> tuple[torch.Tensor, ...]:
        """Return the model's buffers that a part reads."""
        known = {id(buffer) for buffer in self.context.capture.model.module.buffers()}
        read = [fetch(part.module, node.target) for node in part.module.graph.nodes if node.op == "get_attr"]
        found = {id(tensor): tensor for tensor in (*read, *part.module.buffers()) if id(tensor) in known}
        return tuple(found.values())

    def part(self, index: int, *, with_modules: bool = False, view: nn.Module | None = None) -> Part:
        """Cut a stage out of the model; what it passes on without computing it is no output of the part."""
        operators = self.context.plan.stages[index].operators
        named = dict.fromkeys(name for wire in self.wiring.outgoing(index) for name in wire.names)
        relayed = {name for wire in self.wiring.incoming(index) for name in wire.names}
        sends = [name for name in named if name not in relayed]
        runs = runs_of(self.context.capture, operators, self.context.plan.stages[index].config.recomputed_operators)
        return extract(self.context.capture, operators, sends, with_modules=with_modules, view=view, runs=runs)

    def evaluated(self, stage: Stage, view: nn.Module | None) -> Stage:
        """Return a stage as it computes in eval mode; of a view, only its modules know how they are divided."""
        part = _rooted(evaluated_part(self.part(stage.index, with_modules=view is not None, view=view)), view)
        return replace(
            stage,
            part=part,
            slots=_slots(part, stage.written),
            evaluates=True,
            trains=False,
            recomputes=False,
            queue=None,
            draws=None,
            losses=[],
            running={},
            weight_halves={},
        )


def _rooted(part: Part, view: nn.Module | None) -> Part:
    """Return a part that is a call of its view, whose hooks a divided stage lives by; unless it makes that call."""
    return part if view is None or any(not call.path for call in part.calls) else replace(part, root=view)


def _slots(part: Part, written: Sequence[Written]) -> tuple[Slot, ...]:
    """Return the buffers that a part both reads and writes, with the places where it and its modules find them."""
    modules = {id(module): module for root in (part.module, part.root) if root is not None for module in root.modules()}
    wanted = {id(one.tensor): one.tensor for one in written if one.is_read and not one.is_parameter}
    places: dict[int, list[tuple[dict[str, Any], str]]] = {key: [] for key in wanted}
    for module in modules.values() if wanted else ():
        for name, value in module._buffers.items():
            if id(value) in places:
                places[id(value)].append((module._buffers, name))
    return tuple(Slot(tensor, tuple(places[key])) for key, tensor in wanted.items())
