"""State in the unsplit model's names: what one plan saved, another plan or the plain model can load.

Parameters, buffers and optimizer state by parameter. Each rank knows its own stages'; rank 0 can put all
together. Leaves out files: what to write where is the user's.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from costmodel.errors import DoesNotMatch
from executor.communication.groups import ProcessGroups
from executor.model.tensor_file import NAMES, TYPES
from executor.stages.user_parallelize import fill, full
from executor.state.plain_values import decode, encode
from executor.worker import Worker


def own_state(worker: Worker) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that this rank holds, by their first names in the model."""
    return {name: tensor.detach() for name, tensor in (worker.own | worker.spare).items()}


def modules_with_extra_state(worker: Worker) -> list[tuple[str, nn.Module]]:
    """Return the model's modules that keep more than tensors (`get_extra_state`), by their paths."""
    modules = worker.capture.model.module.named_modules()
    return [(path, m) for path, m in modules if type(m).get_extra_state is not nn.Module.get_extra_state]


def gathered_state(worker: Worker, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return all ranks' entries together on rank 0, nothing elsewhere; collective.

    Of an entry that several ranks have, the lowest rank's counts. Tensors travel one by one, so that rank 0 holds each
    once.
    """
    groups, rank, tensors = worker.context.groups, worker.context.rank, dict[str, torch.Tensor]()

    def keep(place: str, tensor: torch.Tensor) -> str:
        tensors[place] = tensor
        return place

    values = {name: encode(value, name, keep) for name, value in own.items()}
    described = [[name, list(t.shape), NAMES[t.dtype]] for name, t in tensors.items()]
    rows = [json.loads(row) for row in groups.all_gather_bytes(json.dumps([list(values), described]).encode())]
    entries = groups.gather_bytes(json.dumps(values).encode())
    arrived: dict[str, torch.Tensor] = {}
    told: set[str] = set()
    for owner, (_, described) in enumerate(rows):
        for name, shape, dtype in described:
            if name in tensors:  # every rank that holds a part of it
                tensor = full(tensors[name])
            if name in told:
                continue
            told.add(name)
            if rank == 0:
                arrived[name] = tensor.detach().cpu().clone() if owner == 0 else torch.empty(shape, dtype=TYPES[dtype])
            if owner and rank in (0, owner):
                _hand_over(groups, owner, arrived[name] if rank == 0 else tensor.detach().cpu())
    found: dict[str, Any] = {}
    for row in reversed(entries or []):
        found |= json.loads(row)
    return {name: decode(value, arrived.__getitem__) for name, value in found.items()}


def _hand_over(groups: ProcessGroups, owner: int, tensor: torch.Tensor) -> None:
    """Send a tensor from its owner to rank 0, which fills its own, as bytes: whatever its type."""
    if not tensor.numel():
        return
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    with groups.waiting((0 if groups.rank else owner,)):
        (groups.control.send([flat], 0, 0) if groups.rank else groups.control.recv([flat], owner, 0)).wait()


def whole_state(worker: Worker) -> dict[str, Any]:
    """Return the unsplit model's ``state_dict`` on rank 0, an empty one elsewhere; collective.

    What no stage reads is what rank 0 was given.
    """
    worker.averages.agree()
    found = gathered_state(worker, own_state(worker))
    if worker.context.rank:
        return {}
    extra = {f"{path}.".lstrip(".") + "_extra_state": m for path, m in modules_with_extra_state(worker)}
    return {
        key: extra[key].get_extra_state() if key in extra else found[name]
        for key, name in worker.keys.items()
        if key in extra or name in found
    }


def load_state(worker: Worker, state: Mapping[str, torch.Tensor]) -> None:
    """Fill this rank's parameters and buffers from an unsplit model's ``state_dict`` or a part of it.

    What no stage reads rank 0 takes where it is there, as `whole_state` saves it.

    Raises
    ------
    DoesNotMatch
        When one that this rank's stages read is missing, or one has another shape; nothing is changed then.
    """
    own = {name: tensor for name, tensor in worker.own.items() if name in worker.keys}  # others no checkpoint holds
    unread = {name: tensor for name, tensor in worker.spare.items() if name in state}
    for name, tensor in (own | unread).items():
        if name not in state:
            raise DoesNotMatch(f"the state holds no {name!r}, which rank {worker.context.rank} needs")
        if state[name].shape != tensor.shape:
            raise DoesNotMatch(
                f"{name!r} has the shape {list(state[name].shape)} in the state and {list(tensor.shape)} in the model"
            )
    for name, tensor in (own | unread).items():
        fill(tensor.detach(), state[name])
    worker.averages.restart()


def optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state by parameter name on rank 0, nothing elsewhere; collective."""
    names = {id(parameter): name for name, parameter in worker.parameters.items()}
    return gathered_state(worker, {names[id(p)]: dict(state) for p, state in optimizer.state.items() if id(p) in names})


def load_optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer over this rank's parameters its part of a state by parameter name; collective.

    Raises
    ------
    RefusedAlike
        When a rank was given nothing for its parameters, and another rank was.
    """
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {name: parameter for name, parameter in worker.parameters.items() if id(parameter) in stepped}
    there = own.keys() & state.keys()
    groups, rank = worker.context.groups, worker.context.rank
    rows = groups.all_gather_bytes(b"something" if there else b"")
    with groups.refusing_alike():
        if own and not there and any(rows):
            raise DoesNotMatch(
                f"the optimizer's state has nothing for the parameters of rank {rank}, and for those of other "
                "ranks it has: optimizer_state_dict() is whole on rank 0 alone; give every rank all of it"
            )
    for name in there:
        optimizer.state[own[name]] = {
            key: _like(own[name], value) if isinstance(value, torch.Tensor) else value
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
