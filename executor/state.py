"""State in the unsplit model's names: what one plan saved, another plan or the plain model can load.

Parameters, buffers and optimizer state by parameter. Each rank knows its own stages'; rank 0 can put all
together. Leaves out files: what to write where is the user's.
"""

import io
from collections.abc import Mapping
from typing import Any

import torch

from costmodel.errors import DoesNotMatch
from executor.parallel import fill, full
from executor.worker import Worker


def own_state(worker: Worker) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that this rank holds, by their first names in the model."""
    return {name: tensor.detach() for name, tensor in (worker.own | worker.spare).items()}


def gathered_state(worker: Worker, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return all ranks' entries together on rank 0, nothing elsewhere; collective.

    Of an entry that several ranks have, the lowest rank's counts.
    """
    buffer = io.BytesIO()
    torch.save(dict(own), buffer)
    rows = worker.company.tell_first(buffer.getvalue())
    found: dict[str, Any] = {}
    for row in reversed(rows or []):
        found |= torch.load(io.BytesIO(row), weights_only=True, map_location="cpu")
    return found


def whole_state(worker: Worker) -> dict[str, torch.Tensor]:
    """Return the unsplit model's ``state_dict`` on rank 0, an empty one elsewhere; collective.

    What no stage reads is what rank 0 was given.
    """
    worker.averages.agree()
    found = gathered_state(worker, {name: full(tensor) for name, tensor in own_state(worker).items()})
    if worker.rank:
        return {}
    model = worker.capture.model.module.state_dict()  # what is no parameter or buffer is there alone
    whole = {key: found[name] if name in found else model[key] for key, name in worker.keys.items()}
    return {key: value.detach().cpu() if isinstance(value, torch.Tensor) else value for key, value in whole.items()}


def load_state(worker: Worker, state: Mapping[str, torch.Tensor]) -> None:
    """Fill this rank's parameters and buffers from an unsplit model's ``state_dict`` or a part of it.

    What no stage reads rank 0 takes where it is there, as `whole_state` saves it.

    Raises
    ------
    DoesNotMatch
        When one that this rank's stages read is missing, or one has another shape.
    """
    own = {name: tensor for name, tensor in worker.own.items() if name in worker.keys}  # others no checkpoint holds
    unread = {name: tensor for name, tensor in worker.spare.items() if name in state}
    for name, tensor in (own | unread).items():
        if name not in state:
            raise DoesNotMatch(f"the state holds no {name!r}, which rank {worker.rank} needs")
        if state[name].shape != tensor.shape:
            raise DoesNotMatch(
                f"{name!r} has the shape {list(state[name].shape)} in the state and {list(tensor.shape)} in the model"
            )
        fill(tensor.detach(), state[name])


def optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state by parameter name on rank 0, nothing elsewhere; collective."""
    names = {id(parameter): name for name, parameter in worker.parameters.items()}
    own = {
        names[id(p)]: {key: full(v) if isinstance(v, torch.Tensor) else v for key, v in state.items()}
        for p, state in optimizer.state.items()
        if id(p) in names
    }
    return gathered_state(worker, own)


def load_optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer over this rank's parameters its part of a state by parameter name."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in worker.parameters.items():
        if name in state and id(parameter) in stepped:
            optimizer.state[parameter] = {
                key: _like(parameter, value) if isinstance(value, torch.Tensor) else value
                for key, value in state[name].items()
            }


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a value that an optimizer keeps, where and as its parameter is; numbers stay on the host."""
    if not value.dim():
        return value.to("cpu").clone()
    if value.shape != parameter.shape:
        return value.to(parameter.device).clone()
    found = torch.empty_like(parameter, dtype=value.dtype).detach()
    fill(found, value)
    return found
