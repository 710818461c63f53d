"""A user's model as the program that its stages are cut from, and what its code does beside the program.

It is captured whole where it was built, since all ranks must find the same operators in it; then the program is aimed
at the rank's device. What a captured program cannot follow (buffers put in another's place, draws from Python's random
numbers, another computation each time) is refused. Leaves out parameters, which stay where they are (`holding`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.attributes import Attributes, Change
from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.capture import Capture, capture
from costmodel.capture.digests import program_digests
from costmodel.capture.drawing import random_states
from costmodel.errors import DoesNotMatch

_OWN = frozenset(vars(nn.Module()))
"""Names that every module has."""


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

    with _around_forwards(module, begin, end):
        yield replaced, moved


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


@contextmanager
def noting_kept(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Yield (module, attribute) of what forwards of the model keep on its modules within the block."""
    before: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    found: dict[tuple[str, str], None] = {}
    yielded: list[tuple[str, str]] = []

    def begin(*_: object) -> None:
        before[:] = [(path, vars(inner), dict(vars(inner))) for path, inner in module.named_modules()]

    def end(*_: object) -> None:
        for path, now, then in before:
            for name, value in now.items():
                tensors = (torch.is_tensor(leaf) for leaf in pytree.tree_leaves(value))
                if value is not then.get(name, found) and name not in _OWN and any(tensors):
                    found[path, name] = None
        yielded[:] = list(found)

    with _around_forwards(module, begin, end):
        yield yielded


@contextmanager
def _around_forwards(module: nn.Module, begin: Callable[..., None], end: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _built_on(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
