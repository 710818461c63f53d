"""One rank of a running plan: its stages, its program, and the step that runs it.

Made without any communication, so that what does not fit together is found before a rank waits for another; `connect`
then makes groups in one fixed order on every rank. Leaves out the user's side (`pipeline`), what watches a step
(`observer`) and what is compared or written afterwards (`check`, `measure`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from costmodel.capture.batches import TARGETS
from costmodel.capture.capture import Capture
from costmodel.capture.parts import Part, extract
from costmodel.capture.shapes import fetch
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Queue
from costmodel.capture.views import view_of
from costmodel.errors import DoesNotMatch
from executor.averages import Averages
from executor.clipping import clip
from executor.evaluation import evaluated_part
from executor.feed import Feed
from executor.groups import Company
from executor.holding import copies_start_alike, held_tensors, holders_of_tensors, keep_only
from executor.losses import LossSum, StepLoss, own_loss
from executor.materializing import Values, materialized
from executor.observer import Observer
from executor.optimizer import MakeOptimizer, RankOptimizer
from executor.parallel import Meshes, Parallelize, divide, named_parameters, num_parts, own_part
from executor.program import Instruction, Program
from executor.randomness import Draws, seeded_part
from executor.reduction import Reduction
from executor.sharding import ShardedStage
from executor.stage import Stage
from executor.transport import Transport
from executor.wiring import Wiring, wire_plan
from planner.plan import Plan
from simulator.actions import SENDS, Action, Kind, parse_action

FORWARDS = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F})


class Worker:
    """A rank's part of a plan.

    Parameters
    ----------
    plan : Plan
    capture : Capture
        Of the very model whose parameters are trained; already found to be the plan's.
    rank : int
    device : torch.device
    seed : int
        Of random numbers that are drawn in steps.
    keeps_model : bool
        Whether parameters that this rank does not need stay as they are; else they are emptied.
    values : callable or path, optional
        Where the values of a model on meta come from.
    parallelize : callable, optional
        Divides each stage (`parallel`).

    Attributes
    ----------
    parameters : mapping of str to torch.nn.Parameter
        The trainable ones of this rank's stages.
    owned : list of tuple of str
        Names of those that each stage of the plan reads.
    loss : StepLoss
        Of the last step, over all ranks.
    observer : Observer or None
    optimizer : RankOptimizer or None
    """

    def __init__(
        self,
        plan: Plan,
        capture: Capture,
        rank: int,
        device: torch.device,
        seed: int = 0,
        keeps_model: bool = True,
        values: Values | None = None,
        parallelize: Parallelize | None = None,
    ) -> None:
        self.plan, self.capture, self.rank, self.device = plan, capture, rank, device
        self._parallelize = parallelize
        self._views: dict[int, nn.Module] = {}
        self._sharded: dict[int, ShardedStage] = {}
        self.order = tuple(parse_action(text) for text in plan.orders[rank])
        self.wiring: Wiring = wire_plan(plan, capture)
        self.feed = Feed(capture, plan.batch.global_size, plan.batch.num_microbatches, device)
        self.draws = Draws(seed, device)
        self.held, self.unread = held_tensors(plan, capture, rank)
        if values is not None:
            self._materialize(values)
        elif not keeps_model:
            keep_only(capture, self.held, self.unread, device)
        self.stages = {s: self._stage(s) for s in self.wiring.lanes.stages_of(rank)}
        self.own, self.spare = self._named(self.held), self._named(self.unread)
        self.owned = [self._trainable(stage) for stage in range(len(plan.stages))]
        self.parameters = {name: capture.parameter(name) for s in self.stages for name in self.owned[s]}
        with_loss = {index for index, stage in self.stages.items() if stage.part.has_loss}
        self._num_losses = sum(action.kind is Kind.F and action.stage in with_loss for action in self.order)
        self._sum: LossSum | None = None
        self.observer: Observer | None = None
        self.optimizer: RankOptimizer | None = None
        self.keeps_gradients = False
        self._earlier: list[torch.Tensor | None] | None = None  # gradients of the calls before, while they accumulate
        self._closed = False
        self._evaluating: tuple[Program, tuple[Instruction, ...]] | None = None

    def connect(
        self, company: Company, make_optimizer: MakeOptimizer | None = None, max_norm: float | None = None
    ) -> None:
        """Make the groups and bind the order to them; collective over all ranks."""
        lanes = self.wiring.lanes
        self.company, self.watch, self._max_norm = company, company.watch, max_norm
        company.choose_carrier(self.device)
        self.transport = None if company.size == 1 else Transport(company, self.device, self._pairs())
        copies_start_alike(self.plan, self.capture, company, self.device)
        if self._parallelize is not None:
            self._divide(self._parallelize, Meshes(lanes, company, self.device))
        self.reduction = Reduction(self.plan, self.owned, self.parameters, self.device, company, lanes)
        buffers = {index: stage.buffers for index, stage in self.stages.items()}
        replicas = {index: lanes.replicas(index, self.rank) for index in self.stages}
        self.averages = Averages(company, self.device, replicas, buffers)
        if make_optimizer is not None:
            self.optimizer = RankOptimizer(self.plan, make_optimizer, company, self.device, self.owned, self.parameters)
        self.program = self._program(self.stages)
        self._instructions = self.program.bind(self.order)

    def _divide(self, parallelize: Parallelize, meshes: Meshes) -> None:
        """Let the user's function divide this rank's stages, which then run what it has left."""
        for index in tuple(self.stages):
            config = self.plan.stages[index].config
            mesh = meshes.of(index)
            part = self._part(index, with_modules=True)
            view = divide(view_of(part), mesh, part, config, parallelize, f"stage {index}")
            self._views[index] = view
            self.stages[index] = self._stage(index, view)
            if config.zero > 1:
                self._sharded[index] = ShardedStage(view, config.zero)
            now = named_parameters(view)
            self.own |= {name: parameter for name, parameter in now.items() if name in self.own}
            self.parameters |= {name: now[name] for name in self.owned[index]}

    def observe(self, emulates: bool = False) -> Observer:
        """Measure the steps from now on; `emulates` holds each action for its planned time."""
        self.observer = Observer(self.plan, self.order, self.device, emulates)
        self.program.mailbox.recorder = self.reduction.recorder = self.observer.recorder
        return self.observer

    def disconnect(self) -> None:
        """Give up everything that refers to the groups; there are no more steps."""
        for part in (self.transport, self.reduction, self.averages, self.optimizer):
            if part is not None:
                part.close()

    def step(self, accumulates: bool = False) -> StepLoss:
        """Run the loaded batch through the plan.

        Parameters
        ----------
        accumulates : bool
            Whether the gradients stay, for the next call to add its own, and no optimizer steps.
        """
        self._begin()
        for instruction in self._instructions:
            if instruction.action.kind is Kind.OPT:
                self._close()
                if accumulates:
                    break
            self._do(instruction)
        self._close()
        if self.transport is not None:
            self.transport.settle()
        if accumulates:
            self._earlier = [parameter.grad for parameter in self.parameters.values()]
        else:
            self._earlier = None
            if self.optimizer is not None and not self.keeps_gradients:
                _clear(self.parameters.values())  # they are stepped: no other optimizer shall do it again
        self.draws.step += 1
        return self.loss

    def prepare_evaluation(self) -> None:
        """Make the forwards of eval mode once; what cannot be evaluated is refused on all ranks alike."""
        if self._evaluating is None:
            evaluated_part(extract(self.capture, self.capture.operators))
            program = self._program({index: self._evaluated(stage) for index, stage in self.stages.items()})
            self._evaluating = program, program.bind(a for a in self.order if a.kind in FORWARDS)

    def evaluate(self) -> StepLoss:
        """Run the loaded batch forward, in eval mode; returns its loss over all ranks."""
        self.prepare_evaluation()
        assert self._evaluating is not None
        self.averages.agree()
        program, instructions = self._evaluating
        kept = [(buffer, buffer.clone()) for stage in self.stages.values() for buffer in stage.buffers]
        for stage in program.stages.values():
            stage.losses.clear()
        for view in self._views.values():
            view.eval()
        for instruction in instructions:
            self.watch.at = instruction.action
            instruction.execute(instruction.collect() if instruction.collect is not None else None)
        for view in self._views.values():
            view.train()
        if self.transport is not None:
            self.transport.settle()
        for buffer, value in kept:  # what only counts forwards counts no evaluation
            buffer.data.copy_(value)
        return LossSum(self._own_loss(program.stages), self.company).result()

    def _begin(self) -> None:
        _clear(self.parameters.values())
        for stage in self.stages.values():
            stage.losses.clear()
        if self.observer is not None:
            self.observer.begin()
        self.reduction.begin()
        for sharded in self._sharded.values():
            sharded.begin()
        self._closed = False
        # Reading a loss waits for a device; on a CPU its sum sets out with the last forward that has one.
        self._sum, self._losses_left = None, self._num_losses if self.device.type == "cpu" else -1
        if not self._losses_left:
            self._sum_losses()

    def _sum_losses(self) -> LossSum:
        self._sum = LossSum(self._own_loss(self.stages), self.company)
        return self._sum

    def _own_loss(self, stages: Mapping[int, Stage]) -> StepLoss:
        """Return what this rank's stages have seen; lanes see the same, of which the first one's counts."""
        lanes = self.wiring.lanes
        return own_loss(stage for i, stage in stages.items() if lanes.lane_of(i, self.rank) == 0)

    def _do(self, instruction: Instruction) -> None:
        self.watch.at = instruction.action
        if self.observer is not None:
            self.observer.run(instruction)
        else:
            instruction.execute(instruction.collect() if instruction.collect is not None else None)
        if instruction.action.kind is Kind.F and self.stages[instruction.action.stage].part.has_loss:
            self._losses_left -= 1
            if not self._losses_left:
                self._sum_losses()

    def _reduce(self, stage: int) -> None:
        if stage in self._sharded:
            self._sharded[stage].reduce()
        self.reduction.stage_is_done(stage)

    def _optimize(self, stage: int) -> None:
        assert self.optimizer is not None  # a plan with OPT is refused without one
        self.optimizer.step(stage)

    def _close(self) -> None:
        """Complete the gradients: sums over ranks, division by a total weight, those of earlier calls, their norm."""
        if self._closed:
            return
        self._closed = True
        for sharded in self._sharded.values():
            sharded.reduce()
        self.reduction.finish()
        recorder = self.observer.recorder if self.observer is not None and self.company.size > 1 else None
        start = recorder.mark() if recorder is not None else None
        self.loss = (self._sum or self._sum_losses()).result()
        if recorder is not None:
            recorder.note(Action(Kind.REDUCE, max(self.stages)), "collective", start, waits=True)
        if self.loss.weighted:
            gradients = [own_part(p.grad) for p in self.parameters.values() if p.grad is not None]
            if gradients:
                torch._foreach_div_(gradients, self.loss.weight)
        if self._earlier is not None:
            _add(self.parameters.values(), self._earlier)
        if self._max_norm is not None:
            self.norm = self.clip(self._max_norm)

    def clip(self, max_norm: float) -> float:
        """Scale all ranks' gradients so that their global 2-norm is at most `max_norm`; returns the norm before."""
        return clip(self.parameters, self.shares(), max_norm, self.company)

    def _program(self, stages: dict[int, Stage]) -> Program:
        return Program(
            self.rank,
            self.wiring,
            stages,
            self.transport,
            self._reduce,
            self._optimize,
            self.plan.batch.num_microbatches,
        )

    def _evaluated(self, stage: Stage) -> Stage:
        view = self._views.get(stage.index)  # only its modules know how they are divided
        part = self._part(stage.index, with_modules=view is not None, view=view)
        return replace(
            stage,
            part=_rooted(evaluated_part(part), view),
            trains=False,
            recomputes=False,
            queue=None,
            draws=None,
            losses=[],
            running={},
            weight_halves={},
        )

    def _materialize(self, values: Values) -> None:
        """Give this rank's part of a model on meta its values, and what no stage reads, on the host of rank 0."""
        holders, unread = holders_of_tensors(self.plan, self.capture), set(self.unread)
        read = {key for key in self.held if holders[key][0] == self.rank} | unread
        self.held = materialized(self.capture, self.held, read, values, self.device)
        self.unread = materialized(self.capture, self.unread, read, values, torch.device("cpu"))

    def _named(self, tensors: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the model's parameters and buffers that are among some tensors, by their first names."""
        module = self.capture.model.module
        named = [*module.named_parameters(), *module.named_buffers()]
        return {name: tensor for name, tensor in named if id(tensor) in tensors}

    def _stage(self, index: int, view: nn.Module | None = None) -> Stage:
        planned = self.plan.stages[index]
        kinds = {action.kind for action in self.order if action.stage == index}
        queue = Queue() if Kind.I in kinds else None
        part, draws = seeded_part(self._part(index, with_modules=True, view=view), self.draws)
        if draws and planned.microbatch_multiple > 1:
            raise DoesNotMatch(
                f"stage {index} draws random numbers and takes {planned.microbatch_multiple} micro-batches in one "
                "action, which would draw others than one at a time: plan with multiples of 1 (another --schedule than "
                "graph-kfkb)"
            )
        part = part if queue is None else split_part(part, queue)
        buffers = self._buffers(part)
        part = _rooted(part, view)
        read = partial(self.feed.read, part.raw_inputs, part.has_loss, planned.microbatch_multiple)
        return Stage(
            index,
            part,
            self.wiring.incoming(index),
            self.wiring.outgoing(index),
            planned.microbatch_multiple,
            self.plan.batch.num_microbatches,
            self.wiring.graph.backward[index],
            read,
            recomputes=self.wiring.graph.backward[index] and (Kind.R in kinds or planned.config.recompute == "full"),
            queue=queue,
            buffers=buffers,
            draws=self.draws if draws else None,
        )

    def _buffers(self, part: Part) -> tuple[torch.Tensor, ...]:
        """Return the model's buffers that a part reads."""
        known = {id(buffer) for buffer in self.capture.model.module.buffers()}
        read = [fetch(part.module, node.target) for node in part.module.graph.nodes if node.op == "get_attr"]
        found = {id(tensor): tensor for tensor in (*read, *part.module.buffers()) if id(tensor) in known}
        return tuple(found.values())

    def _part(self, index: int, *, with_modules: bool = False, view: nn.Module | None = None) -> Part:
        """Cut a stage out of the model; what it passes on without computing it is no output of the part."""
        operators = self.plan.stages[index].operators
        named = dict.fromkeys(name for wire in self.wiring.outgoing(index) for name in wire.names)
        relayed = {name for wire in self.wiring.incoming(index) for name in wire.names}
        sends = [name for name in named if name not in relayed]
        return extract(self.capture, operators, sends, with_modules=with_modules, view=view)

    def _trainable(self, stage: int) -> tuple[str, ...]:
        """Return the trainable parameters that a stage reads, by name."""
        groups = self.capture.groups
        read = {name: None for o in self.plan.stages[stage].operators if o in groups for name in groups[o].parameters}
        return tuple(name for name in read if self.capture.parameter(name).requires_grad)

    def inputs_needed(self) -> dict[str | int, tuple[tuple[int, int], ...]]:
        """Return input name or position (and ``targets``) -> ranges of samples that this rank reads."""
        size = self.plan.batch.microbatch_size
        of_input = dict(zip(self.capture.inputs, self.feed.keys(), strict=True))
        needed: dict[str | int, set[int]] = {}
        for index, stage in self.stages.items():
            lead = self.wiring.lanes.lead_of(index, self.rank)
            firsts = self.wiring.graph.microbatches_of(index, lead, stage.num_microbatches)
            samples = {k * size + i for k in firsts for i in range(stage.multiple * size)}
            keys: list[str | int] = [of_input[name] for name in stage.part.raw_inputs]
            keys += [TARGETS] if stage.part.has_loss and self.capture.model.has_targets else []
            for key in keys:
                needed[key] = needed.get(key, set()) | samples
        return {key: _ranges(samples) for key, samples in needed.items()}

    def shares(self) -> dict[str, float]:
        """Return what part of a norm over all ranks each parameter of this one counts: each value counts once."""
        lowest, found = self.lowest_owners(), {}
        for name, parameter in self.parameters.items():
            found[name] = float(lowest[name] == self.rank)
            if num_parts(parameter) > 1:
                (stage,) = (index for index, names in enumerate(self.owned) if name in names)
                found[name] = num_parts(parameter) / len(self.plan.stages[stage].ranks)
        return found

    def lowest_owners(self) -> dict[str, int]:
        """Return the lowest rank that has each trainable parameter, in the order of stages."""
        lowest: dict[str, int] = {}
        for stage, names in enumerate(self.owned):
            for name in names:
                rank = min(self.plan.stages[stage].ranks)
                lowest[name] = min(rank, lowest.get(name, rank))
        return lowest

    def _pairs(self) -> set[tuple[int, int]]:
        """Return all (sender, receiver) ranks of the plan."""
        lanes, found = self.wiring.lanes, set()
        for rank, order in enumerate(self.plan.orders):
            for action in (parse_action(text) for text in order if "SEND" in text):
                if action.kind in SENDS:
                    receivers = lanes.receivers(action.stage, action.peer, action.microbatch, rank)
                    found |= {(rank, receiver) for receiver in receivers}
        return found


def _rooted(part: Part, view: nn.Module | None) -> Part:
    """Return a part that is a call of its view, whose hooks a divided stage lives by; unless it makes that call."""
    return part if view is None or any(not call.path for call in part.calls) else replace(part, root=view)


def _clear(parameters: Iterable[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _add(parameters: Iterable[torch.nn.Parameter], earlier: Sequence[torch.Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, earlier, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _ranges(samples: set[int]) -> tuple[tuple[int, int], ...]:
    """Return a set of numbers as ranges [first, stop)."""
    starts = sorted(i for i in samples if i - 1 not in samples)
    stops = sorted(i + 1 for i in samples if i + 1 not in samples)
    return tuple(zip(starts, stops, strict=True))
