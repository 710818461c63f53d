"""Plans from torch's orders and Megatron-LM's layouts: made, validated, compared, and refused where they are wrong."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from costmodel.model.profile import write_profile
from costmodel.stages.config import StageConfig
from planner.commands import main
from planner.export.given import given_plan
from planner.export.megatron import layout
from planner.export.read_layout import read_layout
from planner.plan import Plan, read_plan
from planner.question.problem import Problem
from tests.support.described_models import described

DEEPSEEK = {"model_type": "deepseek_v3", "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
            "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 16, "v_head_dim": 16, "max_position_embeddings": 512}  # fmt: skip


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A file with the profile of a Llama of 8 layers."""
    path = tmp_path / "profile.json"
    write_profile(path, described("llama"))
    return str(path)


def of_layout(text: str, num_places: int, **degrees: int) -> Plan:
    config = StageConfig(**degrees)  # type: ignore[arg-type]
    batch = 4 * num_places * config.data
    problem = Problem(described("llama"), None, num_places * config.data * config.tensor, batch, 1, target="megatron")
    graph = problem.profile.graph
    return given_plan(problem, read_layout(text, graph, num_places, config, batch // config.data))


@pytest.mark.parametrize(
    ("text", "num_places", "schedule", "layers"),
    [
        ("Et*3|t*5L", 2, "1f1b", [3, 5]),
        ("Ett|(tt|)*2ttL", 2, "interleaved-1f1b", [2, 2, 2, 2]),
        ("E|t*8|L", 3, "1f1b", [0, 8, 0]),
    ],
)
def test_a_layout_is_a_plan_that_goes_back_to_the_same_layout(
    text: str, num_places: int, schedule: str, layers: list[int]
) -> None:
    plan = of_layout(text, num_places, data=2, zero=1)
    assert plan.schedule == schedule
    assert [sum("layers" in name for name in stage.modules) for stage in plan.stages] == layers
    assert [stage.ranks[0] // 2 for stage in plan.stages] == [i % num_places for i in range(len(layers))]
    assert "megatron" in plan.runs_on
    assert layout(plan) == text


def test_an_empty_stage_keeps_its_place_in_megatrons_order_and_does_nothing() -> None:
    plan = of_layout("Et*4||t*2|t*2L", 2)
    whole = of_layout("Et*4|t|t|t*2L", 2)
    assert [stage.ranks for stage in plan.stages] == [(0,), (0,), (1,)]
    assert [(edge.source, edge.target) for edge in plan.edges] == list(pairwise(range(3)))
    computed = [[text for text in order if text[1] in "FB" and text[2:].isdigit()] for order in plan.orders]
    there = [text for text in whole.orders[0] if text[1] in "FB" and text[2:].isdigit()]
    assert computed[0] == [f"{int(text[0]) // 2}{text[1:]}" for text in there]
    assert "megatron" not in plan.runs_on


def test_layers_for_further_tokens_are_found_behind_the_head(tmp_path: Path) -> None:
    path, out = tmp_path / "config.json", str(tmp_path / "plan.json")
    path.write_text(json.dumps(DEEPSEEK))
    assert main(["model", str(path), "-o", str(tmp_path / "p.json"), "--sequence", "128"]) == 0
    asked = ["--profile", str(tmp_path / "p.json"), "--batch", "8", "--stages", "2", "-o", out]
    assert main(["import", "megatron-layout", "Ett|ttmL", *asked]) == 0
    assert read_plan(out).stages[1].modules[-1] == "model.layers.4"
    assert main(["validate", out]) == 0
    assert main(["export", out, "--to", "megatron", "-o", str(tmp_path / "megatron")]) == 0
    assert "--mtp-num-layers 1" in (tmp_path / "megatron" / "flags.txt").read_text()
    assert main(["import", "megatron-layout", "Ett|tt|m|L", *asked[:-4], "--stages", "4", "-o", out]) == 0
    assert layout(read_plan(out)) == "Ett|tt|m|L"
    assert main(["import", "megatron-layout", "Ett|ttL", *asked]) == 6


def test_a_layout_in_a_file_is_compared_with_a_plan_of_our_own(tmp_path: Path, profile: str, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "layout.txt").write_text("Et*2|t*6L\n")
    given, ours = str(tmp_path / "given.json"), str(tmp_path / "ours.json")
    asked = ["--profile", profile, "--batch", "16", "--stages", "2", "-o", given, "--json"]
    assert main(["import", "megatron-layout", str(tmp_path / "layout.txt"), *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stages"], found["devices"], found["microbatches"]) == (2, 2, 16)
    fixed = ["--stages", "2", "--microbatch-size", "1", "--target", "megatron", "--recompute", "none", "--zero", "0"]
    assert main(["plan", profile, "--devices", "2", "--batch", "16", "--from", given, "-o", ours, *fixed]) == 0
    capsys.readouterr()
    assert main(["compare", given, ours, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["step_time_ns"] == found["step_time_ns"] > rows[1]["step_time_ns"]


CSV = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["megatron-layout", "Et*4|t*4L", "--stages", "2"], 2, "--batch"),
        (["megatron-layout", "Et*4|t*4L", "--stages", "3", "--batch", "6"], 2, "2 stages on 3 places"),
        (["megatron-layout", "Et*4|t*3L", "--stages", "2", "--batch", "8"], 6, "has 7 't', and llama has 8 layers"),
        (["megatron-layout", "none.txt", "--stages", "2", "--batch", "8"], 3, "the sign 'n'"),
        (["torch-csv", "orders.csv", "--batch", "8"], 2, "drop --stages and --batch"),
        (["torch-csv", "orders.csv", "--parts", "twice.json"], 3, "is in stage 0 too"),
        (["torch-csv", "orders.csv", "--parts", "less.json"], 3, "'model.layers.7' is in no stage"),
        (["torch-csv", "orders.csv", "--parts", "unknown.json"], 3, "'nowhere' is no module or operator"),
        (["torch-csv", "orders.csv", "--parts", "one.json"], 3, "2 lists are needed"),
        (["torch-csv", "orders.csv", "--parts", "back.json"], 3, "number stages as data flows"),
        (["torch-csv", "nowhere.csv"], 3, "cannot be read"),
        (["torch-csv", "orders.csv", "--data", "4", "--shard-group", "2"], 2, "with --zero 1, 2 or 3"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    profile: str,
    capsys,
    monkeypatch,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = list(dict.fromkeys(described("llama").graph.parts))
    (tmp_path / "orders.csv").write_text(CSV)
    lists = {
        "twice": [names[:5], names[4:]],
        "less": [names[:5], [name for name in names[5:] if "7" not in name]],
        "unknown": [names[:5], [*names[5:], "nowhere"]],
        "one": [names],
        "back": [names[5:], names[:5]],
    }
    for name, rows in lists.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    assert main(["import", *arguments, "--profile", profile, "-o", "plan.json"]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()


def test_orders_without_a_list_take_equally_many_layers(tmp_path: Path, profile: str) -> None:
    (tmp_path / "orders.csv").write_text(CSV)
    out = str(tmp_path / "plan.json")
    assert main(["import", "torch-csv", str(tmp_path / "orders.csv"), "--profile", profile, "-o", out]) == 0
    plan = read_plan(out)
    assert (plan.schedule, [len(stage.modules) for stage in plan.stages]) == ("1f1b", [5, 6])
    assert "torchtitan" in plan.runs_on
    (tmp_path / "orders.csv").write_text("0F0,0F2,0F1,0B0,0B2,0B1\n1F0,1B0,1F2,1B2,1F1,1B1\n")
    assert main(["import", "torch-csv", str(tmp_path / "orders.csv"), "--profile", profile, "-o", out]) == 0
    assert read_plan(out).schedule == "torch-csv"
    assert main(["simulate", out]) == main(["validate", out]) == main(["explain", out]) == 0


@pytest.mark.parametrize(
    ("arguments", "zero"), [(["megatron-layout", "Et*4|t*4L"], 1), (["torch-csv", "orders.csv"], 3)]
)
def test_stages_divide_their_states_in_the_shard_groups_that_a_job_has(
    arguments: list[str], zero: int, tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text(CSV)
    asked = ["--data", "4", "--zero", str(zero), "--shard-group", "2", "--profile", profile, "-o", "plan.json"]
    asked += ["--stages", "2", "--batch", "16"] if arguments[0] == "megatron-layout" else []
    assert main(["import", *arguments, *asked]) == 0
    plan = read_plan("plan.json")
    assert [stage.config.shard_group for stage in plan.stages] == [2, 2]
    assert plan.runs_on


def test_a_plan_that_does_not_fit_says_which_rank_and_writes_nothing(tmp_path: Path, profile: str, capsys) -> None:  # type: ignore[no-untyped-def]
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        'format = "penstock-cluster"\nversion = 1\n[[device]]\nname = "small"\nmemory_gib = 0.01\n[[host]]\n'
        'device = "small"\ndevices = 2\n[[link]]\nname = "wire"\ngroup = 0\nbandwidth_gbs = 10.0\nlatency_us = 5.0\n'
    )
    asked = ["--profile", profile, "--batch", "8", "--stages", "2", "--cluster", str(cluster), "-o", "never.json"]
    assert main(["import", "megatron-layout", "Et*4|t*4L", *asked]) == 4
    assert "rank 0 peaks at" in capsys.readouterr().err
