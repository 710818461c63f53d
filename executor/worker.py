"""One rank of a running plan: its stages, its program, and the step that runs it.

Made without any communication, so that what does not fit together is found before a rank waits for another; `connect`
then makes groups in one fixed order on every rank. Leaves out the user's side (`pipeline`), what watches a step
(`observer`) and what is compared or written afterwards (`check`, `measure`).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from costmodel.capture.pairs import pairs_of
from costmodel.capture.parts import extract
from costmodel.model.graph import LOSS
from executor.communication.borders import check_lanes, negotiate_boundary_shapes
from executor.communication.groups import ProcessGroups
from executor.communication.transport import Transport
from executor.communication.wiring import wire_plan
from executor.context import RankContext
from executor.gradients.allreduce_order import MESSAGES, last_message
from executor.gradients.averages import BufferSync
from executor.gradients.clipping import by_number, clip, refusing_norms_of_parts
from executor.gradients.hooks import check_gradient_hooks, check_sparse, without_whole_gradient
from executor.gradients.losses import LossSum, StepLoss, own_loss
from executor.gradients.optimizer import MakeOptimizer, RankOptimizer
from executor.gradients.reached import Reached
from executor.gradients.reduction import Reduction
from executor.gradients.undivided import UndividedLoss
from executor.model.holding import by_name, copies_start_alike, hold, state_keys
from executor.model.meta_init import Values
from executor.model.users_loss import UsersLoss
from executor.observe.observer import Observer
from executor.program import Instruction, Program
from executor.stages.evaluation import Metric, Metrics, evaluated_part
from executor.stages.parallelize import DividedStages
from executor.stages.randomness import Draws
from executor.stages.stage import Stage
from executor.stages.stage_builder import StageBuilder
from executor.stages.user_parallelize import Meshes, Parallelize, own_part, settle
from executor.state.microbatch_loader import MicrobatchLoader
from executor.state.rows import OneBatch
from simulator.actions import Action, Kind

FORWARDS = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F})


class Worker:
    """A rank's part of a plan.

    Parameters
    ----------
    context : RankContext
        Not connected yet.
    seed : int
        Of random numbers that are drawn in steps.
    keeps_model : bool
        Whether parameters that this rank does not need stay as they are; else they are emptied.
    values : callable or path, optional
        Where the values of a model on meta come from.
    parallelize : callable, optional
        Divides each stage (`user_parallelize`).
    asks_norm, skips_nonfinite : bool
        Whether a step's gradients have their norm taken, and are dropped where that or the loss is not finite.

    Attributes
    ----------
    parameters : mapping of str to torch.nn.Parameter
        The trainable ones of this rank's stages.
    context : RankContext
        Connected once `connect` was called; its model's loss is as stages call it.
    loss : StepLoss or None
        Of the last step, over all ranks.
    own, spare : dict of str to torch.Tensor
        Parameters and buffers that this rank's stages read, and that no stage reads (on rank 0), by their first names.
    keys : dict of str to str
        Keys of the unsplit model's ``state_dict`` -> first names.
    observer : Observer or None
    optimizer : RankOptimizer or None
    norm : torch.Tensor or None
        Of the last step's gradients over all ranks, before they were clipped; None where nobody asks.
    skipped : bool
        Whether the last step's gradients were dropped.
    """

    def __init__(
        self,
        context: RankContext,
        seed: int = 0,
        keeps_model: bool = True,
        values: Values | None = None,
        parallelize: Parallelize | None = None,
        asks_norm: bool = False,
        skips_nonfinite: bool = False,
    ) -> None:
        self.users_loss = UsersLoss(context.capture.model.loss)
        model = replace(context.capture.model, loss=self.users_loss)
        self.context = context = replace(context, capture=replace(context.capture, model=model))
        self.capture, module = context.capture, model.module
        self._asks_lanes = any(stage.config.tensor > 1 for stage in context.plan.stages)
        self._last_message = last_message(context.order)
        self.wiring = wire_plan(context)
        self.loader = MicrobatchLoader(context)
        self.draws = Draws(seed, context.device)
        divides = parallelize is None and self._asks_lanes
        pairs = pairs_of(self.capture) if divides else ()  # while parameters have their shapes
        self.held, unread = hold(context, values, keeps_model)
        self._builder = StageBuilder(context, self.wiring, self.loader, self.draws)
        self._divided = DividedStages(context, self._builder, parallelize, pairs)
        self.stages = {s: self._builder.stage(s) for s in context.lanes.stages_of(context.rank)}
        self.own, self.spare, self.keys = by_name(module, self.held), by_name(module, unread), state_keys(module)
        self._reached = Reached(context, self.wiring)
        self.parameters = {name: self.capture.parameter(name) for s in self.stages for name in context.owned[s]}
        forwards = [action.stage for action in context.order if action.kind is Kind.F]
        self._num_losses = sum(self.stages[index].part.has_loss for index in forwards if index in self.stages)
        self._sum: LossSum | None = None
        self._asks_norm, self._skips_nonfinite = asks_norm, skips_nonfinite
        self._max_norm: float | None = None
        self.norm: torch.Tensor | None = None
        self.skipped = False
        self.clear_gradients()  # of whatever the model was before
        self.users_loss.settle(module, self.held, *self._calls_of_loss(), lambda: [*self.parameters.values()])
        self._without_whole_gradient = without_whole_gradient(context)
        self.check_hooks()
        check_sparse(context, self._asks_norm)
        self._weighted: bool | None = None
        self.loss: StepLoss | None = None
        self._rehearsed = False
        self.observer: Observer | None = None
        self.optimizer: RankOptimizer | None = None
        self.keeps_gradients = False
        self._accumulates = False
        self._earlier: list[torch.Tensor | None] = []  # gradients of the calls before, while they accumulate
        self._closed = False
        self._until_end = ExitStack()
        self.metrics = Metrics()
        self._evaluating: tuple[Program, tuple[Instruction, ...]] | None = None

    def connect(
        self, groups: ProcessGroups, make_optimizer: MakeOptimizer | None = None, max_norm: float | None = None
    ) -> None:
        """Make the groups and bind the order to them; collective over all ranks."""
        self.context = context = replace(self.context, joined=groups)
        self.watch, self._max_norm = groups.watch, max_norm
        groups.choose_carrier(context.device)
        self._behind = context.works_behind_host
        self.transport = None if groups.size == 1 else Transport(context)
        copies_start_alike(context)
        if self._divided.may_be:
            self.meshes = Meshes(context)
            self._divide(self.meshes)
        self._reached.silence(self.stages.values())
        self._until_end.enter_context(refusing_norms_of_parts(self.parameters, context.owned))
        if groups.size > 1:
            groups.everyone()  # made before the first step, as all groups are
        self.reduction = Reduction(context, self.parameters)
        self.averages = BufferSync(context, self.stages)
        self.one_batch = OneBatch(context, self.loader, self.stages)
        if make_optimizer is not None:
            self.optimizer = RankOptimizer(context, make_optimizer, self.parameters)
            stepped = {id(p) for group in self.optimizer.optimizer.param_groups for p in group["params"]}
            own = {name: p for name, p in self.parameters.items() if id(p) in stepped}
            self._until_end.enter_context(refusing_norms_of_parts(own, context.owned))
        self.program = self._program(self.stages)
        self._instructions = self.program.bind(context.order)

    def _rehearse(self) -> None:
        """Run each stage that is not divided once on zeros, before the first step: those that are have run so."""
        self._rehearsed = True
        for index, stage in self.stages.items():
            if index not in self._divided.views:
                stage.rehearse(self.context.microbatches_of(index)[0], self.context.device)
        had = {name for name, parameter in self.parameters.items() if parameter.grad is not None}
        self._leave_out(had.union(*(self.context.owned[index] for index in self._divided.views)), self._divided.views)
        self.clear_gradients()

    def _leave_out(self, had: Iterable[str], unseen: Collection[int] = ()) -> None:
        """Leave no gradients, nor zeros, to what no rank has one for; collective once, where ranks agree on that."""
        without = self._reached.left_out
        if not self._reached.are_agreed:
            without = self._reached.agree(self.stages, had, self.context.groups, unseen)
            self.reduction.leave_alone(without)
        for name in without & self.parameters.keys():
            self.parameters[name].grad = None

    def clear_gradients(self) -> None:
        """Leave no gradients of this rank's parameters."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def _divide(self, meshes: Meshes) -> None:
        """Divide this rank's stages, and agree with others on what then crosses their borders."""
        groups = self.context.groups
        with groups.refusing_alike():
            for index, stage, parameters in self._divided.divide(dict(self.stages), meshes):
                self.stages[index] = stage
                self._take(parameters)
        if self._divided.any:
            with groups.refusing_alike():
                self.wiring = negotiate_boundary_shapes(self.context, self.wiring, self.stages)
            for i, stage in self.stages.items():
                stage.incoming, stage.outgoing = self.wiring.incoming(i), self.wiring.outgoing(i)
            self._divided.rest()

    def _take(self, now: Mapping[str, nn.Parameter]) -> None:
        """Hold parameters as they have become, and let go of the whole ones that they were."""
        for name, parameter in now.items():
            before = self.capture.parameter(name)
            if parameter is not before and name in self.own:
                before.data = before.data.new_empty(0)
                self.own[name], self.users_loss.away[id(before)] = parameter, f"{name!r} of the model"
                self.parameters |= {name: parameter} if name in self.parameters else {}

    def observe(self, emulates: bool = False) -> Observer:
        """Measure the steps from now on; `emulates` holds each action for its planned time."""
        self.observer = Observer(self.context, emulates)
        self.program.mailbox.recorder = self.reduction.recorder = self.observer.recorder
        return self.observer

    def disconnect(self) -> None:
        """Give up everything that refers to the groups; there are no more steps."""
        for name in ("transport", "reduction", "averages", "optimizer", "meshes"):  # those that were made by then
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        self._until_end.close()
        self._divided.close()
        self.stages.clear()
        self._instructions, self._evaluating = (), None

    def step(self, accumulates: bool = False) -> StepLoss:
        """Run the loaded batch through the plan.

        Parameters
        ----------
        accumulates : bool
            Whether the gradients stay, for the next call to add its own, and no optimizer steps.
        """
        if self._behind and not self._rehearsed:
            self._rehearse()
        self._begin(accumulates)
        undivided = self._undivided() if self.loss is None else None
        self.users_loss.watches = self.loss is None
        for place, instruction in enumerate(self._instructions):
            if instruction.action.kind is Kind.OPT:
                self._close()
                if accumulates or self.skipped:
                    break
            self._do(instruction)
            if place == self._last_message:
                self.reduction.stage_is_done(MESSAGES)
        self._close()
        if self.transport is not None:
            self.transport.settle()
        assert self._sum is not None
        self.loss = self._sum.result()
        if self._behind:
            self._check_batch(self._sum)
        self.users_loss.watches = False
        if undivided is not None:
            undivided.tell(self.loss.value)
        self._weighted = self.loss.weighted
        if not accumulates and self.optimizer is not None and not self.keeps_gradients:
            self.clear_gradients()  # they are stepped: no other optimizer shall do it again
        self.draws.step += 1
        return self.loss

    def _calls_of_loss(self) -> tuple[str, str]:
        """Return why no rank calls the loss once a micro-batch in turn, and why none calls it for all of them."""
        lanes, several = self.context.lanes, ""
        with_all = [i for i, planned in enumerate(self.context.plan.stages) if LOSS in planned.operators]
        if len(with_all) > 1 or any(len(lanes.blocks[i]) > 1 for i in with_all):
            several = "several ranks call it, each for micro-batches of its own"
        lone = several
        for stage in (stage for stage in self.stages.values() if stage.part.has_loss and not several):
            lone = "its stage recomputes and calls it twice" if stage.recomputes else ""
            lone = "it is called for several micro-batches at once" if stage.multiple > 1 else lone
        return lone, several

    def _undivided(self) -> UndividedLoss | None:
        """Return what sees the whole batch's outputs, if this rank alone has them all and they all count."""
        plan, lanes = self.context.plan, self.context.lanes
        with_all = [index for index, planned in enumerate(plan.stages) if LOSS in planned.operators]
        for index, stage in self.stages.items():
            alone = len(lanes.blocks[index]) == 1 and lanes.lane_of(index, self.context.rank) == 0
            if stage.part.has_loss and alone and with_all == [index] and not stage.recomputes and not stage.num_real:
                return UndividedLoss(stage, stage.multiple * plan.batch.microbatch_size)
        return None

    @property
    def replaces_gradients(self) -> bool:
        """Whether the next step puts its gradients in the place of others; the device is waited for."""
        if self._accumulates:
            return False
        earlier = next((own_part(p.grad) for p in self.parameters.values() if p.grad is not None), None)
        return earlier is not None and bool(earlier.any())

    def prepare_evaluation(self) -> None:
        """Make the forwards of eval mode once; what cannot be evaluated is refused on all ranks alike."""
        if self._evaluating is None:
            evaluated_part(extract(self.capture, self.capture.operators))
            stages = {i: self._builder.evaluated(stage, self._divided.views.get(i)) for i, stage in self.stages.items()}
            for stage in stages.values():
                if stage.part.has_loss:
                    self.metrics.measure(stage)
            program = self._program(stages)
            self._evaluating = program, program.bind(a for a in self.context.order if a.kind in FORWARDS)

    def evaluate(self, metrics: Mapping[str, Metric]) -> tuple[StepLoss, dict[str, float]]:
        """Run the loaded batch forward, in eval mode; returns its loss and metrics over all ranks."""
        self.prepare_evaluation()
        self.metrics.begin(metrics)
        assert self._evaluating is not None
        self.averages.agree()
        program, instructions = self._evaluating
        kept = [(buffer, buffer.clone()) for stage in self.stages.values() for buffer in stage.buffers]
        for stage in program.stages.values():
            stage.losses.clear()
            stage.num_real = self.loader.num_real
        with self._divided.evaluating():
            for instruction in instructions:
                self.watch.at = instruction.action
                instruction.execute(instruction.collect() if instruction.collect is not None else None)
        if self.transport is not None:
            self.transport.settle()
        for buffer, value in kept:  # what only counts forwards counts no evaluation
            buffer.data.copy_(value)
        context = self.context
        loss = LossSum(own_loss(context, program.stages), context.groups).result()
        losing = [i for i, stage in program.stages.items() if stage.part.has_loss]
        counts = all(context.lanes.lane_of(i, context.rank) == 0 for i in losing)
        return loss, self.metrics.result(context.groups, counts) if metrics else {}

    def _begin(self, accumulates: bool) -> None:
        # As they are now: an optimizer's zero_grad between two calls clears what they have added up.
        self._earlier = [parameter.grad for parameter in self.parameters.values()] if self._accumulates else []
        self._accumulates = accumulates
        self._reached.begin(self.stages)
        self.clear_gradients()
        for stage in self.stages.values():
            stage.losses.clear()
            stage.num_real = self.loader.num_real
        if self.observer is not None:
            self.observer.begin()
        self.reduction.begin()
        self._divided.begin()
        self.norm, self.skipped = None, False
        # Looked at before the first action: no host stands still between that and OPT.
        self._sampled = self.one_batch.sample(self.draws.step)
        if self.optimizer is not None:
            self.optimizer.begin()
        self._closed = False
        # A device would run the sum where it is issued, and hold up its stream; else it sets out with the last loss.
        self._sum, self._losses_left = None, -1 if self._behind else self._num_losses
        if not self._losses_left:
            self._sum_losses()

    def _sum_losses(self) -> LossSum:
        self._sum = LossSum(own_loss(self.context, self.stages), self.context.groups, self._sampled)
        return self._sum

    def _check_batch(self, total: LossSum) -> None:
        """Compare the whole batch where samples differ: each rank has the same sums; collective then."""
        if self.context.groups.size > 1 and self.one_batch.differ(total.beside()):
            self.one_batch.compare()

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
        self._divided.reduce([stage])
        self.reduction.stage_is_done(stage)

    def _optimize(self, stage: int) -> None:
        assert self.optimizer is not None  # a plan with OPT is refused without one
        self.optimizer.step(stage)

    def _close(self) -> None:
        """Complete the gradients: sums over ranks, division by a total weight, those of earlier calls, their norm."""
        if self._closed:
            return
        self._closed = True
        self._divided.reduce(self.stages)
        self.reduction.finish()
        self._leave_out(() if self._reached.are_agreed else self.reduction.had())
        settle(self.parameters.values() if self._divided.views else ())
        if self._asks_lanes:
            self._asks_lanes = False
            with self.context.groups.refusing_alike():
                own = {s: {name: self.parameters[name] for name in self.context.owned[s]} for s in self.stages}
                check_lanes(self.context, own)
        recorder = self.observer.recorder if self.observer is not None and self.context.groups.size > 1 else None
        start = recorder.mark() if recorder is not None else None
        self._sum = self._sum or self._sum_losses()
        divisor = self._sum.divisor()
        if not self._behind:
            self._check_batch(self._sum)
        if recorder is not None:
            recorder.note(Action(Kind.REDUCE, max(self.stages)), "collective", start, waits=True)
        if self._weighted is not False:  # what losses are is known after a step: reading it here would stop the device
            gradients = [own_part(p.grad) for p in self.parameters.values() if p.grad is not None]
            by_number(gradients, divisor, torch._foreach_div_)
        if self._earlier:
            _add(self.parameters.values(), self._earlier)
            self._earlier = []
        if self._asks_norm and not self._accumulates:  # the sum of all calls is clipped, and no part of it
            self.norm = self.clip(self._max_norm)
        if self._skips_nonfinite and not self._accumulates:
            assert self.norm is not None
            self.skipped = not (math.isfinite(self._sum.result().value) and math.isfinite(float(self.norm)))
            if self.skipped:
                self.clear_gradients()

    def clip(self, max_norm: float | None) -> torch.Tensor:
        """Scale all ranks' gradients so that their global 2-norm is at most `max_norm`; returns the norm before."""
        return clip(self.context, self.parameters, max_norm)

    def _program(self, stages: dict[int, Stage]) -> Program:
        return Program(self.context, self.wiring, stages, self.transport, self._reduce, self._optimize)

    @property
    def divides(self) -> bool:
        """Whether parameters of this rank are divided, and others stand in place of the model's."""
        return bool(self._divided.views)

    def modules_left(self) -> dict[str, str]:
        """Return the modules of which this rank's stages run something and that they do not call, with the reason."""
        groups, found = self.capture.groups, dict[str, str]()
        for index, stage in self.stages.items():
            for name in self.context.plan.stages[index].operators:
                names = groups[name].module.split(".") if name in groups and groups[name].module else []
                for path in (".".join(names[:length]) for length in range(len(names) + 1)):
                    if path not in found and not stage.part.calls_module(path):
                        found[path] = stage.part.left.get(
                            path, "what goes into it is hidden, or it recomputes by itself"
                        )
        return found

    def check_hooks(self) -> None:
        """Refuse hooks on gradients of parameters of which no rank ever has the whole gradient."""
        check_gradient_hooks(self.context, self._without_whole_gradient, self.parameters)

    def hide_from_loss(self, kept: Iterable[tuple[str, str]]) -> None:
        """Have (module, attribute) that forwards keep refuse to be read where the loss's stage does not call them."""
        for stage in self.stages.values():
            if stage.part.has_loss:
                self.users_loss.hide(self.capture.model.module, kept, stage.part)


def _add(parameters: Iterable[torch.nn.Parameter], earlier: Sequence[torch.Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, earlier, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
