"""One rank of a running plan: its stages, its program, and the step that runs it.

Made without any communication, so that what does not fit together is found before a rank waits for another; `connect`
then makes groups in one fixed order on every rank. Leaves out the user's side (`pipeline`), what watches a step
(`observer`), gradients behind the last backward (`completion`) and what is compared or written afterwards (`check`,
`measure`).
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace

from torch import nn

from costmodel.capture.pairs import pairs_of
from costmodel.errors import DoesNotMatch
from executor.communication.borders import negotiate_boundary_shapes
from executor.communication.groups import ProcessGroups
from executor.communication.transport import Transport
from executor.communication.wiring import wire_plan
from executor.context import RankContext
from executor.gradients.allreduce_order import MESSAGES, last_message
from executor.gradients.averages import BufferSync
from executor.gradients.clipping import refusing_norms_of_parts
from executor.gradients.completion import StepGradients, clear
from executor.gradients.gradient_presence import Reached
from executor.gradients.hooks import check_gradient_hooks, check_sparse, without_whole_gradient
from executor.gradients.losses import StepLoss, StepLosses, refuse_scalar
from executor.gradients.optimizer import RankOptimizer
from executor.gradients.undivided import calls_of_loss, undivided_loss
from executor.model.holding import Tensors, by_name, copies_start_alike, hold, state_keys
from executor.model.users_loss import UsersLoss
from executor.observe.observer import Observer
from executor.observe.out_of_memory import explaining_out_of_memory, state_bytes
from executor.plan_match.options import RunOptions
from executor.program import Instruction, Program
from executor.stages.evaluation import Metric
from executor.stages.evaluator import RankEvaluator, evaluated_stages
from executor.stages.parallelize import DividedStages
from executor.stages.randomness import Draws
from executor.stages.stage import Stage
from executor.stages.stage_builder import StageBuilder
from executor.stages.user_parallelize import Meshes
from executor.state.microbatch_loader import MicrobatchLoader
from executor.state.same_batches import OneBatch
from simulator.actions import Kind


class Worker:
    """A rank's part of a plan.

    Parameters
    ----------
    context : RankContext
        Not connected yet.
    options : RunOptions, optional
    keeps_model : bool
        Whether parameters that this rank does not need stay as they are; else they are emptied.
    kept : iterable of (str, str)
        Modules and their attributes that forwards keep: the loss may not read those of other stages.

    Attributes
    ----------
    context : RankContext
        Connected once `connect` was called; its model's loss is as stages call it.
    parameters : mapping of str to torch.nn.Parameter
        The trainable ones of this rank's stages.
    loss : StepLoss or None
        Of the last step, over all ranks.
    held : dict of int to torch.Tensor
        What this rank's stages read, by id.
    own, spare : dict of str to torch.Tensor
        Parameters and buffers that this rank's stages read, and that no stage reads (on rank 0), by their first names.
    keys : dict of str to str
        Keys of the unsplit model's ``state_dict`` -> first names.
    divided : DividedStages
    observer : Observer or None
    optimizer : RankOptimizer or None
    keeps_gradients : bool
        Whether gradients stay behind OPT, for somebody to look at.
    """

    def __init__(
        self,
        context: RankContext,
        options: RunOptions | None = None,
        *,
        keeps_model: bool = True,
        kept: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._options = options = options or RunOptions()
        self._users_loss = UsersLoss(context.capture.model.loss)
        model = replace(context.capture.model, loss=self._users_loss)
        self.context = context = replace(context, capture=replace(context.capture, model=model))
        self.capture = context.capture
        self.wiring = wire_plan(context)
        self.loader = MicrobatchLoader(context)
        self.draws = Draws(options.seed, context.device)
        divides = options.parallelize is None and any(stage.config.tensor > 1 for stage in context.plan.stages)
        pairs = pairs_of(self.capture) if divides else ()  # while parameters have their shapes
        self.held, unread = hold(context, options.values, keeps_model)
        self._builder = StageBuilder(context, self.wiring, self.loader, self.draws)
        self.divided = DividedStages(context, self._builder, options.parallelize, pairs)
        self.stages = {s: self._builder.stage(s) for s in context.lanes.stages_of(context.rank)}
        self._name(model.module, unread, kept)
        self._reached = Reached(context, self.wiring)
        self._without_whole_gradient = without_whole_gradient(context)
        self.check_hooks()
        check_sparse(context, options.takes_norm)
        self._last_message = last_message(context.order)
        self._is_rehearsed = self.keeps_gradients = False
        self.loss: StepLoss | None = None
        self.observer: Observer | None = None
        self.optimizer: RankOptimizer | None = None
        self._evaluator: RankEvaluator | None = None
        self._until_end = ExitStack()

    def _name(self, module: nn.Module, unread: Tensors, kept: Iterable[tuple[str, str]]) -> None:
        """Know tensors by their names, and let the loss read no others than this rank trains."""
        self.own, self.spare, self.keys = by_name(module, self.held), by_name(module, unread), state_keys(module)
        own = (name for stage in self.stages for name in self.context.owned[stage])
        self.parameters = {name: self.capture.parameter(name) for name in own}
        clear(self.parameters)  # of whatever the model was before
        calls = calls_of_loss(self.context, self.stages)
        self._users_loss.settle(module, self.held, *calls, lambda: [*self.parameters.values()])
        for stage in self.stages.values():
            if stage.part.has_loss:
                self._users_loss.away.hide(module, kept, stage.part)

    def connect(self, groups: ProcessGroups) -> None:
        """Make the groups and bind the order to them; collective over all ranks."""
        self.context = context = replace(self.context, joined=groups)
        groups.choose_carrier(context.device)
        ending = self._until_end.enter_context
        self.transport = ending(closing(Transport(context))) if groups.size > 1 else None
        copies_start_alike(context)
        if self.divided.may_be:
            self._divide(ending(closing(Meshes(context))))
        self._reached.silence(self.stages.values())
        ending(refusing_norms_of_parts(self.parameters, context.owned))
        if groups.size > 1:
            groups.everyone()  # made before the first step, as all groups are
        self.gradients = StepGradients(
            context, self._options, self.stages, self.parameters, self.divided, self._reached
        )
        ending(closing(self.gradients.reduction))
        self.averages = ending(closing(BufferSync(context, self.stages)))
        self.one_batch = OneBatch(context, self.loader, self.stages)
        self._losses = StepLosses(context, self.stages, self.one_batch)
        if self._options.optimizer is not None:
            self.optimizer = ending(closing(RankOptimizer(context, self._options.optimizer, self.parameters)))
            stepped = {id(p) for group in self.optimizer.optimizer.param_groups for p in group["params"]}
            own = {name: p for name, p in self.parameters.items() if id(p) in stepped}
            ending(refusing_norms_of_parts(own, context.owned))
        self.program = self._program(self.stages)
        self._instructions = self.program.bind(context.order)

    def _divide(self, meshes: Meshes) -> None:
        """Divide this rank's stages, and agree with others on what then crosses their borders."""
        groups = self.context.groups
        with groups.refusing_alike():
            for index, stage, parameters in self.divided.divide(dict(self.stages), meshes):
                self.stages[index] = stage
                self._take(parameters)
        if self.divided.any:
            with groups.refusing_alike():
                self.wiring = negotiate_boundary_shapes(self.context, self.wiring, self.stages)
            for i, stage in self.stages.items():
                stage.incoming, stage.outgoing = self.wiring.incoming(i), self.wiring.outgoing(i)
            self.divided.rest()

    def _take(self, now: Mapping[str, nn.Parameter]) -> None:
        """Hold parameters as they have become, and let go of the whole ones that they were."""
        for name, parameter in now.items():
            before = self.capture.parameter(name)
            if parameter is not before and name in self.own:
                before.data = before.data.new_empty(0)
                self.own[name], self._users_loss.away.words[id(before)] = parameter, f"{name!r} of the model"
                self.parameters |= {name: parameter} if name in self.parameters else {}

    def _program(self, stages: Mapping[int, Stage]) -> Program:
        return Program(self.context, self.wiring, stages, self.transport, self.gradients.reduce, self._optimize)

    def observe(self, emulates: bool = False) -> Observer:
        """Measure the steps from now on; `emulates` holds each action for its planned time."""
        self.observer = Observer(self.context, emulates)
        self.program.mailbox.recorder = self.gradients.reduction.recorder = self.observer.recorder
        return self.observer

    def disconnect(self) -> None:
        """Give up everything that refers to the groups; there are no more steps."""
        self._until_end.close()
        self.divided.close()
        self.stages.clear()
        self._instructions, self._evaluator = (), None

    def step(self, accumulates: bool = False) -> StepLoss:
        """Run the loaded batch through the plan.

        Parameters
        ----------
        accumulates : bool
            Whether the gradients stay, for the next call to add its own, and no optimizer steps.
        """
        if self.context.works_behind_host and not self._is_rehearsed:
            self._is_rehearsed = True
            self.gradients.rehearse()
        self._begin(accumulates)
        undivided = undivided_loss(self.context, self.stages, self.loader.has_unlike) if self.loss is None else None
        self._users_loss.watches = self.loss is None
        for place, instruction in enumerate(self._instructions):
            if instruction.action.kind is Kind.OPT:
                self.gradients.complete(self._losses)
                if accumulates or self.gradients.skipped:
                    break
            self._do(instruction)
            if place == self._last_message:
                self.gradients.reduction.stage_is_done(MESSAGES)
        self.gradients.complete(self._losses)
        if self.transport is not None:
            self.transport.settle()
        self.loss = self._losses.finish()
        self._users_loss.watches = False
        if undivided is not None:
            undivided.tell(self.loss.value)
        if not accumulates and self.optimizer is not None and not self.keeps_gradients:
            clear(self.parameters)  # they are stepped: no other optimizer shall do it again
        self.draws.step += 1
        return self.loss

    def take_shapes(self) -> None:
        """Know the shapes of all messages of the batch that is loaded.

        Raises
        ------
        DoesNotMatch
            When stages have a tensor degree: what each lane then has of another length only a forward tells.
        """
        if self.loader.varies and any(stage.config.tensor > 1 for stage in self.context.plan.stages):
            raise DoesNotMatch(
                "the step has lengths or numbers of samples of its own, and stages of several tensor ranks take those "
                "of the plan alone: plan with --tensor 1, or pad samples to one length"
            )
        self.wiring.take_shapes(self.capture.value_shapes, self.loader.lengths if self.loader.varies else None)

    def _begin(self, accumulates: bool) -> None:
        self.gradients.begin(accumulates)
        for stage in self.stages.values():
            stage.begin(self.loader.num_real)
        if self.observer is not None:
            self.observer.begin()
        if self.optimizer is not None:
            self.optimizer.begin()
        self._losses.begin(self.draws.step, self.loader.has_unlike)

    def _do(self, instruction: Instruction) -> None:
        self.context.groups.watch.at = instruction.action
        if self.observer is not None:
            self.observer.run(instruction)
        else:
            instruction.run()
        self._losses.note(instruction.action)

    def _optimize(self, stage: int) -> None:
        assert self.optimizer is not None  # a plan with OPT is refused without one
        self.optimizer.step(stage)

    def prepare_evaluation(self) -> RankEvaluator:
        """Make the forwards of eval mode once; what cannot be evaluated is refused on all ranks alike."""
        if self._evaluator is None:
            program = self._program(evaluated_stages(self._builder, self.stages, self.divided))
            self._evaluator = RankEvaluator(self.context, program, self.divided, self.averages)
        return self._evaluator

    def evaluate(self, metrics: Mapping[str, Metric]) -> tuple[StepLoss, dict[str, float]]:
        """Run the loaded batch forward, in eval mode; returns its loss and metrics over all ranks."""
        found = self.prepare_evaluation().run(metrics, self.loader.num_real)
        if self.loader.has_unlike:
            refuse_scalar(found[0])
        return found

    def explaining_out_of_memory(self) -> AbstractContextManager[None]:
        """Say what this rank was at, and what it held, where its memory does not suffice within the block."""
        context = self.context
        return explaining_out_of_memory(
            context.plan, context.rank, context.device, lambda: context.groups.watch.at, self._state_bytes
        )

    def _state_bytes(self) -> dict[str, int]:
        gradients = [parameter.grad for parameter in self.parameters.values()]
        states = self.optimizer.optimizer.state.values() if self.optimizer else ()
        return state_bytes(self.own.values(), gradients, [value for state in states for value in state.values()])

    def check_hooks(self) -> None:
        """Refuse hooks on gradients of parameters of which no rank ever has the whole gradient."""
        check_gradient_hooks(self.context, self._without_whole_gradient, self.parameters)
