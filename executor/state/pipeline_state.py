"""What a pipeline's ranks hold, as its user saves and loads it: states by the unsplit model's names, and checkpoints.

Leaves out what is in them (`state`, `checkpoint`) and steps.
"""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from costmodel.errors import UsageError
from executor.gradients.optimizer import has_opt
from executor.plan_match.start import ConnectedRank
from executor.state.checkpoint import load_checkpoint, save_checkpoint
from executor.state.state import load_optimizer_state, load_state, optimizer_state, whole_state
from executor.worker import Worker

FILE_PATIENCE = 20
"""Timeouts for which ranks may write or read a checkpoint together."""


class PipelineState:
    """The part of `executor.Pipeline` that saves and loads.

    Attributes
    ----------
    extra
        What the checkpoint that was loaded last has for this rank.
    """

    extra: Any = None
    _started: ConnectedRank | None = None
    _has_told = False

    @property
    def worker(self) -> Worker:
        """The machinery of this rank."""
        return self._running.worker

    @property
    def _running(self) -> ConnectedRank:
        if self._started is None:
            raise UsageError("the pipeline is made by its first step; give inputs= to have it before")
        return self._started

    def together(self, what: str, patience: int = 1, *, survives: bool = False) -> AbstractContextManager[None]:
        """Do something that takes all ranks, under the watch; an error in it ends the pipeline on all of them.

        Where it `survives`, what all ranks refuse alike ends nothing.
        """
        return self._running.lifecycle.together(what, patience, survives=survives)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What `optimizer` has made on this rank, for schedules of its learning rate."""
        found = self.worker.optimizer
        if found is None:
            raise UsageError("the plan has no OPT: the optimizer is the one that you step yourself")
        return found.optimizer

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the unsplit model's state on rank 0, an empty one elsewhere; collective."""
        with self.together("the state's collection"):
            return whole_state(self.worker)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of an unsplit model's state; collective."""
        with self.together("loading a state", survives=True), self._running.groups.refusing_alike():
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
        own = self._own(optimizer)
        if own is None and self.worker.draws.step and self.worker.context.rank == 0 and not self._has_told:
            self._has_told = True
            print(
                f"{folder}: no optimizer's state is saved, for none was given: pipe.save(folder, optimizer) saves it",
                file=sys.stderr,
                flush=True,
            )
        with self.together("saving", FILE_PATIENCE, survives=True):
            save_checkpoint(self.worker, folder, own, extra)

    def load(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Take this rank's part of a checkpoint, saved under whatever plan; returns the steps done; collective.

        `extra` is then what this rank gave to `save`, of ranks that were not there what rank 0 gave.

        Raises
        ------
        DoesNotMatch
            On all ranks, when the folder holds no whole checkpoint, or one that does not fit; nothing is changed then.
        """
        with self.together("loading", FILE_PATIENCE, survives=True):
            steps, self.extra = load_checkpoint(self.worker, folder, self._own(optimizer))
        return steps

    def _own(self, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
        return optimizer or (self.optimizer if has_opt(self.worker.context.plan) else None)
