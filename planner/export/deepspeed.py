"""DeepSpeed: its configuration, and for a pipeline the bounds of each stage in a list of layers, with a small subclass.

`PipelineModule` divides a list of layers by their number, parameters or type, and never as a plan says
(``partition_method="profile"`` raises NotImplementedError), so the subclass sets the bounds itself. The list is the
user's: one entry for each of ``LAYERS``, in that order. Leaves out tensor-parallel layers, which a user's `mpu` brings.
"""

import json
from itertools import accumulate

from planner.export.job_configs.key_table import key_table
from planner.plan import Plan

SUBCLASS = '''\
"""Stages as Penstock planned them: deepspeed.initialize(model=PlannedPipeline(layers, loss_fn=...), ...)."""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

LAYERS = [
{layers}]
"""What each entry of the list of layers is."""
BOUNDS = {bounds}
"""Stage i holds the entries from BOUNDS[i] up to BOUNDS[i + 1]."""


class PlannedPipeline(PipelineModule):
    """The layers of LAYERS, cut at BOUNDS."""

    def __init__(self, layers, **options):
        if len(layers) != len(LAYERS):
            raise ValueError(f"{{len(layers)}} layers; the plan has {{len(LAYERS)}}, in the order of LAYERS")
        topology = PipeModelDataParallelTopology(num_pp={stages}, num_mp={tensor}, num_dp={data})
        options.setdefault("activation_checkpoint_interval", {interval})
        super().__init__(layers, topology=topology, **options)

    def _partition_layers(self, method="uniform"):
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(BOUNDS)
        self._set_bounds(start=BOUNDS[stage], stop=BOUNDS[stage + 1])
'''


def files(plan: Plan) -> dict[str, str]:
    """Return the files of a plan, by name."""
    found = {"ds_config.json": json.dumps(configuration(plan), indent=1) + "\n"}
    return found if len(plan.stages) == 1 else {**found, "stages.py": _subclass(plan)}


def configuration(plan: Plan) -> dict[str, object]:
    """Return the JSON that `deepspeed.initialize` takes."""
    config, batch = plan.stages[0].config, plan.batch
    pipelined = len(plan.stages) > 1
    facts: dict[str, object] = {
        "global_batch": batch.global_size,
        "microbatch_size": batch.microbatch_size,
        "accumulation": batch.num_microbatches // config.data,
        "zero": config.zero,
        **({"shard_group": config.shard_group} if config.shard_group else {}),
        **({"offload_optimizer": "cpu"} if config.offload in ("optimizer", "parameters") else {}),
        **({"offload_fraction": config.offload_fraction} if config.offload_fraction < 1 else {}),
        **({"offload_parameters": "cpu"} if config.offload == "parameters" else {}),
        **({plan.assumptions.precision: True} if plan.assumptions.precision in ("bf16", "fp16") else {}),
        **({"stages": len(plan.stages), "checkpoint_interval": int(config.recompute == "full")} if pipelined else {}),
        **({"tensor": config.tensor} if config.tensor > 1 and not pipelined else {}),
    }
    found: dict[str, object] = {}
    for fact, value in facts.items():
        *sections, name = key_table("deepspeed").key_of(fact).split(".")
        _section(found, sections)[name] = value
    return found


def _section(found: dict[str, object], path: list[str]) -> dict[str, object]:
    """Return the map at a path of keys, made where it is not there."""
    for key in path:
        inner = found.setdefault(key, {})
        assert isinstance(inner, dict)  # noqa: S101 - the table has no key within a value
        found = inner
    return found


def layers_and_bounds(plan: Plan) -> tuple[list[str], list[int]]:
    """Return the layers in the order of the stages, and where each stage begins in them."""
    rows = [stage.modules or stage.operators for stage in plan.stages]
    return [name for row in rows for name in row], [0, *accumulate(map(len, rows))]


def _subclass(plan: Plan) -> str:
    layers, bounds = layers_and_bounds(plan)
    config = plan.stages[0].config
    return SUBCLASS.format(
        layers="".join(f"    {json.dumps(name)},\n" for name in layers),
        bounds=bounds,
        stages=len(plan.stages),
        tensor=config.tensor,
        data=config.data,
        interval=int(config.recompute == "full"),
    )
