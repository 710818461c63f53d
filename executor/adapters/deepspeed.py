"""DeepSpeed 0.19.8: a plan as its configuration, and a `PipelineModule` whose stages begin where the plan's do.

    from executor.adapters.deepspeed import configuration, find, pipeline_module

    plan = find("llama3-8b", num_devices=64, global_batch=512)
    model = pipeline_module(plan, layers, loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, config={**configuration(plan), "optimizer": ...})

`layers` is your list: one entry for each module of the plan's stages, in their order. A plan of one stage needs the
configuration alone. Left to you: tensor-parallel layers, tied ones, the optimizer, and recompute without a pipeline.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from costmodel.errors import DoesNotMatch
from executor.adapters.finder import finder
from planner.export import deepspeed as exported
from planner.plan import Plan
from planner.question.pipeline_support import not_taken

find = finder("deepspeed")
"""Of a plan that DeepSpeed takes, found once."""


def configuration(plan: Plan) -> dict[str, object]:
    """Return what `deepspeed.initialize` takes as its configuration.

    Raises
    ------
    DoesNotMatch
        When DeepSpeed does not take the plan: says what of it.
    """
    if reason := not_taken("deepspeed", plan):
        raise DoesNotMatch(f"DeepSpeed does not take this plan: {reason}; plan with --target deepspeed")
    return exported.configuration(plan)


def pipeline_module(plan: Plan, layers: Sequence[Any], **options: Any) -> Any:
    """Return the `PipelineModule` of a plan's stages.

    Parameters
    ----------
    plan : Plan
    layers : sequence
        Of modules, callables or ``LayerSpec``, one for each module of the plan's stages.
    **options
        Of `PipelineModule`: ``loss_fn`` and so on.

    Raises
    ------
    DoesNotMatch
        When DeepSpeed does not take the plan, or the layers are not as many as the plan's.
    """
    configuration(plan)
    names, bounds = exported.layers_and_bounds(plan)
    if len(layers) != len(names):
        raise DoesNotMatch(
            f"{len(layers)} layers, and the plan's stages have {len(names)}: {', '.join(names)}; give one each"
        )
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    config = plan.stages[0].config
    topology = PipeModelDataParallelTopology(num_pp=len(plan.stages), num_mp=config.tensor, num_dp=config.data)
    return _planned_class()(
        layers,
        topology=topology,
        partition_method=",".join(map(str, bounds)),
        **{"activation_checkpoint_interval": int(config.recompute == "full"), **options},
    )


@cache
def _planned_class() -> type:
    """Return a `PipelineModule` whose method of partition is a list of bounds, which its own methods cannot be."""
    from deepspeed.pipe import PipelineModule

    class BoundedPipelineModule(PipelineModule):  # type: ignore[misc]
        """Stage i holds the layers from bound i up to bound i + 1."""

        def _partition_layers(self, method: str) -> None:
            self.parts = [int(bound) for bound in method.split(",")]
            self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])

    return BoundedPipelineModule
