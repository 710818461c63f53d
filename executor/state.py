"""State in the unsplit model's names: what one plan saved, another plan or the plain model can load.

Parameters, buffers and optimizer state by parameter. Each rank knows its own stages'; rank 0 can put all
together. Leaves out files: what to write where is the user's.
"""

import io
from collections.abc import Mapping
from typing import Any

import torch

from costmodel.errors import DoesNotMatch
from costmodel.profiling.shapes import fetch
from executor.measure import gather_bytes
from executor.worker import Worker


def own_state(worker: Worker) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of this rank's stages, by their first names in the model."""
    module = worker.capture.model.module
    named = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    found = {}
    for stage in worker.stages.values():
        for node in stage.part.module.graph.nodes:
            if node.op == "get_attr":
                tensor = fetch(stage.part.module, node.target)
                if id(tensor) in named:
                    found[named[id(tensor)]] = tensor
    found |= {name: worker.capture.parameter(name) for names in worker.read.values() for name in names}
    return {name: tensor.detach() for name, tensor in found.items()}


def gathered_state(worker: Worker, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return all ranks' entries together on rank 0, nothing elsewhere; collective.

    Of an entry that several ranks have, the lowest rank's counts.
    """
    buffer = io.BytesIO()
    torch.save(dict(own), buffer)
    rows = gather_bytes(buffer.getvalue(), worker.rank, len(worker.plan.orders))
    found: dict[str, Any] = {}
    for row in reversed(rows or []):
        found |= torch.load(io.BytesIO(row), weights_only=True, map_location="cpu")
    return found


def whole_state(worker: Worker) -> dict[str, torch.Tensor]:
    """Return the unsplit model's ``state_dict`` on rank 0, an empty one elsewhere; collective.

    What no stage reads is rank 0's own copy.
    """
    found = gathered_state(worker, own_state(worker))
    if worker.rank:
        return {}
    module = worker.capture.model.module
    first = {id(tensor): name for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    whole = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        held = found.get(first.get(id(tensor), name), tensor)
        whole[name] = held.detach().cpu() if isinstance(held, torch.Tensor) else held
    return whole


def load_state(worker: Worker, state: Mapping[str, torch.Tensor]) -> None:
    """Fill this rank's parameters and buffers from an unsplit model's ``state_dict`` or a part of it.

    What none of its stages reads is taken where it is there: `whole_state` gives rank 0's copy of what no stage reads.

    Raises
    ------
    DoesNotMatch
        When one that this rank's stages read is missing, or one has another shape.
    """
    held = worker.capture.model.module.state_dict()  # without the buffers that no checkpoint holds
    own = {name: tensor for name, tensor in own_state(worker).items() if name in held}
    others = {name: tensor for name, tensor in held.items() if name in state and isinstance(tensor, torch.Tensor)}
    for name, tensor in (others | own).items():
        if name not in state:
            raise DoesNotMatch(f"the state holds no {name!r}, which rank {worker.rank} needs")
        if state[name].shape != tensor.shape:
            raise DoesNotMatch(
                f"{name!r} has the shape {list(state[name].shape)} in the state and {list(tensor.shape)} in the model"
            )
        tensor.copy_(state[name])


def optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state by parameter name on rank 0, nothing elsewhere; collective."""
    names = {id(parameter): name for name, parameter in worker.parameters.items()}
    own = {names[id(p)]: dict(state) for p, state in optimizer.state.items() if id(p) in names}
    return gathered_state(worker, own)


def load_optimizer_state(worker: Worker, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer over this rank's parameters its part of a state by parameter name."""
    for name, parameter in worker.parameters.items():
        if name in state:
            optimizer.state[parameter] = {
                key: value.to(parameter.device if value.dim() else "cpu").clone()
                if isinstance(value, torch.Tensor)
                else value
                for key, value in state[name].items()
            }
