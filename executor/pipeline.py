"""The library: a plan, a model and a loss become something with `step`, inside the user's own training loop.

Leaves out learning-rate schedules and data loading, which stay the user's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costmodel.capture.batches import Split, TrainingModel, as_trained
from costmodel.capture.capture import Capture
from costmodel.capture.heap import keep_freed_memory
from costmodel.errors import UsageError
from executor.communication.groups import RefusedAlike
from executor.gradients.completion import LastStep
from executor.gradients.optimizer import MakeOptimizer, has_opt
from executor.model.meta_init import Values
from executor.observe.observer import Observer
from executor.plan_match.agreement import agree_on_stepped, telling_others
from executor.plan_match.matching import place_in, planned_for_here
from executor.plan_match.model_invariants import check_surroundings
from executor.plan_match.options import LEAST_TIMEOUT_S, RunOptions, check_start
from executor.plan_match.start import ConnectedRank, start
from executor.stages.evaluation import Metric
from executor.stages.user_parallelize import Parallelize
from executor.state.batch_leaves import as_arguments
from executor.state.microbatch_loader import Microbatches
from executor.state.pipeline_state import PipelineState
from planner.plan import Plan
from planner.plan.book import Book


class Pipeline(PipelineState):
    """One rank of a plan that runs a training model.

    Nothing is communicated before the plan is found to fit the model, the number of processes and the
    device; then process groups are made, which every rank has to do at the same time. The pipeline takes the
    model: what this rank's stages read moves to the device, every other parameter and buffer of the module is
    emptied (shape [0]). `state_dict` and `load_state_dict` of the pipeline take the place of the module's.

    Parameters
    ----------
    plan : Plan
    model : TrainingModel, Capture or callable
        With the same parameters on every rank. The capture of a model spares capturing it again and leaves
        the model whole, where it is, for other pipelines of it; a callable makes the training model from the
        first step's inputs and targets.
    optimizer : callable, optional
        The parameters that this rank steps -> their optimizer, for a plan with OPT (which is refused without): `step`
        steps it. It must hold each of them, in what groups it likes.
    max_norm : float, optional
        With `optimizer`: the gradients' norm over all ranks is clipped to it before each step of the optimizer.
    group : torch.distributed.ProcessGroup or DeviceMesh, optional
        This pipeline's ranks in a world that the program has joined; default: the whole world.
    seed : int
        Of the random numbers that steps draw: (seed, step, micro-batch, operator) decide what is drawn.
    device : torch.device, optional
        Default: the kind that the plan names.
    timeout_s : float, optional
        A rank that others wait for longer is lost; default max(30 s, 20 x the predicted step).
    emulate : bool
        Hold each action for its planned time.
    values : callable or path, optional
        For a model built on meta (one that no host holds): (name, tensor on meta) -> its values, or a safetensors file.
        Each rank asks for its own parameters and buffers alone.
    gradient_norm : bool
        Whether `last` has the norm of each step's gradients over all ranks, as it does with `max_norm`.
    skip_nonfinite : bool
        Whether a step whose loss or gradients (their norm) are not finite is skipped, alike on all ranks: no optimizer
        steps, and no gradients are left for one that you step yourself.
    parallelize : callable, optional
        (a stage as a model of the user's class, its mesh of "data" and "tensor", its `StageConfig`) -> None, or the
        model that it has become: divides the stage's modules as the plan says (`docs/guide.md`, "7. Divide stages").

    Raises
    ------
    UsageError
        When the plan has OPT and no optimizer is given, or the other way round.
    DoesNotMatch
        When the plan is for another model, precision, number of ranks, layout of hosts or kind of device, a parameter
        has no values because another pipeline has taken the model, or stages are not divided as the plan has them.
    ReadableButWrong
        When the checker finds anything wrong with the plan.
    """

    def __init__(
        self,
        plan: Plan,
        model: TrainingModel | Capture | Callable[[Any, Any], TrainingModel],
        *,
        optimizer: MakeOptimizer | None = None,
        max_norm: float | None = None,
        group: Any = None,
        seed: int = 0,
        device: torch.device | None = None,
        timeout_s: float | None = None,
        emulate: bool = False,
        values: Values | None = None,
        parallelize: Parallelize | None = None,
        gradient_norm: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        self.plan = plan
        self._group = _process_group(group)
        timeout_s = timeout_s or max(LEAST_TIMEOUT_S, 20 * plan.prediction.step_time_ns / 1e9)
        self._options = RunOptions(
            optimizer, max_norm, seed, timeout_s, emulate, values, parallelize, gradient_norm, skip_nonfinite
        )
        self._started: ConnectedRank | None = None
        self._make = model if callable(model) else None
        with telling_others(timeout_s, self._group):
            self.device = check_start(plan, model, self._options, device, self._group)
        self.rank, self.num_ranks = place_in(self._group)
        if self.device.type == "cpu":
            keep_freed_memory()
        else:
            torch.cuda.set_device(self.device)  # NCCL's barriers use the current one
        if isinstance(model, TrainingModel | Capture):
            self._start(model)

    @classmethod
    def from_plan(
        cls,
        plan: Plan | Book | str | Path,
        model: nn.Module,
        loss: Callable[..., Any],
        *,
        inputs: Any = None,
        targets: Any = None,
        split: Mapping[str | int, Split] | None = None,
        autocast: torch.dtype | None = None,
        lengths: Mapping[str | int, int | tuple[int, ...]] | None = None,
        **options: Any,
    ) -> "Pipeline":
        """Return the pipeline of a plan or book (or its file), a model and its loss.

        Parameters
        ----------
        plan : Plan, Book or path of either
            Of a book the page for as many ranks as run: a job that is started again on what is left after a lost host
            goes on under the next page.
        model : torch.nn.Module
            The pipeline takes it, as of the class. One in eval mode as a whole is set to train; parts of one that
            trains stay in the mode that they have.
        loss : callable
            ``loss(output)``, or ``loss(output, targets)`` where steps are given targets: a scalar, or (sum, weight).
            Of the model it may read what this rank's stages train.
        inputs, targets
            An example of a whole step's batch, of which only the shapes matter. Without it the first step
            makes the pipeline, and until then there are no `parameters`.
        split : mapping, optional
            Exceptions from cutting tensors along their first dimension.
        autocast : torch.dtype, optional
            Run forward and loss under `torch.autocast` to this type, as the plan must say; default: what it says.
        lengths : mapping, optional
            By input, and ``targets``: the dimensions along which samples of a step may be longer or shorter than those
            of the example, in all of its micro-batches or in some (`step`).
        options
            As of the class.
        """
        group = _process_group(options.get("group"))
        with telling_others(options.get("timeout_s") or LEAST_TIMEOUT_S, group):
            planned = planned_for_here(plan, group)

        def make(inputs: Any, targets: Any) -> TrainingModel:
            name, has_targets, size = type(model).__name__, targets is not None, planned.batch.global_size
            args, kwargs = as_arguments(inputs)
            trained = as_trained(model)
            made = TrainingModel(name, trained, args, kwargs, targets, has_targets, loss, split or {}, size, autocast)
            return replace(made, lengths=lengths or {})

        return cls(planned, make if inputs is None else make(inputs, targets), **options)

    @property
    def inputs_needed(self) -> dict[str | int, tuple[tuple[int, int], ...]]:
        """What this rank reads of a step's batch: input name or position (and ``targets``) -> sample ranges.

        The ranges are [first, stop). Other samples may hold what they like, an unnamed tensor may be None: a rank that
        has asked is held to what it reads, another one to the whole batch that it is given
        (`executor.state.same_batches`).
        """
        self.worker.one_batch.only_needed = True
        return self.worker.one_batch.needed()

    def step(
        self,
        inputs: Any = None,
        targets: Any = None,
        *,
        microbatches: Microbatches | None = None,
        accumulate: bool = False,
        short: bool = False,
    ) -> float:
        """Run one step: forward and backward of the whole batch, and the optimizer if the plan has OPT.

        Without OPT the gradients, of this step alone, are left in ``.grad`` of `parameters`; with it they are used up.

        Parameters
        ----------
        inputs, targets
            The step's batch; default: the one that the model was given with.
        microbatches : sequence of (inputs, targets), optional
            The batch as micro-batches one by one, of any numbers of samples and, along `lengths`, of any lengths; a
            rank may be given other values than all in what it does not read, and no other shapes. Where shapes differ
            the loss must be (sum, weight): loss and gradients are those of total sum / total weight.
        accumulate : bool
            Keep the gradients for the next call, which adds its own to them, and step no optimizer; the norm is taken,
            and what is not finite skipped, when the last call has added its own.
        short : bool
            Let the batch hold fewer samples than the plan's step, whole micro-batches of them: loss and gradients are
            theirs alone. Every rank is given all of them.

        Returns
        -------
        float
            The step's loss over all ranks, on every rank.
        """
        if self._started is None:
            if self._make is None or inputs is None:
                raise UsageError("the first step needs inputs")
            self._start(self._make(inputs, targets))
        self._load(inputs, targets, microbatches, short)
        self._running.invariants.check_modes()
        check_surroundings(self.device.type)
        self.worker.check_hooks()
        with self.together(f"step {self.worker.draws.step}"), self.worker.explaining_out_of_memory():
            self.worker.one_batch.check()
            stepped = self._running.stepped
            if stepped is not None and stepped.looks and not accumulate and self.watch.last_complete_step >= 0:
                agree_on_stepped(self.groups, stepped.take())
                self.worker.gradients.tell_of_replaced()
            loss = self.worker.step(accumulate)
            self.watch.last_complete_step += 1
        return loss.value

    def evaluate(
        self,
        inputs: Any = None,
        targets: Any = None,
        *,
        microbatches: Microbatches | None = None,
        metrics: Mapping[str, Metric] | None = None,
        short: bool = False,
    ) -> Any:
        """Return the loss of a batch, over all ranks, on every rank: forwards only, in eval mode.

        Parameters
        ----------
        inputs, targets, microbatches, short
            As of `step`.
        metrics : mapping of str to callable, optional
            (The model's output, targets) of a micro-batch -> (sum, weight), where the loss is computed. Then a dict is
            returned, of ``loss`` and of each metric's total sum / total weight.

        Returns
        -------
        float or dict of str to float
        """
        self._load(inputs, targets, microbatches, short)
        self.worker.prepare_evaluation()
        with self.together("an evaluation", survives=True), self.worker.explaining_out_of_memory():
            self.worker.one_batch.check()
            loss, measured = self.worker.evaluate(metrics or {})
        return loss.value if metrics is None else {"loss": loss.value, **measured}

    @property
    def last(self) -> LastStep | None:
        """What the last step was; None before the first."""
        if self._started is None or self.worker.loss is None:
            return None
        gradients = self.worker.gradients
        norm = None if gradients.norm is None else float(gradients.norm)
        return LastStep(self.worker.loss.value, norm, gradients.skipped)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trainable parameters of this rank's stages.

        A rank that has none yields one without values, so that optimizers are made everywhere alike.
        """
        yield from self.worker.parameters.values() or [nn.Parameter(torch.empty(0, device=self.device))]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield them with their names in the unsplit model."""
        yield from self.worker.parameters.items()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale all ranks' gradients so that their global 2-norm is at most `max_norm`; collective.

        Returns
        -------
        float
            The norm before.
        """
        if has_opt(self.plan):
            raise UsageError("the plan's OPT has stepped already: give max_norm= to Pipeline")
        with self.together("clipping"):
            return float(self.worker.gradients.clip(max_norm))

    def observe(self) -> Observer:
        """Measure the steps from now on."""
        return self.worker.observe()

    def close(self) -> None:
        """Leave together with all other ranks; collective."""
        if self._started is not None:
            self._started.lifecycle.close()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, RefusedAlike):
            self.close()
        elif self._started is not None and not self._started.lifecycle.ended:  # others cannot go on without this one
            self._started.lifecycle.fail(error)

    def _start(self, model: TrainingModel | Capture) -> None:
        self._started = start(self.plan, model, self._options, self.device, self._group)
        self.groups, self.watch = self._started.groups, self._started.groups.watch

    def _load(self, inputs: Any, targets: Any, microbatches: Microbatches | None, short: bool) -> None:
        """Refuse what this rank can see before it waits for another, and take the batch."""
        self._running.lifecycle.check()
        self._running.invariants.check()
        if inputs is not None and microbatches is not None:
            raise UsageError("a step takes inputs, or micro-batches one by one: both are given")
        if microbatches is not None:
            self.worker.loader.load_each(microbatches, short=short)
        elif inputs is not None:
            self.worker.loader.load(inputs, targets, short=short)
        self.worker.take_shapes()


def _process_group(group: Any) -> Any:
    """Return the process group that a user's group or mesh of devices stands for."""
    return group.get_group() if hasattr(group, "get_group") else group
