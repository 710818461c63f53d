"""What a rank holds of the model: the parameters and buffers that its stages read, on its device, and no others.

What the rank's stages read is moved there tensor by tensor, and everything else is emptied in place (shape [0]), so
that whoever refers to it lets go of its memory too. What no stage reads stays with rank 0, which saves it. A model
built on `meta` never had any values: those of the rank's part alone are made (`meta_init`). Leaves out how a model
becomes a program (`capturing`).
"""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import fx, nn

from costmodel.capture.capture import Capture
from costmodel.capture.heap import return_freed_memory
from costmodel.capture.shapes import fetch
from costmodel.errors import UsageError
from costmodel.model.graph import LOSS
from executor.context import RankContext
from executor.model.meta_init import Values, with_values

Tensors = dict[int, torch.Tensor]
"""Tensors by their id: parameters of one model, once each."""


def tensors_read(captured: Capture, operators: Iterable[str]) -> Tensors:
    """Return the parameters, buffers and constants that a part of these operators reads."""
    chosen = set(operators)
    inside = {node for name in chosen - {LOSS} for node in captured.groups[name].nodes}
    waiting = [*inside, *(leaf for leaf in captured.outputs if LOSS in chosen and isinstance(leaf, fx.Node))]
    seen: set[fx.Node] = set()
    found: Tensors = {}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "get_attr":
            value = fetch(captured.program.module, node.target)
            found |= {id(value): value} if isinstance(value, torch.Tensor) else {}
        elif node in inside or node in captured.replicated:
            waiting += node.all_input_nodes
    return found


def hold(context: RankContext, values: Values | None, keeps_model: bool) -> tuple[Tensors, Tensors]:
    """Take what a rank's stages read to its device, or give it its values there; let go of all else, or keep the model.

    Returns
    -------
    (dict, dict)
        What the stages read, and what no stage reads (on rank 0; on others nothing).
    """
    captured, holders = context.capture, holders_of_tensors(context)
    module, own = captured.model.module, Tensors()
    for stage in context.plan.stages:
        own |= tensors_read(captured, stage.operators) if context.rank in stage.ranks else {}
    unread = {key: t for key, t in named_tensors(module).items() if key not in holders} if context.rank == 0 else {}
    if values is not None or not keeps_model:
        refuse_state_dict(module)
    if values is not None:  # what several ranks hold the lowest reads
        read = {key for key in own if holders[key][0] == context.rank} | set(unread)
        own = with_values(captured, own, read, values, context.device)
        unread = with_values(captured, unread, read, values, torch.device("cpu"))
    elif not keeps_model:
        drop_unowned(captured, own, unread, context.device)
    return own, unread


def copies_start_alike(context: RankContext) -> None:
    """Give each parameter and buffer that several ranks hold the values of the lowest of them; collective.

    A user's seed may differ from rank to rank.
    """
    holders, groups = holders_of_tensors(context), context.groups
    for key, tensor in named_tensors(context.capture.model.module).items():
        ranks = holders.get(key, ())
        if len(ranks) > 1 and context.rank in ranks:
            value = tensor.detach().contiguous()
            with groups.waiting(ranks):
                groups.group_on(ranks).broadcast(value, 0).wait()
            if not tensor.is_contiguous() and tensor.untyped_storage().nbytes() >= value.nbytes:  # else it is expanded
                tensor.data.copy_(value)


def holders_of_tensors(context: RankContext) -> dict[int, tuple[int, ...]]:
    """Return the ranks whose stages read each tensor, rising."""
    holders: dict[int, set[int]] = {}
    for stage in context.plan.stages:
        for key in tensors_read(context.capture, stage.operators):
            holders.setdefault(key, set()).update(stage.ranks)
    return {key: tuple(sorted(ranks)) for key, ranks in holders.items()}


def named_tensors(module: nn.Module) -> Tensors:
    """Return a model's parameters and buffers."""
    return {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}


def by_name(module: nn.Module, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return a model's parameters and buffers that are among some tensors, by their first names."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in named if id(tensor) in tensors}


def state_keys(module: nn.Module) -> dict[str, str]:
    """Return the keys of a model's ``state_dict``, and the first name of the parameter or buffer that stands there."""
    first = {id(tensor): name for name, tensor in by_name(module, named_tensors(module)).items()}
    return {key: first.get(id(value), key) for key, value in module.state_dict(keep_vars=True).items()}


def refuse_state_dict(module: nn.Module) -> None:
    """Let `state_dict` of a model and its parts refuse once another rank's tensors are gone from it."""
    for name, part in module.named_modules():
        own = {**part._parameters, **part._buffers}
        shapes = {key: tensor.shape for key, tensor in own.items() if tensor is not None}
        if shapes:
            part.register_state_dict_pre_hook(partial(_refuse_emptied, shapes, name))


def _refuse_emptied(
    shapes: Mapping[str, torch.Size], path: str, part: nn.Module, prefix: str, keeps_variables: bool
) -> None:
    if keeps_variables:  # who asks for the very tensors does not save them
        return
    for name, shape in shapes.items():
        now = part._parameters.get(name, part._buffers.get(name))
        if now is not None and (now.shape != shape or now.is_meta):
            raise UsageError(
                f"{f'{path}.{name}'.lstrip('.')!r} is not in this model any more: a pipeline has taken the model, and "
                "this rank holds its own stages' parameters alone: take pipe.state_dict() (all ranks together), or "
                "pipe.save(folder)"
            )


def drop_unowned(captured: Capture, own: Tensors, unread: Tensors, device: torch.device) -> None:
    """Move a rank's tensors to its device, one after the other, and empty all that it neither reads nor saves."""
    everything = named_tensors(captured.model.module) | tensors_read(captured, captured.operators)
    for key, tensor in everything.items():
        tensor.grad = None
        if key in own:
            tensor.data = tensor.data.to(device)
        elif key not in unread:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=device)
    return_freed_memory()
