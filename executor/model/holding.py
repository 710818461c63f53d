"""What a rank holds of the model: the parameters and buffers that its stages read, on its device, and no others.

A model is captured whole where it was built, since all ranks must find the same operators in it. Then its program is
aimed at the rank's device, what the rank's stages read is moved there tensor by tensor, and everything else is emptied
in place (shape [0]), so that whoever refers to it lets go of its memory too. What no stage reads stays with rank 0,
which saves it. A model built on `meta` never had any values: those of the rank's part alone are made (`meta_init`).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from costmodel.capture.attributes import Attributes, Change
from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.capture import Capture, capture
from costmodel.capture.digests import program_digests
from costmodel.capture.drawing import random_states
from costmodel.capture.heap import return_freed_memory
from costmodel.capture.shapes import fetch
from costmodel.errors import DoesNotMatch, UsageError
from costmodel.model.graph import LOSS
from executor.context import RankContext
from executor.model.meta_init import Values, with_values

Tensors = dict[int, torch.Tensor]
"""Tensors by their id: parameters of one model, once each."""


def capture_where_built(model: TrainingModel, microbatch_size: int, values_follow: bool) -> Capture:
    """Capture a model on the device of its parameters, without moving them.

    Raises
    ------
    DoesNotMatch
        When a parameter has no values: it is on `meta` and none follow, or another pipeline has emptied it.
    """
    for name, module in model.module.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise DoesNotMatch(
                f"the module {name!r} is a SyncBatchNorm, which takes its averages over all processes, those of other "
                "stages and micro-batches too: make it a BatchNorm, whose averages are a micro-batch's, or a GroupNorm"
            )
    for name, parameter in model.module.named_parameters():
        emptied = parameter.shape == (0,)  # as `drop_unowned` leaves it; a user's own may have no elements, too
        if parameter.is_meta is not values_follow or emptied:
            raise DoesNotMatch(
                f"the parameter {name!r} has values already: values= is for a model that was built on meta"
                if values_follow and not emptied
                else f"the parameter {name!r} has no values: the model was built on meta, or a pipeline has taken it "
                "and kept this rank's part alone; build the model anew for each pipeline, or give values="
            )
    return capture(move(model, _built_on(model.module)), microbatch_size)


def capture_surely(model: TrainingModel, microbatch_size: int, values_follow: bool) -> tuple[Capture, Attributes]:
    """Capture a model where it was built, and what its code reads beside parameters; refuse what moves meanwhile.

    What a forward changes of that is harmless where a second capture gives the same program: it is looked at no more.

    Raises
    ------
    DoesNotMatch
        When the model draws from Python's or numpy's random numbers, or computes something else each time.
    """
    before, drawn = Attributes(model.module), random_states()
    with _told_of_forwards(model.module, before) as (replaced, moved):
        captured = capture_where_built(model, microbatch_size, values_follow)
    if replaced:
        raise DoesNotMatch(
            f"the model's forward puts another tensor in place of the buffer {replaced[0]!r}, which stages do not see: "
            "write into it (copy_, mul_, add_)"
        )
    now = random_states()
    drawing = [name for name, state in now.items() if state != drawn.get(name, state)] + before.drawn()
    if drawing:
        raise DoesNotMatch(
            f"the model draws from {drawing[0]} when it runs, and a captured program holds what it drew for ever (a "
            "layer that was skipped never trains): draw by torch's functions (dropout, torch.rand) on tensors, or "
            "outside of the model"
        )
    if moved:
        first = program_digests(captured)
        with before.as_moved():
            other = program_digests(capture_where_built(model, microbatch_size, values_follow))
        apart = next((name for name in {**first, **other} if first.get(name) != other.get(name)), None)
        if apart is not None:
            name, then, last = moved[0]
            raise DoesNotMatch(
                f"the model computes something else each time that it runs (first at {apart!r}), and a captured "
                f"program holds one time for ever; its own code changes {name} ({then}, then {last}): count in a "
                "tensor buffer, or outside of the model"
            )
    before.leave_out({name for name, _, _ in moved})  # what the capture itself changed, as it is now
    return captured, before


@contextmanager
def _told_of_forwards(module: nn.Module, before: Attributes) -> Iterator[tuple[list[str], list[Change]]]:
    """Within the block keep the buffers for which the latest forward has put in others, and what it has changed.

    Export puts attributes back when the forward has ended. What a capture changes around it is no change of its own.
    """
    found: dict[str, torch.Tensor] = {}
    around: set[str] = set()
    replaced: list[str] = []
    moved: list[Change] = []

    def begin(*_: object) -> None:
        found.update(module.named_buffers(remove_duplicate=False))
        around.update(name for name, _, _ in before.changed())

    def end(*_: object) -> None:
        now = dict(module.named_buffers(remove_duplicate=False))
        replaced[:] = [name for name, buffer in found.items() if now.get(name) is not buffer]
        moved[:] = [row for row in before.changed() if row[0] not in around]

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield replaced, moved
    finally:
        for handle in handles:
            handle.remove()


def aimed_at(captured: Capture, device: torch.device) -> Capture:
    """Return a capture whose program makes its tensors on a device, to which parameters are still to move."""
    origin = _built_on(captured.model.module)
    if origin == device:
        return captured

    def aim(argument: Any) -> Any:
        if isinstance(argument, torch.device):
            return device if argument.type == origin.type else argument
        return device.type if isinstance(argument, str) and argument == origin.type else argument  # autocast's

    for module in captured.program.module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                node.args = fx.node.map_aggregate(node.args, aim)
                node.kwargs = fx.node.map_aggregate(node.kwargs, aim)
            module.recompile()
    return replace(captured, model=replace(captured.model, device=device))


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


def _built_on(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
