"""Jobs as trainers are configured: read to the same degrees, exported to the same trainer, and no key lost."""

import json
from dataclasses import replace

import pytest

from costmodel.errors import DoesNotMatch, InvalidInput, PenstockError, UsageError
from costmodel.model.profile import write_profile
from planner.commands import main
from planner.export.forms import export
from planner.export.job_configs.entries import Entry, read_entries
from planner.export.job_configs.facts import facts_of
from planner.export.job_configs.key_table import WHY, key_table
from planner.export.job_configs.layer_rows import balanced_bounds, megatron_counts, torchtitan_counts, uniform_bounds
from planner.export.job_configs.today import TRAINERS, todays_job, todays_plan
from planner.plan import write_plan
from planner.plan.replica import places_of
from planner.question.pipeline_support import not_taken
from tests.support.described_models import described
from tests.support.repository import DATA

JOBS = DATA / "jobs"
EXPECTED = json.loads((JOBS / "expected.json").read_text())
FILES = {
    "deepspeed": "ds_config.json",
    "torchtitan": "job.toml",
    "megatron": "flags.txt",
    "megatron-bridge": "flags.txt",
}
"""What of an exporter's files is the trainer's configuration."""


def degrees(plan):
    config = plan.stages[0].config
    names = ("data", "tensor", "context", "expert", "zero", "recompute")
    return {"stages": len(places_of(plan)), **{name: getattr(config, name) for name in names}}


def layers(plan):
    return [sum(".layers." in name or name.startswith("layers.") for name in stage.modules) for stage in plan.stages]


def read(path, trainer, world=0):
    return todays_plan(path, trainer, described("llama"), world)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_job_is_read_to_its_degrees_stages_and_schedule(name):
    wanted = EXPECTED[name]
    plan, facts = read(JOBS / name, wanted["trainer"], wanted["world"])
    assert degrees(plan) == wanted["degrees"]
    assert (plan.batch.microbatch_size, plan.batch.num_microbatches) == (
        wanted["microbatch_size"],
        wanted["microbatches"],
    )
    if wanted["degrees"]["stages"] > 1:
        assert plan.schedule == wanted["schedule"]
        assert layers(plan) == wanted["layers"] or name == "ds_uniform.json"
    assert {key for key, _ in facts.ignored} == set(wanted["ignored"])
    assert all(why for _, why in facts.ignored)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_job_that_is_exported_to_its_trainer_has_the_same_degrees(name, tmp_path):
    wanted = EXPECTED[name]
    plan, _ = read(JOBS / name, wanted["trainer"], wanted["world"])
    form = wanted["trainer"].removesuffix("-bridge")
    if reason := not_taken(form, plan):
        pytest.skip(f"{form} does not take it: {reason}")
    for file, text in export(plan, form).items():
        (tmp_path / file).write_text(text)
    again, _ = read(tmp_path / FILES[form], form, len(plan.orders))
    assert degrees(again) == degrees(plan)
    assert (again.batch, again.prediction.step_time_ns) == (plan.batch, plan.prediction.step_time_ns) or form == (
        "deepspeed"
    )


@pytest.mark.parametrize(
    ("said", "precision", "recipe"),
    [
        ("mixed_precision=bf16_with_fp8_delayed_scaling_mixed", "fp8", "delayed"),
        ("mixed_precision=bf16_with_fp8_subchannel_scaling_mixed", "fp8", "blockwise"),
        ("mixed_precision=bf16_mixed model.fp8=hybrid model.fp8_recipe=tensorwise", "fp8", "tensorwise"),
        ("mixed_precision=bf16_with_mxfp8_mixed", "fp8", "mxfp8"),
        ("mixed_precision=bf16_with_nvfp4_mixed", "nvfp4", ""),
    ],
)
def test_where_scales_of_narrow_precisions_come_from_is_read_and_exported(said, precision, recipe, tmp_path):
    text = (JOBS / "bridge_fp8.txt").read_text()
    (tmp_path / "job.txt").write_text(text.replace("mixed_precision=bf16_with_fp8_current_scaling_mixed", said))
    profile = described("llama", "gb300-nvl72")
    plan, _ = todays_plan(tmp_path / "job.txt", "megatron-bridge", profile, 2)
    assert plan.assumptions.precision == precision
    assert [word for word in plan.assumptions.habits if "recipe" in word] == [f"fp8 recipe {recipe}"][: bool(recipe)]
    (tmp_path / "flags.txt").write_text(export(plan, "megatron")["flags.txt"])
    again, _ = todays_plan(tmp_path / "flags.txt", "megatron", profile, 2)
    assert again.prediction.step_time_ns == plan.prediction.step_time_ns


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_has_ten_jobs_here(trainer):
    assert sum(row["trainer"] == trainer for row in EXPECTED.values()) >= 10


def changed(value):
    """Another value of the same kind."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower() == "false"
    if text.lstrip("-").isdigit():
        return int(text) * 2 + 3 * (int(text) == 0)
    if text.startswith("type:"):
        return "uniform"
    others = {"adam": "sgd", "AdamW": "SGD", "SGD": "Adam", "sgd": "adam", "uniform": "parameters", "none": "full"}
    others |= {"full": "selective", "never": "always", "bf16_mixed": "fp16_mixed", "cpu": "none"}
    others |= {"bf16_with_fp8_current_scaling_mixed": "bf16_mixed", "0.9": 0, "0.0": 0.5}
    return others.get(text, [] if isinstance(value, list) else f"{text}x")


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_changed_key_is_seen_in_the_job_or_named_as_ignored_or_refused(name):
    wanted = EXPECTED[name]
    entries = read_entries(JOBS / name, wanted["trainer"])
    asked = (wanted["trainer"], described("llama"), wanted["world"], JOBS)
    before, _ = todays_job(entries, *asked)
    for place, entry in enumerate(entries):
        other = replace(entry, value=changed(entry.value))
        try:
            after, facts = todays_job([*entries[:place], other, *entries[place + 1 :]], *asked)
        except PenstockError:
            continue
        assert after != before or entry.key in {key for key, _ in facts.ignored}, entry.key


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_unknown_key_is_refused_with_those_near_it(trainer, tmp_path):
    key = {"deepspeed": "train_batch_sise", "torchtitan": "parallelism.tensor_paralel_degree"}.get(
        trainer, "tensor-model-parallel-sise"
    )
    with pytest.raises(InvalidInput, match=f"{key}' is no key of {trainer}'s.*near are"):
        facts_of([Entry(key, 2, "job: line 3")], key_table(trainer))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_key_is_carried_or_has_a_reason(trainer):
    table = key_table(trainer)
    assert not table.carried.keys() & table.ignored.keys()
    assert set(table.ignored.values()) <= WHY.keys()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("--micro-batch-size 1 --tensor-model-parallel-size 3\n", InvalidInput, "8 devices are no multiple of the 3"),
        ("--pipeline-model-parallel-size 2\n", InvalidInput, "does not say its micro-batch size"),
        ("--micro-batch-size 1 --num-layers 9\n", DoesNotMatch, "the job has 9 layers, and llama has 8"),
        ("--micro-batch-size 1 --pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 3\n",
         InvalidInput, "do not divide evenly"),
        ("--micro-batch-size 1 --global-batch-size 12\n", InvalidInput, "line 1: global-batch-size: found '12'"),
        ("--micro-batch-size $SIZE\n", InvalidInput, "line 1: micro-batch-size: found '\\$SIZE'; a whole number"),
        ("--micro-batch-size 1 --micro-batch-size 2\n", InvalidInput, "micro-batch-size is '2', and .* is '1'"),
        ("--micro-batch-size 1 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tL'\n",
         DoesNotMatch, "the layout has 2 't'"),
        ("--micro-batch-size 'one\n", InvalidInput, "line 1: No closing quotation"),
        ('A="--micro-batch-size 1"\nif [ $BIG ]; then\nA+=" --tensor-model-parallel-size 8"\nfi\npython a.py $A\n',
         InvalidInput, "line 3: whether --tensor-model-parallel-size is given is decided when the script runs"),
        ("[ $BIG ] && TP=8\npython a.py --micro-batch-size 1 --tensor-model-parallel-size $TP\n",
         InvalidInput, r"line 2: tensor-model-parallel-size: found '\$TP'.*write its value"),
        ("python a.py --micro-batch-size 1 \\\n# --bf16 \\\n--tensor-model-parallel-size 2\n",
         InvalidInput, "line 2: a comment within a continued command ends it"),
        ('A="--bf16 --swiglu"\n' + 'A="$A $A"\n' * 40, InvalidInput, "line 1[0-9]: more than 100000 letters"),
        ("pretrain_gpt.py\n", InvalidInput, "no key of megatron's in it"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused_with_its_line(tmp_path, text, error, message):
    (tmp_path / "job.txt").write_text(text)
    with pytest.raises(error, match=message):
        read(tmp_path / "job.txt", "megatron", 8)


def test_a_job_that_does_not_say_its_devices_asks_for_them(tmp_path):
    (tmp_path / "job.txt").write_text("--micro-batch-size 1\n")
    with pytest.raises(UsageError, match="give --world-size N"):
        read(tmp_path / "job.txt", "megatron")


def test_a_list_of_flags_counts_where_a_command_has_it_and_variables_that_nothing_sets_are_named(tmp_path):
    (tmp_path / "job.sh").write_bytes(
        b"A=(--micro-batch-size 1)\r\nB='--fp16'\r\npython a.py ${A[@]} \\\r\n --bf16 $EXTRA_ARGS \"$@\"\r\n"
    )
    plan, facts = read(tmp_path / "job.sh", "megatron", 2)
    assert plan.assumptions.precision == "bf16"
    assert [key for key, _ in facts.ignored] == ["$EXTRA_ARGS", "$@"]
    (tmp_path / "job.sh").write_text("A=(--micro-batch-size 1)\nB='--fp16'\n")
    assert read(tmp_path / "job.sh", "megatron", 2)[0].assumptions.precision == "fp16"


def told(tmp_path, trainer, text, profile="llama"):
    """The plan of a configuration on eight devices, and the keys that it ignores, each with its reason."""
    suffix = {"deepspeed": "json", "torchtitan": "toml"}.get(trainer, "txt")
    (tmp_path / f"job.{suffix}").write_text(text)
    plan, facts = todays_plan(tmp_path / f"job.{suffix}", trainer, described(profile), 8)
    return plan, dict(facts.ignored)


DS = '"train_micro_batch_size_per_gpu": 1'
PART = '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.4}}'
BRIDGE = "train.micro_batch_size=1"


@pytest.mark.parametrize(
    ("trainer", "text"),
    [
        ("deepspeed", f"{{{DS}, {PART}}}"),
        ("megatron", "--micro-batch-size 1 --use-distributed-optimizer --optimizer-cpu-offload "
         "--optimizer-offload-fraction 0.4"),
    ],
)  # fmt: skip
def test_a_part_of_the_optimizer_on_the_host_is_read_and_priced(tmp_path, trainer, text):
    half, whole = (told(tmp_path, trainer, each)[0] for each in (text, text.replace("0.4", "1.0")))
    assert half.stages[0].config.offload_fraction == 0.4
    assert half.prediction.step_time_ns < whole.prediction.step_time_ns
    assert max(half.prediction.peak_memory_bytes) > max(whole.prediction.peak_memory_bytes)
    if trainer == "deepspeed":
        written = json.loads(export(half, "deepspeed")["ds_config.json"])
        assert written["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "ratio": 0.4}
    assert (trainer in half.runs_on) == (trainer == "deepspeed")


@pytest.mark.parametrize(
    ("trainer", "text", "precision"),
    [
        ("megatron", "--micro-batch-size 1", "fp32"),
        ("deepspeed", f"{{{DS}}}", "fp32"),
        ("deepspeed", f'{{{DS}, "zero_optimization": null, "bf16": {{"enabled": "auto"}}}}', "bf16"),
        ("deepspeed", f'{{{DS}, "amp": {{"enabled": true}}}}', "fp16"),
        ("deepspeed", f'{{{DS}, "torch_autocast": {{"enabled": true, "dtype": "bfloat16"}}}}', "bf16"),
        ("megatron-bridge", BRIDGE, "bf16"),
    ],
)
def test_a_job_that_names_no_precision_runs_in_its_trainers_own(tmp_path, trainer, text, precision):
    assert told(tmp_path, trainer, text)[0].assumptions.precision == precision


@pytest.mark.parametrize(
    ("trainer", "text", "optimizer"),
    [
        ("megatron", "--micro-batch-size 1 --optimizer muon", "muon"),
        ("deepspeed", f'{{{DS}, "optimizer": {{"type": "Lion"}}}}', "lion"),
        ("deepspeed", f'{{{DS}, "optimizer": {{"type": "OneBitAdam"}}}}', "adam"),
        ("megatron-bridge", f"{BRIDGE} optimizer.use_precision_aware_optimizer=true "
         "optimizer.exp_avg_dtype=torch.bfloat16 optimizer.exp_avg_sq_dtype=torch.bfloat16", "adam-16bit"),
    ],
)  # fmt: skip
def test_an_optimizer_is_carried_or_named_as_priced_as_another(tmp_path, trainer, text, optimizer):
    plan, ignored = told(tmp_path, trainer, text)
    assert plan.assumptions.optimizer == optimizer
    assert ("optimizer.type" in ignored) == ("OneBit" in text)


@pytest.mark.parametrize(
    ("trainer", "text", "zero"),
    [
        ("megatron", "--micro-batch-size 1 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("megatron", "--micro-batch-size 1 --data-parallel-sharding-strategy optim_grads", 0),
        ("megatron-bridge", f"{BRIDGE} ddp.use_custom_fsdp=true "
         "ddp.data_parallel_sharding_strategy=optim_grads_params", 3),
    ],
)  # fmt: skip
def test_megatron_fsdp_alone_shards_as_its_strategy_says(tmp_path, trainer, text, zero):
    plan, ignored = told(tmp_path, trainer, text)
    assert plan.stages[0].config.zero == zero
    assert bool(ignored) == (zero == 0)


@pytest.mark.parametrize(
    ("trainer", "text", "group"),
    [
        ("megatron", "--micro-batch-size 1 --use-distributed-optimizer --num-distributed-optimizer-instances 2", 4),
        ("megatron-bridge", f"{BRIDGE} ddp.use_distributed_optimizer=true "
         "ddp.num_distributed_optimizer_instances=4", 2),
        ("megatron", "--micro-batch-size 1 --use-distributed-optimizer", 0),
        ("torchtitan", "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n", 4),
        ("deepspeed", f'{{{DS}, "zero_optimization": {{"stage": 3, "mics_shard_size": 2}}}}', 2),
    ],
)  # fmt: skip
def test_shard_groups_of_a_job_are_carried(tmp_path, trainer, text, group):
    plan, _ = told(tmp_path, trainer, text)
    assert plan.stages[0].config.shard_group == group


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ('"bf16": {"enabled": true, "bf16_optimizer_states": true}', "bf16.bf16_optimizer_states"),
        ('"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.4}}',
         "zero_optimization.offload_optimizer.ratio"),
        ('"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}',
         "zero_optimization.offload_param.device"),
        ('"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}',
         "zero_optimization.offload_optimizer.device"),
    ],
)  # fmt: skip
def test_what_changes_memory_and_is_not_priced_is_named_so(tmp_path, section, key):
    plan, ignored = told(tmp_path, "deepspeed", f"{{{DS}, {section}}}")
    assert not ignored[key].startswith(("it changes what is learned", "how transfers"))
    assert plan.stages[0].config.offload == ("none" if '"stage": 0' in section or "bf16" in section else
                                             "parameters" if "param" in section else "optimizer")  # fmt: skip


@pytest.mark.parametrize(
    ("trainer", "text", "error", "message"),
    [
        ("deepspeed", f'{{{DS}, "bf16": {{"enabled": 1}}, "fp16": {{"enabled": 1}}}}', InvalidInput, "bf16.enabled is"),
        ("deepspeed", f'{{{DS}, "pipeline": {{"stages": 2}}, "zero_optimization": {{"stage": 2}}}}', InvalidInput,
         "pipelines run under ZeRO-0 and 1 alone"),
        ("deepspeed", '{"train_batch_size": "auto"}', UsageError, "write the numbers that the script puts in"),
        ("deepspeed", f"[{{{DS}}}]", InvalidInput, "an object is needed here"),
        ("torchtitan", '[activation_checkpoint]\nmode = "memory_budget"\n', InvalidInput, "allowed are selective"),
        ("megatron", "--micro-batch-size 1 --expert-model-parallel-size 2", DoesNotMatch, "llama has none"),
        ("megatron-bridge", f"python run.py --recipe llama3 {BRIDGE}", InvalidInput, "give the configuration that it"),
    ],
)  # fmt: skip
def test_what_no_trainer_would_run_so_is_refused_with_the_way_out(tmp_path, trainer, text, error, message):
    with pytest.raises(error, match=message):
        told(tmp_path, trainer, text)


def test_objects_of_a_written_configuration_are_values(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model:\n  _target_: x.Provider\n  pipeline_dtype:\n    _target_: torch.bfloat16\n    _call_: false\n"
        "train:\n  micro_batch_size: 1\n"
    )
    assert {key for key, _ in read(tmp_path / "job.yaml", "megatron-bridge", 2)[1].ignored} == {
        "model._target_", "model.pipeline_dtype"}  # fmt: skip


def test_a_configuration_given_to_from_says_how_it_becomes_a_plan(tmp_path, capsys):
    write_profile(tmp_path / "profile.json", described("llama"))
    asked = [
        "plan",
        str(tmp_path / "profile.json"),
        "--devices",
        "4",
        "--batch",
        "8",
        "-o",
        str(tmp_path / "ours.json"),
    ]
    assert main([*asked, "--from", str(JOBS / "ds_uniform.json")]) == 3
    assert "penstock import job" in capsys.readouterr().err


def test_layers_are_cut_as_the_trainers_cut_them():
    """`get_num_layers_to_build`; `generate_llm_fqn_per_model_part`; `partition_uniform`, `partition_balanced`."""
    assert megatron_counts(32, 4, 2, None, None, (0, 0)) == [4] * 8
    assert megatron_counts(61, 16, 1, 4, 1, (0, 0)) == [4, *[4] * 14, 1]
    assert megatron_counts(30, 4, 1, None, None, (1, 1)) == [7, 8, 8, 7]
    assert torchtitan_counts(32, 8, 1, 1) == [4, 5, 4, 4, 4, 4, 4, 3]
    assert uniform_bounds(10, 4) == [0, 3, 6, 8, 10]
    assert balanced_bounds([5, 1, 1, 1, 1, 1, 5], 3) == [0, 1, 6, 7]


def test_the_command_writes_the_job_and_plan_holds_it_beside_ours(tmp_path, capsys):
    profile, job, ours = (str(tmp_path / name) for name in ("profile.json", "job.json", "ours.json"))
    write_profile(profile, described("llama"))
    words = ["--trainer", "megatron", "--world-size", "4", "--model", profile, "-o", job, "--json"]
    assert main(["import", "job", str(JOBS / "megatron_uneven_ends.txt"), *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["stages"], said["microbatches"], said["schedule"]) == (4, 16, "1f1b")
    assert [row["key"] for row in said["ignored"]] == ["hidden-size", "lr"]
    asked = ["plan", profile, "--devices", "4", "--batch", "16", "--from", job, "-o", ours, "--json"]
    assert main([*asked, "--deterministic-limit", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    start = found["from"]
    assert start["step_time_ns"] == said["step_time_ns"]
    assert start["gain"] == pytest.approx(1 - found["best_step_time_ns"] / said["step_time_ns"])
    assert start["gain_interval"][0] <= start["gain"] <= start["gain_interval"][1]
    assert start["moved"]["changed"]


def test_a_trainers_own_job_with_replicas_can_be_used_under_that_trainer(tmp_path, capsys):
    """Rungs and starts are judged by replicas that number their micro-batches as the plan file does."""
    profile, job = str(tmp_path / "profile.json"), str(tmp_path / "job.json")
    write_profile(profile, described("llama"))
    text = "[training]\nlocal_batch_size = 4\n[parallelism]\npipeline_parallel_degree = 2\n"
    plan, _ = told(tmp_path, "torchtitan", text + 'pipeline_parallel_schedule = "1F1B"\n')
    assert plan.stages[0].config.data == 4
    write_plan(job, plan)
    asked = ["plan", profile, "--devices", "8", "--batch", str(plan.batch.global_size), "--target", "torchtitan"]
    fixed = ["--data", "4", "--from", job, "-o", str(tmp_path / "ours.json"), "--json", "--deterministic-limit", "0"]
    assert main([*asked, *fixed]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["from"]["used"], found["from"]["why_not"]) == ("plan", "")
    assert all("torchtitan" in rung["runs_on"] for rung in found["rungs"] if rung["strategy"] == found["strategy"])
