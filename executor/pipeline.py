"""The library: a plan, a model and a loss become something with `step`, inside the user's own training loop.

Leaves out learning-rate schedules and data loading, which stay the user's.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costmodel.capture.attributes import Attributes
from costmodel.capture.batches import Split, TrainingModel, as_trained, check_cut
from costmodel.capture.capture import Capture
from costmodel.capture.heap import keep_freed_memory
from costmodel.errors import UsageError
from executor.communication.groups import GroupLifecycle, ProcessGroups, RefusedAlike
from executor.communication.watch import START
from executor.context import RankContext
from executor.gradients.optimizer import MakeOptimizer, SteppedOptimizers, check_optimizer, has_opt
from executor.model.holding import aimed_at, capture_surely, tensors_read
from executor.model.meta_init import Values
from executor.model.taken import WholeVector, refuse_calls
from executor.model.users_loss import noting_kept
from executor.observe.observer import Observer
from executor.plan_match.agreement import Agreed, agree, agree_on_stepped, held, held_of, telling_others
from executor.plan_match.devices import choose_device, of_this_process
from executor.plan_match.matching import check_device, check_gate, check_hosts, check_target, check_world, place_in
from executor.plan_match.model_invariants import ModelInvariants, check_hooks, check_storages, check_surroundings
from executor.plan_match.precision import planned_dtype, with_precision
from executor.stages.evaluation import Metric
from executor.stages.user_parallelize import Parallelize
from executor.state.microbatch_loader import as_arguments
from executor.state.state import load_optimizer_state, load_state, optimizer_state, whole_state
from executor.worker import Worker
from planner.plan import Plan, read_plan

LEAST_TIMEOUT_S = 30.0

FILE_PATIENCE = 20
"""Timeouts for which ranks may write or read a checkpoint together."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a step was, on every rank alike.

    Attributes
    ----------
    loss : float
    gradient_norm : float or None
        Over all ranks, before clipping; None where nobody asked, and of a call that accumulates.
    skipped : bool
        Whether the optimizer was not stepped, for loss or gradients were not finite.
    """

    loss: float
    gradient_norm: float | None
    skipped: bool


class Pipeline:
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
        self._group = group.get_group() if hasattr(group, "get_group") else group
        self._optimizer, self._max_norm, self._seed, self._emulates = optimizer, max_norm, seed, emulate
        self._values, self._parallelize = values, parallelize
        self._timeout_s = timeout_s or max(LEAST_TIMEOUT_S, 20 * plan.prediction.step_time_ns / 1e9)
        self._worker: Worker | None = None
        self._has_told = False
        self._vector: WholeVector | None = None
        self._stepped: SteppedOptimizers | None = None
        self._ended = ""
        self._asks_norm = gradient_norm or skip_nonfinite or max_norm is not None
        self._skips_nonfinite = skip_nonfinite
        self.extra: Any = None
        self._make = model if callable(model) else None
        with telling_others(self._timeout_s, self._group):
            self._check(model, device, of_group=group is not None)
        self.rank, self.num_ranks = place_in(self._group)
        if self.device.type == "cpu":
            keep_freed_memory()
        else:
            torch.cuda.set_device(self.device)  # NCCL's barriers use the current one
        if isinstance(model, TrainingModel | Capture):
            self._start(model)

    def _check(self, model: object, device: torch.device | None, *, of_group: bool) -> None:
        """Refuse what no model is needed to see, and choose the device."""
        plan, divided = self.plan, self._parallelize is not None
        check_world(plan, self._group)
        rank, _ = place_in(self._group)
        check_target(plan, divides=divided)
        divides = divided or any(stage.config.divides for stage in plan.stages)
        if divides and (of_group or isinstance(model, Capture)):
            what = "parallelize=" if divided else "a plan that divides parameters (tensor, ZeRO-2, 3)"
            raise UsageError(f"{what} takes the whole world and a model of its own: neither group= nor a capture")
        check_optimizer(plan, self._optimizer)
        if self._max_norm is not None and self._optimizer is None:
            raise UsageError("max_norm= clips before the plan's OPT; without one call clip_grad_norm_ before you step")
        planned_dtype(plan)
        if not self._emulates and not of_group:  # emulated it only imitates the plan's machines
            check_hosts(plan, rank)
        self.device = of_this_process(device or choose_device(plan.cluster.device_of(rank).type))
        check_device(plan, rank, self.device)

    @classmethod
    def from_plan(
        cls,
        plan: Plan | str | Path,
        model: nn.Module,
        loss: Callable[..., Any],
        *,
        inputs: Any = None,
        targets: Any = None,
        split: Mapping[str | int, Split] | None = None,
        autocast: torch.dtype | None = None,
        **options: Any,
    ) -> "Pipeline":
        """Return the pipeline of a plan (file), a model and its loss.

        Parameters
        ----------
        plan : Plan or path
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
        options
            As of the class.
        """
        if not isinstance(plan, Plan):
            with telling_others(options.get("timeout_s") or LEAST_TIMEOUT_S, options.get("group")):
                plan = read_plan(plan)

        def make(inputs: Any, targets: Any) -> TrainingModel:
            args, kwargs = as_arguments(inputs)
            return TrainingModel(
                type(model).__name__,
                as_trained(model),
                args,
                kwargs,
                targets,
                targets is not None,
                loss,
                split or {},
                plan.batch.global_size,
                autocast,
            )

        return cls(plan, make if inputs is None else make(inputs, targets), **options)

    @property
    def worker(self) -> Worker:
        """The machinery of this rank."""
        if self._worker is None:
            raise UsageError("the pipeline is made by its first step; give inputs= to have it before")
        return self._worker

    @property
    def inputs_needed(self) -> dict[str | int, tuple[tuple[int, int], ...]]:
        """What this rank reads of a step's batch: input name or position (and ``targets``) -> sample ranges.

        The ranges are [first, stop). Other samples may hold what they like, an unnamed tensor may be None: a rank that
        has asked is held to what it reads, another one to the whole batch that it is given (`executor.state.rows`).
        """
        self.worker.one_batch.only_needed = True
        return self.worker.one_batch.needed()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What `optimizer` has made on this rank, for schedules of its learning rate."""
        found = self.worker.optimizer
        if found is None:
            raise UsageError("the plan has no OPT: the optimizer is the one that you step yourself")
        return found.optimizer

    def step(self, inputs: Any = None, targets: Any = None, *, accumulate: bool = False, short: bool = False) -> float:
        """Run one step: forward and backward of the whole batch, and the optimizer if the plan has OPT.

        Without OPT the gradients, of this step alone, are left in ``.grad`` of `parameters`; with it they are used up.

        Parameters
        ----------
        inputs, targets
            The step's batch; default: the one that the model was given with.
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
        if self._worker is None and not self._ended:
            if self._make is None or inputs is None:
                raise UsageError("the first step needs inputs")
            self._start(self._make(inputs, targets))
        self._load(inputs, targets, short)
        self._invariants.check_modes()
        check_surroundings(self.device.type)
        self.worker.check_hooks()
        with self.together(f"step {self.worker.draws.step}"):
            self.worker.one_batch.check()
            if self._stepped is not None and not accumulate and self.watch.last_complete_step >= 0:
                stepped, self._stepped = self._stepped.take(), None
                agree_on_stepped(self.groups, stepped)
                self._tell_of_replaced()
            loss = self.worker.step(accumulate)
            self.watch.last_complete_step += 1
        return loss.value

    def _tell_of_replaced(self) -> None:
        """Say once that gradients do not add up, where a plain loop's would."""
        if self.rank == 0 and self.worker.replaces_gradients:
            print(
                "pipe.step replaces gradients of the step before, which nobody has cleared: a plain loop adds them up, "
                "and so does pipe.step after a call with accumulate=True; the optimizer's zero_grad clears them",
                file=sys.stderr,
                flush=True,
            )

    def evaluate(
        self,
        inputs: Any = None,
        targets: Any = None,
        *,
        metrics: Mapping[str, Metric] | None = None,
        short: bool = False,
    ) -> Any:
        """Return the loss of a batch, over all ranks, on every rank: forwards only, in eval mode.

        Parameters
        ----------
        inputs, targets, short
            As of `step`.
        metrics : mapping of str to callable, optional
            (The model's output, targets) of a micro-batch -> (sum, weight), where the loss is computed. Then a dict is
            returned, of ``loss`` and of each metric's total sum / total weight.

        Returns
        -------
        float or dict of str to float
        """
        self._load(inputs, targets, short)
        self.worker.prepare_evaluation()
        with self.together("an evaluation", survives=True):
            self.worker.one_batch.check()
            loss, measured = self.worker.evaluate(metrics or {})
        return loss.value if metrics is None else {"loss": loss.value, **measured}

    @property
    def last(self) -> "LastStep | None":
        """What the last step was; None before the first."""
        if self._worker is None or self._worker.loss is None:
            return None
        norm = self._worker.norm
        return LastStep(self._worker.loss.value, None if norm is None else float(norm), self._worker.skipped)

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
            return float(self.worker.clip(max_norm))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the unsplit model's state on rank 0, an empty one elsewhere; collective."""
        with self.together("the state's collection"):
            return whole_state(self.worker)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of an unsplit model's state; collective."""
        with self.together("loading a state", survives=True), self.groups.refusing_alike():
            load_state(self.worker, state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
        """Return an optimizer's state by the names of its parameters on rank 0; collective.

        Default: the optimizer that the plan's OPT steps, else it is one over `parameters`.
        """
        with self.together("the optimizer's collection"):
            return optimizer_state(self.worker, optimizer or self.optimizer)

    def load_optimizer_state_dict(
        self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Give this rank's optimizer its part of a state by names; collective."""
        with self.together("loading an optimizer's state", survives=True):
            load_optimizer_state(self.worker, optimizer or self.optimizer, state)

    def save(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None, extra: Any = None) -> None:
        """Write a checkpoint by the unsplit model's names; collective. At any moment the folder holds a whole one.

        Parameters
        ----------
        folder : path
            That all ranks see.
        optimizer : torch.optim.Optimizer, optional
            One over `parameters`, whose state and groups go along; default: the one that the plan's OPT steps, if it
            has OPT.
        extra
            What else this rank needs to go on (a schedule's ``state_dict()``, a loader's place): numbers, texts,
            tensors, in lists, tuples and dicts. `load` gives it back as `extra`.

        Raises
        ------
        DoesNotMatch
            On all ranks, when something cannot be saved or written; the checkpoint that was there stands.
        """
        from executor.state.checkpoint import save

        own = self._own(optimizer)
        if own is None and self.worker.draws.step and self.rank == 0 and not self._has_told:
            self._has_told = True
            print(
                f"{folder}: no optimizer's state is saved, for none was given: pipe.save(folder, optimizer) saves it",
                file=sys.stderr,
                flush=True,
            )
        with self.together("saving", FILE_PATIENCE, survives=True):
            save(self.worker, folder, own, extra)

    def load(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Take this rank's part of a checkpoint, saved under whatever plan; returns the steps done; collective.

        `extra` is then what this rank gave to `save`, of ranks that were not there what rank 0 gave.

        Raises
        ------
        DoesNotMatch
            On all ranks, when the folder holds no whole checkpoint, or one that does not fit; nothing is changed then.
        """
        from executor.state.checkpoint import load

        with self.together("loading", FILE_PATIENCE, survives=True):
            steps, self.extra = load(self.worker, folder, self._own(optimizer))
        return steps

    def _own(self, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
        return optimizer or (self.optimizer if has_opt(self.plan) else None)

    def observe(self) -> Observer:
        """Measure the steps from now on."""
        return self.worker.observe()

    def close(self) -> None:
        """Leave together with all other ranks; collective."""
        if self._worker is None or self._ended:
            return
        with self.together("the end"):
            self.groups.all_gather_bytes(b"")
        self._ended = "the pipeline is closed; make a new one"
        if self._stepped is not None:
            self._stepped.take()
        self._lifecycle.leave()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, RefusedAlike):
            self.close()
        elif self._worker is not None and not self._ended:  # the other ranks cannot go on without this one
            self._fail(error)

    def _load(self, inputs: Any, targets: Any, short: bool = False) -> None:
        """Refuse what this rank can see before it waits for another, and take the batch."""
        if self._ended:
            raise UsageError(self._ended)
        self._invariants.check()
        if self._vector is not None:
            self._vector.check()
        if inputs is not None:
            multiple = math.lcm(*(stage.microbatch_multiple for stage in self.plan.stages))
            self.worker.loader.load(inputs, targets, short=short, multiple=multiple)

    @contextmanager
    def together(self, what: str, patience: int = 1, *, survives: bool = False) -> Iterator[None]:
        """Do something that takes all ranks, under the watch; an error in it ends the pipeline on all of them.

        Where it `survives`, what all ranks refuse alike ends nothing.
        """
        if self._ended:
            raise UsageError(self._ended)
        self.worker  # noqa: B018 - says what is missing
        self.watch.enters(what, patience)
        try:
            yield
        except BaseException as error:
            if survives and isinstance(error, RefusedAlike):  # all ranks are here, and may go on together
                self.watch.rests()
            else:
                self._fail(error)
            raise
        self.watch.rests()

    def _fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one cannot go on."""
        if self._stepped is not None:  # its hook is on all optimizers of the process, and would outlive the pipeline
            self._stepped.take()
        self._ended = f"the pipeline has failed ({type(error).__name__}: {error}); make a new one in a new process"
        if getattr(error, "alike", False):
            self.groups.all_gather_bytes(b"")
            self._lifecycle.leave()
            return
        if isinstance(error, RuntimeError) and self.num_ranks > 1:
            self.watch.listen()  # a lost rank may be the reason
        self._lifecycle.fail(error)

    def _matched(self, model: TrainingModel | Capture) -> tuple[Worker, Agreed]:
        """Capture the model and make this rank's part of the plan of it, without a word to the others."""
        size, kept = self.plan.batch.microbatch_size, list[tuple[str, str]]()
        if isinstance(model, Capture):
            captured = replace(model, model=with_precision(self.plan, model.model))
            attributes = Attributes(captured.model.module)
        else:
            check_cut(model)
            built = with_precision(self.plan, model)
            with noting_kept(built.module) as kept:
                captured, attributes = capture_surely(built, size, self._values is not None)
        check_gate(self.plan, captured)
        if len(self.plan.stages) > 1:
            check_storages(captured.model.module)
        own = held(self.plan, captured, self._options())
        if isinstance(model, TrainingModel):
            captured = aimed_at(captured, self.device)
        keeps_model = isinstance(model, Capture)
        worker = Worker(
            RankContext(self.plan, captured, self.rank, self.device),
            self._seed,
            keeps_model,
            self._values,
            self._parallelize,
            self._asks_norm,
            self._skips_nonfinite,
        )
        worker.hide_from_loss(kept)
        check_hooks(captured.model.module, worker.modules_left())
        self._attributes = attributes
        return worker, own

    def _options(self) -> dict[str, Any]:
        """Return the options that all ranks must have alike."""
        return {
            "optimizer": self._optimizer is not None,
            "max_norm": self._max_norm,
            "seed": self._seed,
            "timeout_s": self._timeout_s,
            "emulate": self._emulates,
            "values": self._values is not None,
            "parallelize": self._parallelize is not None,
            "gradient_norm": self._asks_norm,
            "skip_nonfinite": self._skips_nonfinite,
        }

    def _start(self, model: TrainingModel | Capture) -> None:
        """Match the model with the plan, then connect the ranks."""
        with telling_others(self._timeout_s, self._group):
            self._vector = WholeVector(model.module) if isinstance(model, TrainingModel) else None
            worker, own = self._matched(model)
        self.groups = ProcessGroups(self.rank, self.num_ranks, self._timeout_s, self._group)
        self.watch = self.groups.watch
        self._lifecycle = GroupLifecycle(self.groups, worker.disconnect)
        self.watch.enters(START)
        try:
            agree(self.groups, own)
            worker.connect(self.groups, self._optimizer, self._max_norm)
            agree(self.groups, held_of(worker.optimizer.optimizer if worker.optimizer else None))
        except BaseException as error:
            if getattr(error, "alike", False):
                self.groups.all_gather_bytes(b"")
                self._lifecycle.leave()
            else:
                self._lifecycle.fail(error)
            raise
        self.watch.rests()
        self._worker = worker
        refuse_calls(worker.capture.model.module, tensors_read(worker.capture, worker.capture.operators))
        self._invariants = ModelInvariants(
            worker.capture, self._attributes, worker.parameters, worker.modules_left(), replaces=worker.divides
        )
        self._stepped = (
            None
            if has_opt(self.plan)
            else SteppedOptimizers(
                worker.parameters.values(),
                parts=len(worker.parameters) < len({n for names in worker.context.owned for n in names}),
            )
        )
        if self._emulates:
            worker.observe(emulates=True)
