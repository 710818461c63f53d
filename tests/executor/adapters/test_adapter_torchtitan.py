"""torchtitan's own training loop runs plans: uneven stages by its schedules, a stage graph by our executor."""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest

from costmodel.stages.config import StageConfig
from executor.adapters.torchtitan import planned
from planner.export.forms import export
from tests.support.trainers.plans import plan_of
from tests.support.trainers.started import ran

pytest.importorskip("torchtitan", reason="torchtitan is not installed: `make trainers` runs this")
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def test_losses_under_a_plan_of_uneven_stages_are_those_of_one_stage(tmp_path: Path) -> None:
    alone = ran("torchtitan_job.py", "alone", tmp_path, ranks=1)
    found = ran("torchtitan_job.py", "planned", tmp_path, ranks=2)
    parts = {".".join(name.split(".")[: 2 if name.startswith("layers") else 1]) for name in found["held"][0]}
    assert parts == {"layers.4", "layers.5", "lm_head", "norm"}
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)


def test_a_stage_graph_trains_validates_and_resumes_as_one_stage_does(tmp_path: Path) -> None:
    """The executor runs two branches: losses, gradients' norms and what a checkpoint goes on with are the same."""
    alone = ran("torchtitan_branches_job.py", "alone", tmp_path / "alone", ranks=1)
    found = ran("torchtitan_branches_job.py", "planned", tmp_path / "planned", ranks=2)
    assert {name.split(".")[0] for name in found["held"][0]} == {"tokens", "left", "head"}
    for key in ("losses", "norms", "validated"):
        assert found[key] == pytest.approx(alone[key], rel=1e-5)
    resumed = ran("torchtitan_branches_job.py", "resumed", tmp_path / "planned", ranks=2)
    assert resumed["losses"] == pytest.approx(alone["losses"][2:], rel=1e-5)


@pytest.mark.parametrize(
    ("config", "stages"),
    [
        (StageConfig(data=4, zero=3, shard_group=2, recompute="full"), 1),
        (StageConfig(data=2, zero=2, recompute="selective"), 2),
        (StageConfig(tensor=2, sequence=2), 2),
    ],
)
def test_the_exported_recipe_says_what_the_adapter_says_in_the_trainers_own_classes(
    config: StageConfig, stages: int, tmp_path: Path
) -> None:
    """These have slots, so that a name that they do not have is an error."""
    plan, made = plan_of(config, stages), []
    for name, text in export(plan, "torchtitan").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for function in (planned, lambda config, _: run_path(str(tmp_path / "recipe.py"))["planned"](config)):
        found = function(Trainer.Config(model_spec=model_registry("debugmodel")), plan)
        found.__post_init__()  # its own checks
        parallelism = replace(found.parallelism, module_fqns_per_model_part=None, pipeline_parallel_schedule_csv="")
        made.append((found.training, parallelism, found.activation_checkpoint))
    assert made[0] == made[1]
    policies = {"none": None, "full": FullAC.Config(), "selective": SelectiveAC.Config()}
    assert made[0][2] == policies[config.recompute]
