"""A rank's stages as they are divided: by the user's function, or without one by what the plan and the model say.

Then tensor degrees divide the pairs of linear layers that the model has (`costmodel.capture.pairs`), by torch's
`parallelize_module`, and under ZeRO-2 and 3 each unit of the plan is a `fully_shard` of torch's, and so is the stage
around them. Leaves out what a function may do (`user_parallelize`), and sums (`fully_sharded`, `reduction`).
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from costmodel.capture.capture import Capture
from costmodel.capture.pairs import LinearPair
from costmodel.capture.parts import Part
from costmodel.capture.views import view_of
from costmodel.errors import DoesNotMatch
from costmodel.model.blocks import block_of
from costmodel.stages.config import StageConfig
from executor.communication.borders import check_outcome, outcome
from executor.context import RankContext
from executor.stages.fully_sharded import ShardedStage
from executor.stages.shard_group_sums import ShardGroupSums
from executor.stages.stage import Stage
from executor.stages.stage_builder import StageBuilder
from executor.stages.user_parallelize import Meshes, Parallelize, check_split, divide, named_parameters
from planner.plan import PlanStage


class DividedStages:
    """The stages of one rank as views whose modules are divided.

    Parameters
    ----------
    context : RankContext
    builder : StageBuilder
    parallelize : callable or None
        The user's function, which is given every stage; without one stages are divided that the plan divides.
    pairs : sequence of LinearPair
        Of the model's linear layers, as far as the plan has tensor degrees.

    Attributes
    ----------
    views : dict of int to torch.nn.Module
        Of the stages that are divided, or may be.
    """

    def __init__(
        self,
        context: RankContext,
        builder: StageBuilder,
        parallelize: Parallelize | None,
        pairs: Sequence[LinearPair],
    ) -> None:
        self._context, self._builder, self._parallelize, self._pairs = context, builder, parallelize, pairs
        self.views: dict[int, nn.Module] = {}
        self._sharded: dict[int, ShardedStage] = {}

    @property
    def any(self) -> bool:
        """Whether the plan divides any stage, on whatever rank."""
        return any(stage.config.divides for stage in self._context.plan.stages)

    @property
    def may_be(self) -> bool:
        """Whether any stage may be divided."""
        return self._parallelize is not None or self.any

    def divide(
        self, stages: Mapping[int, Stage], meshes: Meshes
    ) -> Iterator[tuple[int, Stage, dict[str, nn.Parameter]]]:
        """Yield each stage that is divided, made anew, with its parameters as they are now; collective.

        What the plan's tensor degree divides must compute the same.

        Raises
        ------
        DoesNotMatch
        """
        capture, device = self._context.capture, self._context.device
        for index, stage in stages.items():
            planned, place = self._context.plan.stages[index], f"stage {index}"
            if self._parallelize is None and not planned.config.divides:
                continue
            part = self._builder.part(index, with_modules=True)
            view = view_of(part)
            _without_unread(view, capture, part)
            names = {name: capture.name_of[id(p)] for name, p in named_parameters(view).items()}
            proves = self._parallelize is None and planned.config.tensor > 1
            first = self._context.microbatches_of(index)[0]
            before = outcome(stage, first, device) if proves else {}
            function = self._parallelize or partial(self._as_planned, part=part, planned=planned, place=place)
            divide(view, meshes.of(index), part, planned.config, function, place)
            if stage.queue is not None:
                check_split(view, place)
            self.views[index] = view
            made = self._builder.stage(index, view)
            if planned.config.zero > 1:
                among = ShardGroupSums(meshes.context, index)
                self._sharded[index] = ShardedStage(view, planned, among, splits=stage.queue is not None)
                made.run_halves = self._sharded[index].run_halves
            if proves:
                check_outcome(before, _outcome(made, first, device, place), place)
                self.rest()
            yield index, made, {names[name]: parameter for name, parameter in named_parameters(view).items()}

    def _as_planned(
        self, stage: nn.Module, mesh: DeviceMesh, config: StageConfig, *, part: Part, planned: PlanStage, place: str
    ) -> None:
        if config.tensor > 1:
            parallelize_module(stage, mesh["tensor"], self._styles(part, config.tensor, planned, place))
        if config.gathers:
            _in_units(stage, mesh, part, planned.units, place)

    def _styles(self, part: Part, degree: int, planned: PlanStage, place: str) -> dict[str, ParallelStyle]:
        """Return how each linear layer of the pairs that a stage calls is divided."""
        groups, inside = self._context.capture.groups, set(planned.operators)
        styles: dict[str, ParallelStyle] = {}
        for pair in self._pairs:
            paths = [groups[name].module for name in (*pair.columns, pair.row)]
            if {*pair.columns, *pair.inner, pair.row} <= inside and part.calls_module(block_of(paths[-1])):
                if pair.parts % degree:
                    raise DoesNotMatch(
                        f"{place} has tensor = {degree}, and {paths[-1]!r} with the layers before it is known to "
                        f"divide into {pair.parts} parts at most: plan with another --tensor"
                    )
                styles |= {path: ColwiseParallel() for path in paths[:-1]} | {paths[-1]: RowwiseParallel()}
        if not styles:
            raise DoesNotMatch(
                f"{place} has tensor = {degree}, and calls no block with linear layers that divide in pairs (one layer "
                "for queries, keys and values together does not): give Pipeline parallelize=, or plan with --tensor 1"
            )
        return styles

    def begin(self) -> None:
        """Start a step."""
        for sharded in self._sharded.values():
            sharded.begin()

    def reduce(self, stages: Iterable[int]) -> None:
        """Sum what gradients of these stages are still to be summed of, once a step."""
        for stage in stages:
            if stage in self._sharded:
                self._sharded[stage].reduce()

    def finish(self) -> None:
        """Wait for what shard groups of these stages sum."""
        for sharded in self._sharded.values():
            sharded.finish()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have the views' modules in eval mode within the block, and let go of what they gather in it."""
        modules = [(module, module.training) for view in self.views.values() for module in view.modules()]
        for module, _ in modules:
            module.training = False
        yield
        for module, trains in modules:
            module.training = trains
        self.rest()

    def close(self) -> None:
        """Give up the stages, whose modules refer to the groups."""
        self._sharded.clear()
        self.views.clear()

    def rest(self) -> None:
        """Let go of what forwards without a backward have gathered."""
        for sharded in self._sharded.values():
            sharded.rest()


def _without_unread(view: nn.Module, capture: Capture, part: Part) -> None:
    """Take what no operator reads out of a view: only rank 0 has its values."""
    for module in view.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and capture.name_of[id(parameter)] not in part.parameters:
                module._parameters[name] = None


def _outcome(stage: Stage, first: int, device: torch.device, place: str) -> dict[str, torch.Tensor]:
    try:
        return outcome(stage, first, device)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise DoesNotMatch(
            f"{place}: the model's code does not run on parts of its linear layers, which the plan's tensor degree "
            f"divides ({str(error).strip().splitlines()[0]}): give Pipeline parallelize=, or plan with --tensor 1"
        ) from None


def _in_units(stage: nn.Module, mesh: DeviceMesh, part: Part, units: Sequence[str], place: str) -> None:
    """Divide a stage's parameters among its replicas: each unit's that the stage calls, then all others together."""
    numbers = {p for p in stage.parameters() if not p.dim()}  # torch divides along the first dimension
    for path in units:
        if not part.calls_module(path):
            warnings.warn(
                f"{place} gathers {path!r} with all that is beside its units, since it does not call it "
                f"({part.left.get(path, 'its inputs are hidden')}): more memory and fewer messages than planned",
                stacklevel=2,
            )
            continue
        module = stage.get_submodule(path)
        if not _shares(stage, module):
            _shard(module, mesh, numbers, f"{place}: {path!r}")
    _shard(stage, mesh, numbers, place)
    # what a stage returns is sent, or is the loss: nothing changes it in place
    warnings.filterwarnings("ignore", rf"FSDP2-wrapped module \({type(stage).__name__}\) returned a view")


def _shard(module: nn.Module, mesh: DeviceMesh, numbers: set[nn.Parameter], what: str) -> None:
    """Have a module's parameters gathered together, but those that are divided already."""
    types = {p.dtype for p in module.parameters() if p.requires_grad and p not in numbers}
    if len(types) > 1:
        raise DoesNotMatch(
            f"{what} has trainable parameters of several types ({', '.join(sorted(map(str, types)))}), which cannot be "
            "gathered together: train in one type (autocast computes in another), or plan with --zero 0 or 1"
        )
    for name, parameter in module.named_parameters():
        if parameter not in numbers and not parameter.is_contiguous():
            raise DoesNotMatch(
                f"{what}: the parameter {name!r} is not contiguous (channels last?), and torch's fully_shard divides "
                "contiguous ones alone: move the model to torch.contiguous_format, or plan with --zero 0 or 1"
            )
    fully_shard(module, mesh=mesh["data"], ignored_params=numbers)


def _shares(stage: nn.Module, module: nn.Module) -> bool:
    """Whether a module's parameters are used by others of the stage, too, with which they must be gathered."""
    own, inside = set(module.parameters()), set(module.modules())
    others = (child for child in stage.modules() if child not in inside)
    return any(p in own for other in others for p in other.parameters(recurse=False))
