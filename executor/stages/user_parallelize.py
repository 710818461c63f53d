"""`parallelize=`: the user's own function divides a stage, as torchtitan's does, and what it did is held to the plan.

It is given a stage as a model of its own class (`costmodel.capture.views`), the mesh of the stage's ranks, and the
plan's configuration. Plain `parallelize_module`, `fully_shard`, `checkpoint_wrapper` and `torch.compile` are its calls.
Leaves out what the stage then runs, and sequences that stay divided between stages.
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch
from costmodel.stages.config import StageConfig
from executor.context import RankContext
from executor.stages.fully_sharded import gathered

Parallelize = Callable[[nn.Module, DeviceMesh, StageConfig], nn.Module | None]
AXES = ("replicate", "data", "tensor")
"""Dimensions of a stage's mesh, in their order; the first where shard groups are smaller than all replicas."""


class Meshes:
    """The device meshes of a rank's stages in its `context`, one for the same ranks."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self._made: dict[object, DeviceMesh] = {}

    def close(self) -> None:
        """Give up the groups, which torch's caches of meshes would keep for ever."""
        for mesh in self._made.values():
            getattr(mesh, "_pg_registry", {}).clear()  # since torch 2.12
        self._made.clear()

    def of(self, stage: int) -> DeviceMesh:
        """Return the mesh (data, tensor) of a stage of this rank, or (replicate, data, tensor); collective."""
        rank, lanes, plan = self.context.rank, self.context.lanes, self.context.plan
        blocks, size = lanes.blocks[stage], plan.stages[stage].config.shard_group
        if (blocks, size) not in self._made:
            rows = [lanes.sharers(plan, stage, rank), next(block for block in blocks if rank in block)]
            mesh = torch.tensor(blocks, dtype=torch.int)
            if size:
                rows.insert(0, lanes.across_groups(plan, stage, rank))
                mesh = mesh.view(-1, size, mesh.shape[1])
            groups = [self.context.groups.named_group(row) for row in rows]
            self._made[blocks, size] = DeviceMesh.from_group(
                groups, self.context.device.type, mesh, mesh_dim_names=AXES[-mesh.dim() :]
            )
        return self._made[blocks, size]


def divide(
    view: nn.Module, mesh: DeviceMesh, part: Part, config: StageConfig, call: Parallelize, place: str
) -> nn.Module:
    """Let the user's function divide a stage, and hold what it did against the plan; returns the stage.

    Raises
    ------
    DoesNotMatch
        When a degree of the plan is not there, one is beyond it, or parameters are not what they were.
    """
    before = {name: (p.shape, p.requires_grad) for name, p in named_parameters(view).items()}
    found = call(view, mesh, config)
    problem = (
        "parallelize= has returned another module; change the one that it is given"
        if found is not None and found is not view
        else _changed(view, before) or _missing_degree(view, config) or _torn(view, part)
    )
    if problem:
        raise DoesNotMatch(f"{place}: {problem}")
    return view


def _changed(stage: nn.Module, before: Mapping[str, tuple[torch.Size, bool]]) -> str:
    """Return which parameter or buffer is not what it was; nothing where only placements are others."""
    after = named_parameters(stage)
    for name, (shape, trains) in before.items():
        if name not in after or (after[name].shape, after[name].requires_grad) != (shape, trains):
            how = f"with the shape {list(after[name].shape)}, not {list(shape)}" if name in after else "nowhere"
            return f"parallelize= has left the parameter {name!r} {how}"
    for name in after:
        if name not in before:
            return f"parallelize= has made the parameter {name!r}, which would not be trained (tied ones come apart so)"
    for name, buffer in stage.named_buffers():
        if isinstance(buffer, DTensor):
            return f"parallelize= has divided the buffer {name!r}, which the executor keeps whole"
    return ""


def _missing_degree(stage: nn.Module, config: StageConfig) -> str:
    """Return which degree of the plan a stage lacks, or has beyond it; nothing where it has just those."""
    parameters = named_parameters(stage)
    divided = {name: axes_of(parameter) for name, parameter in parameters.items()}
    if config.tensor > 1 and not any("tensor" in axes for axes in divided.values()):
        return f"the plan has tensor = {config.tensor}, and parallelize= has divided no parameter along mesh['tensor']"
    sharded = gathered(stage)
    if config.zero <= 1 and sharded:
        return f"the plan has ZeRO-{config.zero}, and parallelize= has called fully_shard"
    experts = [name for name, axes in divided.items() if "data" in axes and id(parameters[name]) not in sharded]
    among_replicas = config.num_expert_parts > config.tensor
    if experts and not among_replicas:
        return f"parallelize= has divided {experts[0]!r} along mesh['data'] without fully_shard"
    if among_replicas and not experts:
        return f"the plan has expert = {config.expert}, and parallelize= has divided no experts along mesh['data']"
    for name in experts:
        if (parts := num_parts(parameters[name])) != config.num_expert_parts:
            return (
                f"the plan has expert = {config.expert} and expert_tensor = {config.expert_tensor}, and parallelize= "
                f"has divided {name!r} into {parts} parts, not {config.num_expert_parts}"
            )
    whole = [
        name
        for name, axes in divided.items()
        if "data" not in axes and parameters[name].requires_grad and parameters[name].dim()
    ]
    if config.zero > 1 and config.data > 1 and whole:
        return (
            f"the plan has ZeRO-{config.zero}, and parallelize= has not divided {whole[0]!r} along mesh['data']: call "
            "fully_shard on the stage itself, too"
        )
    return ""


def _torn(stage: nn.Module, part: Part) -> str:
    """Return which divided module a cut goes through, so that nothing calls it; nothing where none is."""
    for path in _sharded_but_not_called(stage, part):
        return (
            f"parallelize= has called fully_shard on {path!r}, which the stage does not call ({_why(part, path)}), so "
            "that nothing gathers its parameters: cut between blocks, or leave it to the stage's own fully_shard"
        )
    sharded = gathered(stage)
    for name, parameter in named_parameters(stage).items():
        block = _torn_block(part, name)
        in_use = set(axes_of(parameter)) - ({"data"} if id(parameter) in sharded else set())
        if in_use and (name in part.read or block):
            owner = block or name.rpartition(".")[0]
            return (
                f"parallelize= has divided {name!r}, and the stage does not call {owner!r} whole "
                f"({_why(part, owner)}): cut between blocks, or leave that one whole"
            )
    return ""


def _why(part: Part, path: str) -> str:
    return part.left.get(path, "what goes into it is hidden, or it recomputes by itself")


def _sharded_but_not_called(view: nn.Module, part: Part) -> list[str]:
    """Return the modules that gather their parameters when they are called, and are not."""
    paths = [_plain(path) for path, module in view.named_modules() if isinstance(module, FSDPModule) and path]
    return [path for path in paths if not part.calls_module(path)]


def _torn_block(part: Part, name: str) -> str:
    """Return the numbered block (a layer) around a parameter, unless the stage calls it whole."""
    words = name.split(".")
    number = next((i for i, word in enumerate(words) if word.isdigit()), None)
    if number is None:
        return ""
    block = ".".join(words[: number + 1])
    return "" if part.calls_module(block) else block


def check_split(view: nn.Module, place: str) -> None:
    """Refuse modules that a split backward cannot go into: they run again, or were compiled, without its halves.

    Raises
    ------
    DoesNotMatch
    """
    for name, module in view.named_modules():
        compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if compiled or isinstance(module, CheckpointWrapper):
            raise DoesNotMatch(
                f"{place}: the plan splits its backward, and parallelize= has {'compiled' if compiled else 'wrapped'} "
                f"{_plain(name)!r}{'' if compiled else ' to run again'}: plan with a --schedule of whole backwards"
            )


def axes_of(parameter: torch.Tensor) -> tuple[str, ...]:
    """Return the dimensions of its mesh along which a parameter is divided; none for one that is whole."""
    if not isinstance(parameter, DTensor):
        return ()
    names = parameter.device_mesh.mesh_dim_names or ()
    return tuple(name for name, placed in zip(names, parameter.placements, strict=True) if not placed.is_replicate())


def num_parts(parameter: torch.Tensor) -> int:
    """Return into how many parts a parameter is divided."""
    if not isinstance(parameter, DTensor):
        return 1
    placed = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
    return prod(size for size, placement in placed if not placement.is_replicate())


_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.")


def named_parameters(view: nn.Module) -> Mapping[str, nn.Parameter]:
    """Return a stage's parameters by the model's names, whatever modules stand around others."""
    return {_plain(name): parameter for name, parameter in view.named_parameters()}


def _plain(name: str) -> str:
    for word in _WRAPPED:
        name = f"{name}.".replace(word, "").removesuffix(".")
    return name


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_place(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where what this rank holds of a tensor begins in the whole one, and its shape."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(start), tuple(shape)


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Sum what gradients hold as parts of a sum, so that each is placed as its parameter is; collective over lanes."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if isinstance(parameter, DTensor) and gradient is not None and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor; collective over the ranks that hold parts of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Fill a tensor, of which this rank may hold a part, with the values of the whole one."""
    if isinstance(tensor, DTensor):
        placed = distribute_tensor(
            values.to(tensor.device, tensor.dtype), tensor.device_mesh, tensor.placements, src_data_rank=None
        )
        tensor.to_local().copy_(placed.to_local())
    else:
        tensor.copy_(values)
