"""The library: a plan, a model and a loss become something with `step`, inside the user's own training loop.

Leaves out optimizers, schedules and data loading, which stay the user's.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from costmodel.capture.batches import Split, TrainingModel
from costmodel.capture.capture import Capture
from costmodel.capture.heap import keep_freed_memory
from costmodel.errors import DoesNotMatch, UsageError
from executor.feed import as_arguments
from executor.groups import Membership, start_processes
from executor.holding import aimed_at, capture_where_built
from executor.losses import StepLoss
from executor.matching import check_device, check_hosts, check_model, check_orders, check_strategies, check_world
from executor.optimizer import MakeOptimizer, has_optimizer
from executor.state import load_optimizer_state, load_state, optimizer_state, whole_state
from executor.watch import Watch
from executor.worker import Worker
from planner.plan import Plan, read_plan


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
    device : torch.device, optional
        Default: the kind that the plan names.
    timeout_s : float, optional
        A rank that is silent for longer is lost; default max(30 s, 20 x the predicted step).
    optimizer : callable, optional
        Parameters -> optimizer, for a plan with OPT, and needed there.
    emulate : bool
        Hold each action for its planned time.

    Raises
    ------
    UsageError
        When the plan has OPT and no optimizer was given.
    DoesNotMatch
        When the plan is for another model, number of ranks, layout of hosts or kind of device, or a parameter
        has no values because another pipeline has taken the model.
    """

    def __init__(
        self,
        plan: Plan,
        model: TrainingModel | Capture | Callable[[Any, Any], TrainingModel],
        *,
        device: torch.device | None = None,
        timeout_s: float | None = None,
        optimizer: MakeOptimizer | None = None,
        emulate: bool = False,
    ) -> None:
        self.plan = plan
        self.rank, self.num_ranks = check_world(plan)
        if not emulate:  # which only imitates the plan's machines
            check_hosts(plan, self.rank)
        self.device = device or choose_device(plan.cluster.device_of(self.rank).type)
        check_device(plan, self.rank, self.device)
        check_strategies(plan)
        check_orders(plan)
        if optimizer is None and has_optimizer(plan):
            raise UsageError(
                "the plan steps an optimizer (OPT) and none was given: pass optimizer=, a function of the parameters "
                "such as torch.optim.Adam, or plan with --optimizer none and step your own"
            )
        if self.device.type == "cpu":
            keep_freed_memory()
        else:
            torch.cuda.set_device(self.device)  # NCCL's barriers use the current one
        self._options = (optimizer, emulate)
        self._timeout_s = timeout_s or default_timeout_s(plan)
        self._worker: Worker | None = None
        self._closed = False
        self._make = model if callable(model) else None
        if isinstance(model, TrainingModel | Capture):
            self._start(model)

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
            The pipeline takes it, as of the class.
        loss : callable
            ``loss(output)``, or ``loss(output, targets)`` where steps are given targets; it may not read the
            model's parameters.
        inputs, targets
            An example of a whole step's batch, of which only the shapes matter. Without it the first step
            makes the pipeline, and until then there are no `parameters`.
        split : mapping, optional
            Exceptions from cutting tensors along their first dimension.
        autocast : torch.dtype, optional
            Run forward and loss under `torch.autocast` to this type; backwards follow.
        options
            As of the class.
        """
        plan = plan if isinstance(plan, Plan) else read_plan(plan)

        def make(inputs: Any, targets: Any) -> TrainingModel:
            args, kwargs = as_arguments(inputs)
            return TrainingModel(
                type(model).__name__,
                model.train(),
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

        The ranges are [first, stop). Anything else may hold what it likes, an unnamed tensor may be None.
        """
        return self.worker.inputs_needed()

    def step(self, inputs: Any = None, targets: Any = None) -> float | None:
        """Run one step: forward and backward of the whole batch, and the optimizer if the plan has it.

        Gradients are left in ``.grad`` of `parameters`, this step's alone.

        Parameters
        ----------
        inputs, targets
            The step's batch; default: the one that the model was given with.

        Returns
        -------
        float or None
            The loss of this rank's samples' share, on ranks that compute it; `total_loss` is the whole.
        """
        if self._closed:
            raise UsageError("the pipeline is closed; make a new one")
        if self._worker is None:
            if self._make is None or inputs is None:
                raise UsageError("the first step needs inputs")
            self._start(self._make(inputs, targets))
        if inputs is not None:
            self.worker.feed.load(inputs, targets)
        loss = self.worker.step()
        return loss.total / loss.weight if any(stage.losses for stage in self.worker.stages.values()) else None

    def total_loss(self) -> StepLoss:
        """Return the last step's loss on every rank; collective."""
        return self.worker.total_loss()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trainable parameters of this rank's stages."""
        yield from self.worker.parameters.values()

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
        owners = self.worker.lowest_owners()
        mine = [p.grad for n, p in self.named_parameters() if owners[n] == self.rank and p.grad is not None]
        square = torch.tensor([sum(float(torch.linalg.vector_norm(g)) ** 2 for g in mine)], dtype=torch.float64)
        if self.num_ranks > 1:
            dist.all_reduce(square)
        norm = float(square.sqrt())
        if norm > max_norm:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(max_norm / (norm + 1e-6))
        return norm

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the unsplit model's state on rank 0, an empty one elsewhere; collective."""
        return whole_state(self.worker)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of an unsplit model's state."""
        load_state(self.worker, state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer over `parameters`, by their names, on rank 0; collective."""
        return optimizer_state(self.worker, optimizer)

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Give an optimizer over `parameters` its part of a state by names."""
        load_optimizer_state(self.worker, optimizer, state)

    def close(self) -> None:
        """Leave together with all other ranks; collective."""
        if self._worker is None or self._closed:
            return
        if self.num_ranks > 1:
            dist.barrier()
        self._closed = True
        self._membership.leave()

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self.close()
        elif self._worker is not None:  # the other ranks cannot go on without this one
            if isinstance(error, RuntimeError) and self.num_ranks > 1:
                self.watch.listen()
            self._membership.fail(error)

    def _start(self, model: TrainingModel | Capture) -> None:
        """Match the model with the plan, then connect the ranks."""
        size = self.plan.batch.microbatch_size
        captured = model if isinstance(model, Capture) else capture_where_built(model, size)
        check_model(self.plan, captured)
        if model is not captured:
            captured = aimed_at(captured, self.device)
        worker = Worker(self.plan, captured, self.rank, self.device, *self._options, keeps_model=model is captured)
        own_group = start_processes(self.device, self.num_ranks)
        self.watch = Watch(self.rank, self.num_ranks, self._timeout_s)
        self._membership = Membership(own_group, worker.disconnect, self.watch)
        try:
            worker.connect(self.watch)
        except BaseException as error:
            self._membership.fail(error)
            raise
        self._worker = worker


def default_timeout_s(plan: Plan) -> float:
    """Return max(30 s, 20 x the predicted step)."""
    return max(30.0, 20 * plan.prediction.step_time_ns / 1e9)


def choose_device(kind: str) -> torch.device:
    """Return this process's device of a kind; GPUs are shared when there are fewer than processes.

    Raises
    ------
    DoesNotMatch
        When there is none of that kind.
    """
    if kind != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DoesNotMatch("the plan is for GPUs and torch sees none here; profile and plan on this machine's CPU")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
