"""Published recipes of Megatron-Bridge, imported as jobs: priced to the nanosecond as the same stages are by pins."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.support.published_data import published_data
from costmodel.architectures.command import make
from planner.export.job_configs.today import todays_plan
from planner.front import make_plan
from planner.plan.provenance import job_of
from planner.question.effort import Effort
from planner.question.pins import Group, Pins, StagePin
from planner.question.problem import Problem

TABLE = published_data("megatron_bridge_anchors.csv")
RECIPES = {
    ("LLAMA3_70B", "DGX-H100", "4", "8"): ("llama3-70b", "h100-sxm-80"),
    ("LLAMA3_70B", "DGX-GB200", "2", "4"): ("llama3-70b", "gb200-nvl72"),
    ("LLAMA3_70B", "DGX-GB300", "1", "4"): ("llama3-70b", "gb300-nvl72"),
    ("Qwen3_30B_a3B", "DGX-H100", "1", "2"): ("qwen3-30b-a3b", "h100-sxm-80"),
    ("GPT OSS 120B", "DGX-H100", "1", "4"): ("gpt-oss-120b", "h100-sxm-80"),
}
"""Model, system, tensor and pipeline degrees of a row: our model and device."""
KEYS = {
    "train.global_batch_size": "gbs", "train.micro_batch_size": "mbs", "model.seq_length": "seq",
    "model.tensor_model_parallel_size": "tp", "model.pipeline_model_parallel_size": "pp",
    "model.context_parallel_size": "cp", "model.virtual_pipeline_model_parallel_size": "vp",
    "model.expert_model_parallel_size": "ep",
}  # fmt: skip


def row_of(recipe):
    if not TABLE.is_file():
        pytest.skip(f"no published data at {TABLE}: set PENSTOCK_DATA to its folder")
    with TABLE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["section"] == "Pre-Training Performance"]
    return next(row for row in rows if (row["model"], row["system"], row["tp"], row["pp"]) == recipe)


def overrides(row):
    """Return a recipe as Bridge takes it on the command line, in 16 or 8 bits."""
    said = {key: row[name] for key, name in KEYS.items() if row[name] not in ("n/a", "")}
    kind = "bf16_mixed" if row["precision"] == "BF16" else "bf16_with_fp8_current_scaling_mixed"
    words = [f"{key}={value}" for key, value in said.items()]
    return " ".join([*words, f"mixed_precision={kind}", "ddp.use_distributed_optimizer=true", "\n"])


def as_pins(plan):
    """Return pins that fix every stage as a plan has it."""
    stages = (StagePin(Group(tuple(s.operators), f"stage {i}"), s.ranks, s.config) for i, s in enumerate(plan.stages))
    return Pins(stages=tuple(stages))


@pytest.mark.parametrize("recipe", RECIPES, ids="-".join)
def test_a_published_recipe_is_priced_as_a_job_as_it_is_by_pins(recipe, tmp_path: Path):
    model, device = RECIPES[recipe]
    row = row_of(recipe)
    profile, _ = make(model, device, (1,), int(row["seq"]), "bf16")
    (tmp_path / "recipe.txt").write_text(overrides(row))
    job, _ = todays_plan(tmp_path / "recipe.txt", "megatron-bridge", profile, int(row["gpus"]))
    known = job_of(job)
    assert known
    pinned = Problem(
        profile,
        None,
        int(row["gpus"]),
        int(row["gbs"]),
        microbatch_size=int(row["mbs"]),
        schedule=job.schedule,
        precision=job.assumptions.precision,
        trainer="megatron",
        habits=known.habits,
        target="any",
        memory_limit_bytes=None,
        pins=as_pins(job),
        effort=Effort(0.0),
    )
    roomy = replace(pinned, cluster=with_room(pinned))
    assert make_plan(roomy).plan.prediction.step_time_ns == job.prediction.step_time_ns


def with_room(problem):
    """Return the machines with memory for whatever a recipe holds: only its time is asked for."""
    machines = problem.machines
    return replace(machines, devices=tuple(replace(each, memory_bytes=2**45) for each in machines.devices))
