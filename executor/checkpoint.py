"""Checkpoints in the form of torch.distributed.checkpoint, by the unsplit model's names.

Each rank writes and reads what it holds: parameters and buffers under ``model.NAME``, what its optimizer keeps under
``optimizer.state.NAME.KEY`` (as torch's flattened optimizer states), the number of steps under ``steps``. So what was
saved under one cut is loaded under another, or by a plain loop. Leaves out schedules of the learning rate, which follow
from the number of steps, and other values of the optimizer than tensors.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from costmodel.errors import DoesNotMatch
from executor.state import own_state
from executor.worker import Worker


def save(worker: Worker, folder: str | Path, optimizer: torch.optim.Optimizer | None, group: Any) -> None:
    """Write what this rank holds into a folder; collective."""
    worker.averages.agree()
    dcp_save(_state(worker, optimizer), checkpoint_id=folder, process_group=group, no_dist=worker.company.size == 1)


def load(worker: Worker, folder: str | Path, optimizer: torch.optim.Optimizer | None, group: Any) -> int:
    """Read what this rank holds from a folder, in place; returns the number of steps; collective.

    Raises
    ------
    DoesNotMatch
        When the checkpoint lacks something or has it in another shape.
    """
    if optimizer is not None:
        _start_states(optimizer)
    state = _state(worker, optimizer)
    try:
        dcp_load(state, checkpoint_id=folder, process_group=group, no_dist=worker.company.size == 1)
    except (RuntimeError, ValueError, KeyError, CheckpointException) as error:
        reasons = getattr(error, "failures", {}).values()
        reason = next((str(failure[0]) for failure in reasons), str(error)).strip().split("\n")[0]
        raise DoesNotMatch(f"the checkpoint {folder} does not fit this model and optimizer: {reason}") from None
    worker.draws.step = int(state["steps"])
    return worker.draws.step


def _state(worker: Worker, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return what this rank holds, by name; the tensors themselves."""
    own = own_state(worker)
    state: dict[str, Any] = {f"model.{name}": own[name] for name in own if name in worker.keys}
    names = {id(parameter): name for name, parameter in worker.parameters.items()}
    for parameter, kept in optimizer.state.items() if optimizer is not None else ():
        for key, value in kept.items():
            if isinstance(value, torch.Tensor) and id(parameter) in names:
                state[f"optimizer.state.{names[id(parameter)]}.{key}"] = value
    state["steps"] = torch.tensor(worker.draws.step)
    return state


def _start_states(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer make what it keeps, by a step of rate 0 along gradients of 0."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if all(parameter in optimizer.state for parameter in parameters):
        return
    rates, gradients = [group["lr"] for group in optimizer.param_groups], [p.grad for p in parameters]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
