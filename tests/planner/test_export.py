"""Exports: what other trainers take goes back through their own readers, what they do not take is refused by name."""

import json
import multiprocessing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from costmodel.errors import DoesNotMatch, InvalidInput, ReadableButWrong
from costmodel.model.profile import Profile, write_profile
from costmodel.stages.config import StageConfig, recomputed
from planner.checker import check_plan
from planner.commands import main
from planner.export.forms import export
from planner.export.given import Given, given_plan
from planner.export.left_to_user import left_to_you
from planner.graph.layers import first_layers
from planner.graph.layout import layer_letters, layout_problem, layout_text, parse_layout
from planner.graph.model_parts import model_part_names
from planner.plan import Plan, read_plan, write_plan
from planner.plan.rank_order import PIPELINE_INSIDE, RANK_ORDER
from planner.question.problem import Problem
from tests.properties.export_cases import expanded, failures, layout_failures, megatron_reads, random_lines, random_rows
from tests.support.described_models import described
from tests.support.random_profiles import chain
from tests.support.ranks.rank_pool import RankPool
from tests.support.ranks.torch_runtime import NAMES, largest_error
from tests.support.small_plan import PLAN


def test_what_runs_on_lists_is_exported_and_the_target_reads_it() -> None:
    """300 plans: ``python -m benchmarks.reliability --full --only exports``."""
    assert failures(20) == []


def test_layouts_are_read_as_megatron_reads_them() -> None:
    assert layout_failures(500) == []


def test_megatrons_own_class_takes_the_layouts() -> None:
    """Where Megatron-LM is installed; with megatron-core 0.16.1 it reads all 500 alike."""
    own = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    for seed in range(500):
        rows, places = random_rows(Random(seed))
        read = own.PipelineParallelLayerLayout(layout_text(rows), places)
        held = [read.layout[stage % places][stage // places] for stage in range(len(rows))]
        assert tuple("".join(letters[kind.name] for kind in row) for row in held) == rows
        read.validate_layer_layout("".join(rows).count("t"), "".join(rows).count("m"))


@pytest.mark.parametrize(
    ("text", "stages", "layers"),
    [
        ("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 40, 80),
        ("Et|(tt|)*30mL", 32, 61),
        ("Et*4|(tttt|)*14tmL", 16, 61),
        ("Et*4|(t*7|)*5t*8|tmL", 8, 48),
        ("Et*15|t*15|t*16|t*15L", 4, 61),
        ("Et||tL", 3, 2),
    ],
)
def test_shipped_layouts_are_read(text: str, stages: int, layers: int) -> None:
    rows = parse_layout(text)
    assert (len(rows), "".join(rows).count("t")) == (stages, layers)
    assert list(rows) == expanded(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ett|x", "'x'"),
        ("", "nothing"),
        ("(tt|", "'\\('"),
        ("((t|)*2)*2", "'\\('"),
        ("Et*999999999L", "more signs"),
        ("E(t*99999|)*9999L", "more signs"),
    ],
)
def test_what_is_no_layout_is_refused_by_its_sign(text: str, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        parse_layout(text)


@pytest.mark.parametrize(
    ("rows", "places", "found"),
    [
        (("Et", "t", "L"), 2, "do not divide"),
        (("t", "EL"), 2, "embedding"),
        (("Et", "Lt"), 2, "head"),
        (("Et", "m", "tL"), 3, "a layer behind"),
        (("Etm", "t", "t", "L"), 2, "a layer behind"),
        (("Et", "m", "mL"), 3, "several stages"),
        (("Et", "m", "", "L"), 2, "last stage of their place"),
    ],
)
def test_layouts_that_megatron_refuses_are_refused(rows: tuple[str, ...], places: int, found: str) -> None:
    assert found in layout_problem(rows, places)


def test_norms_stand_with_the_last_layer_where_further_tokens_are_predicted() -> None:
    parts = [["e", "l.0"], ["l.1", "norm"], ["l.2", "head"]]
    assert layer_letters(parts) == ("Et", "t", "mL")
    assert layer_letters([["e", "l.0"], ["l.1", "norm"], ["head"]]) == ("Et", "tL", "L")


def test_torchtitans_names_are_its_own_for_models_inside_another() -> None:
    inside = [["model.embed_tokens", "model.layers.0"], ["model.layers.1", "model.norm", "lm_head"]]
    assert model_part_names(inside) == ([["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]], "")
    assert "vision.blocks.0" in model_part_names([["vision.blocks.0"], ["text.layers.0"]])[1]


def line_plan(name: str = "llama", **options: object) -> Plan:
    """Return a plan of two stages, which `options` of `Given` and `StageConfig` change."""
    parts = described(name).graph.parts
    half = parts.index("model.layers.4")
    stages = (tuple(range(half)), tuple(range(half, len(parts))))
    schedule, order = str(options.pop("schedule", "1f1b")), options.pop("rank_order", RANK_ORDER)
    config = StageConfig(**options)  # type: ignore[arg-type]
    devices = 2 * config.data * config.tensor
    problem = Problem(described(name), None, devices, 8 * config.data, 1, target="any", trainer="megatron")
    given = Given("by hand", stages, (0, 1), config, schedule, rank_order=order)  # type: ignore[arg-type]
    return given_plan(problem, given)


def with_layers_again(*counts: int) -> Plan:
    """Return a plan whose stages run so many of their four layers again, the first ones."""
    plan, graph = line_plan(), described("llama").graph
    rows = [[graph.index[name] for name in stage.operators] for stage in plan.stages]
    again = [first_layers(graph, row, count) for row, count in zip(rows, counts, strict=True)]
    stages = zip(plan.stages, again, strict=True)
    return replace(
        plan, stages=tuple(replace(stage, config=recomputed(stage.config, names)) for stage, names in stages)
    )


def test_megatrons_flags_say_every_degree() -> None:
    plan = line_plan(data=2, zero=1, recompute="full")
    texts = export(plan, "megatron")
    megatron_reads(plan, texts)
    for flag in ("--use-distributed-optimizer", "--recompute-num-layers 1", "--global-batch-size 16", "--bf16",
                 "--pipeline-model-parallel-layout 'Et*4|t*4L'", "--num-layers 8"):  # fmt: skip
        assert flag in texts["flags.txt"]


def test_shard_groups_are_said_in_each_trainers_words() -> None:
    titan = export(line_plan(data=4, zero=3, shard_group=2), "torchtitan")["job.toml"]
    assert "data_parallel_shard_degree = 2" in titan
    assert "data_parallel_replicate_degree = 2" in titan
    megatron = export(line_plan(data=4, zero=1, shard_group=2), "megatron")["flags.txt"]
    assert "--num-distributed-optimizer-instances 2\n" in megatron
    assert "instances" not in export(line_plan(data=4, zero=1), "megatron")["flags.txt"]


def test_stages_side_by_side_and_layers_that_run_again_are_said_in_megatrons_words() -> None:
    plan = line_plan(data=2, rank_order=PIPELINE_INSIDE)
    assert "--use-tp-pp-dp-mapping\n" in export(plan, "megatron")["flags.txt"]
    assert "rank order tensor, context, expert, pipeline, data" in left_to_you(plan, "torch-csv")
    assert "mapping" not in export(line_plan(data=2), "megatron")["flags.txt"]
    flags = export(with_layers_again(2, 2), "megatron")["flags.txt"].splitlines()
    assert {"--recompute-granularity full", "--recompute-method block", "--recompute-num-layers 2"} <= {*flags}


@pytest.mark.parametrize(
    ("plan", "form", "reason"),
    [
        (line_plan(data=2, rank_order=PIPELINE_INSIDE), "torchtitan", "the rank order tensor, context, expert, pipe"),
        (line_plan(data=2, rank_order=PIPELINE_INSIDE), "deepspeed", "the rank order tensor, context, expert, pipe"),
        (with_layers_again(2, 1), "megatron", "other operators than the first layers of each stage, equally many"),
        (with_layers_again(2, 2), "torchtitan", "of some operators, but of all layers, of every n-th or of kinds"),
        (with_layers_again(2, 2), "deepspeed", "of some operators, but of all layers .activation_checkpoint_interval"),
        (with_layers_again(0, 2), "torch-csv", "recompute, which torch's CSV"),
        (line_plan(data=4, zero=1, shard_group=2), "deepspeed", "ZeRO-1 in shard groups of 2, but ZeRO-3"),
        (PLAN, "torch-csv", "form no line"),
        (PLAN, "megatron", "form no line"),
        (line_plan(data=2, zero=2), "megatron", "ZeRO-2; torch-csv, torchtitan take it"),
        (line_plan(data=2, zero=2), "deepspeed", "ZeRO-2 within a pipeline"),
        (line_plan(recompute="full"), "torch-csv", "recompute, which torch's CSV of orders cannot say"),
        (line_plan(schedule="zb-h1"), "megatron", "the schedule zb-h1"),
        (line_plan(schedule="zb-h1"), "deepspeed", "the schedule zb-h1"),
        (replace(line_plan(), stages=tuple(replace(s, modules=()) for s in line_plan().stages)), "torchtitan",
         "does not say which modules"),
    ],
)  # fmt: skip
def test_what_a_target_cannot_express_is_refused_by_name(plan: Plan, form: str, reason: str) -> None:
    with pytest.raises(DoesNotMatch, match=f"{form} does not take this plan: .*{reason}"):
        export(plan, form)


def tied_plan(**options: object) -> Plan:
    """Return a plan of GPT-2 in two stages, the first and the last of which have the embedding."""
    graph = described("gpt2").graph
    half = graph.parts.index("transformer.h.2")
    stages = (tuple(range(half)), tuple(range(half, len(graph.parts))))
    problem = Problem(described("gpt2"), None, 2, 8, 1, target="any", trainer="megatron", **options)  # type: ignore[arg-type]
    return given_plan(problem, Given("by hand", stages, (0, 1), StageConfig(), "1f1b"))


def test_parameters_of_several_stages_stand_in_the_plan_and_nobody_loses_their_sum_in_silence(tmp_path: Path) -> None:
    plan = tied_plan()
    write_plan(tmp_path / "plan.json", plan)
    plan = read_plan(tmp_path / "plan.json")
    (name,) = {name for stage in plan.stages for name in stage.shared}
    assert all(stage.shared == (name,) for stage in plan.stages)
    for form in ("torch-csv", "torchtitan"):
        with pytest.raises(DoesNotMatch, match=f"the parameter {name} in several stages"):
            export(plan, form)
    assert plan.runs_on == ("megatron", "deepspeed")
    assert f"{name} tied between stages" in left_to_you(plan, "deepspeed")
    assert left_to_you(plan, "megatron") == []


@pytest.mark.parametrize(
    ("plan", "form", "left"),
    [
        (line_plan(data=2, tensor=2), "torch-csv", ["data 2", "tensor 2", "precision bf16", "optimizer adam"]),
        (line_plan(data=2, zero=2, recompute="full"), "torchtitan", ["precision bf16", "optimizer adam"]),
        (line_plan(tensor=2, recompute="full"), "deepspeed", ["tensor 2", "optimizer adam"]),
        (tied_plan(precision="fp8"), "deepspeed",
         ["precision fp8", "optimizer adam", "transformer.wte.weight tied between stages"]),
        (tied_plan(precision="fp8", optimizer="sgd"), "megatron", []),
        (tied_plan(precision="tf32"), "megatron", ["precision tf32"]),
    ],
)  # fmt: skip
def test_what_the_files_cannot_say_is_left_to_the_user_by_name(plan: Plan, form: str, left: list[str]) -> None:
    assert left_to_you(plan, form) == left


def test_one_stage_leaves_recompute_to_deepspeeds_user() -> None:
    plan = line_plan(recompute="full")
    stage = replace(plan.stages[0], config=StageConfig(recompute="full", tensor=4))
    alone = replace(plan, stages=(stage,), edges=(), orders=plan.orders[:1])
    assert left_to_you(alone, "deepspeed")[:2] == ["tensor 4", "full recompute"]


def test_megatrons_flags_say_optimizer_and_what_it_overlaps() -> None:
    flags = export(tied_plan(optimizer="sgd"), "megatron")["flags.txt"].splitlines()
    assert {"--optimizer sgd", "--sgd-momentum 0.0"} <= set(flags)
    overlapped = export(line_plan(data=2, zero=1), "megatron")["flags.txt"].splitlines()
    assert {"--overlap-grad-reduce", "--overlap-param-gather", "--optimizer adam"} <= set(overlapped)
    assert "--overlap-grad-reduce" not in flags


def test_a_plan_that_is_wrong_or_works_in_another_order_than_its_schedule_is_not_exported() -> None:
    plan = line_plan()
    dropped = replace(plan, orders=(tuple(a for a in plan.orders[0] if a != "0F3"), plan.orders[1]))
    with pytest.raises(ReadableButWrong, match="0F3"):
        export(dropped, "torch-csv")
    eager = replace(line_plan(schedule="eager-1f1b"), schedule="1f1b")
    with pytest.raises(DoesNotMatch, match="place 0, which works in another order than 1f1b has"):
        export(eager, "megatron")


def test_the_nearest_plan_of_the_ladder_is_named() -> None:
    rung = replace(PLAN.rungs[0], strategy="data-parallel", runs_on=("megatron",), step_time_ns=248)
    with pytest.raises(DoesNotMatch, match=r"of the plan's ladder it takes data-parallel, 100\.0 % slower"):
        export(replace(PLAN, rungs=(rung,)), "megatron")


def test_the_command_writes_the_same_files_twice_and_nothing_where_it_refuses(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.json"
    write_plan(path, line_plan())
    for folder in ("a", "b"):
        assert main(["export", str(path), "--to", "torchtitan", "-o", str(tmp_path / folder), "--json"]) == 0
    files = json.loads(capsys.readouterr().out.splitlines()[-1])["files"]
    assert [Path(file).name for file in files] == ["recipe.py", "schedule.csv", "model_parts.json", "job.toml"]
    assert all((tmp_path / "a" / Path(file).name).read_bytes() == Path(file).read_bytes() for file in files)
    write_plan(path, PLAN)
    assert main(["export", str(path), "--to", "megatron", "-o", str(tmp_path / "c")]) == 6
    assert not (tmp_path / "c").exists()
    (tmp_path / "file").write_text("")
    write_plan(path, line_plan())
    assert main(["export", str(path), "--to", "megatron", "-o", str(tmp_path / "file")]) == 2


def test_orders_come_back_as_the_plan_that_they_were_exported_from(tmp_path: Path) -> None:
    for seed, problem, plan in random_lines(6):
        if plan.stages[0].config.recompute != "none":
            continue
        profile = tmp_path / "profile.json"
        write_profile(profile, problem.profile)
        for name, text in export(plan, "torch-csv").items():
            (tmp_path / name).write_text(text)
        config = plan.stages[0].config
        degrees = [f"--{name}={getattr(config, name)}" for name in ("data", "tensor", "zero")]
        asked = ["--profile", str(profile), "--parts", str(tmp_path / "parts.json"), "-o", str(tmp_path / "back.json")]
        assert main(["import", "torch-csv", str(tmp_path / "schedule.csv"), *asked, *degrees]) == 0, seed
        back = read_plan(tmp_path / "back.json")
        assert [s.operators for s in back.stages] == [s.operators for s in plan.stages]
        assert [s.ranks for s in back.stages] == [s.ranks for s in plan.stages]
        assert export(back, "torch-csv") == export(plan, "torch-csv")
        assert main(["validate", str(tmp_path / "back.json")]) == 0


@pytest.fixture(scope="module")
def two_ranks():  # type: ignore[no-untyped-def]
    pool = RankPool(2, multiprocessing.get_context("spawn"))  # torch alone, no captures
    yield pool
    pool.close()


def modules_chain() -> Profile:
    """Return the profile of `tests.support.ranks.torch_runtime.chain`: two operators a module, and a loss."""
    profile = chain(2 * len(NAMES) + 1)
    graph = profile.graph
    homes = [name for name in NAMES for _ in range(2)]
    named = [replace(o, module=home) for o, home in zip(graph.operators, homes, strict=False)]
    operators = (*named, replace(graph.operators[-1], kind="loss"))
    return replace(profile, graph=replace(graph, operators=operators))


@pytest.mark.parametrize(
    ("schedule", "places"),
    [("1f1b", (0, 1)), ("interleaved-1f1b", (0, 1, 0, 1)), ("zb-h1", (0, 1)), ("zb-v", (0, 1, 1, 0))],
)
def test_an_exported_chain_trains_in_torchs_own_runtime_with_exact_gradients(
    schedule: str, places: tuple[int, ...], two_ranks: RankPool, tmp_path: Path
) -> None:
    profile = modules_chain()
    parts = profile.graph.parts
    cuts = [0, *(parts.index(f"layers.{i}") for i in ((3,) if len(places) == 2 else (1, 3, 5))), len(parts)]
    stages = tuple(tuple(range(a, b)) for a, b in pairwise(cuts))
    problem = Problem(profile, None, 2, 8, 2, optimizer="none", target="any")
    plan = given_plan(problem, Given("by hand", stages, places, StageConfig(), schedule))
    for name, text in export(plan, "torch-csv").items():
        (tmp_path / name).write_text(text)
    assert two_ranks.run(largest_error, folder=str(tmp_path), num_microbatches=4) == [0.0, 0.0]


def test_the_checker_holds_shared_parameters_against_the_model() -> None:
    plan, graph = tied_plan(), described("gpt2").graph
    assert check_plan(plan, graph) == ()
    one = replace(plan, stages=(replace(plan.stages[0], shared=()), plan.stages[1]))
    (problem,) = check_plan(one, graph)
    assert (problem.kind, problem.place) == ("model", "stage 0")
    older = replace(plan, stages=tuple(replace(stage, shared=()) for stage in plan.stages))
    assert check_plan(older, graph) == ()
