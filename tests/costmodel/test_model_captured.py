"""`penstock model` of torch modules: own functions and any class of transformers, captured without their weights."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from costmodel.architectures.command import make
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.profile import read_profile
from costmodel.profiling.dry import dry_profile
from costmodel.profiling.options import Options
from planner.commands import main

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

DEVICE = "h100-sxm-80"
OWN = """
import torch
from torch import nn
from torch.nn import functional as F

def cross_entropy(output, targets):
    return F.cross_entropy(output.flatten(0, 1).float(), targets.flatten())

def language(batch=4, sequence=12):
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Linear(16, 32))
    tokens = torch.zeros(batch, sequence, dtype=torch.long)
    return model, (tokens,), tokens, cross_entropy

def in_sixteen_bits(batch=4):
    model, *rest = language(batch)
    return model.to(torch.bfloat16), *rest

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.body = nn.Sequential(nn.Linear(16, 256), nn.Linear(256, 16)).to(torch.bfloat16)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens).to(torch.bfloat16)).float())

def mixed(batch=4):
    tokens = torch.zeros(batch, 12, dtype=torch.long)
    return Mixed(), (tokens,), tokens, cross_entropy

def reads_values(batch=4):
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
    model, *rest = language(batch)
    return nn.Sequential(model, nn.Dropout(rates[1])), *rest

def tied(batch=4):
    _ = torch.linspace(0, 1, 3)[0].item()
    embed, head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
    head.weight = embed.weight
    tokens = torch.zeros(batch, 12, dtype=torch.long)
    return nn.Sequential(embed, head), (tokens,), tokens, cross_entropy

class Gather(nn.Linear):
    def forward(self, nodes, edges):
        return super().forward(torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]]))

class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.ModuleDict({"gather": Gather(8, 4)})

    def forward(self, nodes, edges):
        return self.head["gather"](nodes, edges)

def graphs():
    edges = torch.zeros(2, 20, dtype=torch.long)
    return Graphs(), (torch.randn(12, 8), edges), torch.zeros(12, dtype=torch.long), F.cross_entropy

def grown_graphs(batch=2):
    model, (nodes, edges), *_ = graphs()
    nodes = nodes.repeat(batch, 1)
    return model, (nodes, edges.repeat(1, batch)), torch.zeros(len(nodes), dtype=torch.long), F.cross_entropy

def cut_graphs():  # three, of four nodes each
    model, inputs, targets, loss = graphs()
    ways = {"edges": lambda edges, k, n: edges.chunk(n, 1)[k] - k * (12 // n)}
    inputs = {"nodes": inputs[0], "edges": torch.zeros(2, 18, dtype=torch.long)}
    return {"model": model, "inputs": inputs, "targets": targets, "loss": loss, "split": ways}
"""
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    (tmp_path / "capturedmodels.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("capturedmodels", None)


def config(**values: Any) -> str:
    Path("config.json").write_text(json.dumps(values))
    return "config.json"


def test_a_function_of_ones_own_is_described_and_planned_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "capturedmodels:language", "-o", "p.json", "--microbatch-sizes", "1,2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    profile = read_profile("p.json")
    assert (said["source"], said["parameters"], said["estimated"]) == ("captured", 3184, True)
    assert all(times.forward_ns[0] >= 0 for times in profile.times)
    assert sum(profile.whole.step_ns) > 0
    plan = ["plan", "p.json", "--devices", "2", "--batch", "4", "--planner", "uniform", "-o", "plan.json", "--json"]
    assert main(plan) == 0
    made = json.loads(Path("plan.json").read_text())
    assert "the profile's times are roofline estimates" in made["assumptions"]["estimated"]


@pytest.mark.parametrize(
    ("function", "dtype"), [("language", "float32"), ("in_sixteen_bits", "bfloat16"), ("mixed", "bfloat16")]
)
def test_a_model_is_taken_in_the_types_that_it_is_built_in(function: str, dtype: str) -> None:
    """A bfloat16 model was profiled as float32, and a mixture of types failed."""
    found = dry_profile(Options(f"capturedmodels:{function}", (2,), dry_run=True))
    assert found.dtype == dtype
    width = found.graph.parameter_index["0.weight" if function != "mixed" else "embed.weight"].size_bytes // (32 * 16)
    assert width == (2 if function == "in_sixteen_bits" else 4)


def test_a_function_that_reads_numbers_is_built_with_its_parameters_alone_on_meta() -> None:
    assert make("capturedmodels:reads_values", DEVICE, (2,))[1]["parameters"] == 3184


def test_what_is_tied_stays_tied_when_parameters_alone_are_on_meta() -> None:
    assert make("capturedmodels:tied", DEVICE, (2,))[1]["parameters"] == 32 * 16


def test_samples_are_as_long_as_asked_for_where_the_function_takes_a_sequence() -> None:
    short, long = (make("capturedmodels:language", DEVICE, (1,), n)[0].graph for n in (8, 16))
    assert [2 * o.flop for o in short.operators] == [o.flop for o in long.operators]
    with pytest.raises(UsageError, match="in_sixteen_bits' has no parameter 'sequence'"):
        make("capturedmodels:in_sixteen_bits", DEVICE, (1,), 16)


def test_a_class_that_is_not_described_is_captured_where_transformers_builds_it() -> None:
    path = config(model_type="phi3", **TEXT)
    profile, facts = make(path, DEVICE, (1, 2), 16)
    built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(path))
    assert facts["parameters"] == built.num_parameters()
    assert (facts["source"], profile.dtype) == ("captured", "bfloat16")


def test_a_class_with_another_head_is_the_class_that_is_named() -> None:
    """A T5 encoder was described as the whole model."""
    shape = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    path = config(model_type="t5", architectures=["T5EncoderModel"], **shape)
    built = transformers.T5EncoderModel(transformers.AutoConfig.from_pretrained(path))
    assert make(path, DEVICE, (1,), 16)[1]["parameters"] == built.num_parameters()


def test_the_same_configuration_is_described_or_captured_as_asked() -> None:
    path = config(model_type="llama", **TEXT)
    described, captured = (make(path, DEVICE, (1,), 16, source=source)[1] for source in ("described", "captured"))
    assert described["parameters"] == captured["parameters"]
    assert (described["source"], captured["source"]) == ("described", "captured")
    with pytest.raises(UsageError, match="'llama3-8b' is described alone"):
        make("llama3-8b", DEVICE, (1,), source="captured")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "no_such_model"}, "has no such model type: install a release that has it"),
        ({"model_type": "phi3", "architectures": ["Phi3ForDreams"]}, "has no class Phi3ForDreams"),
        ({"model_type": "phi3", "quantization_config": {"bits": 4}}, "take quantization_config out"),
        ({"model_type": "phi3", "hidden_size": "wide"}, "refuses this configuration"),
    ],
)
def test_a_configuration_that_transformers_does_not_build_is_refused_by_name(values: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make(config(**values), DEVICE, (1,))


@pytest.mark.parametrize(
    ("model_type", "more", "norm"),
    [
        ("olmo2", {}, "model.layers.0.self_attn.q_norm"),
        ("olmo2", {}, "model.layers.0.self_attn.k_norm"),
        ("mamba2", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}, "backbone.layers.0.mixer.norm"),
    ],
)
def test_a_norm_over_all_that_is_divided_sums_its_statistics(model_type: str, more: Any, norm: str) -> None:
    """Projections on both sides of it were left whole. A norm of each head by itself sums nothing."""
    profile, facts = make(config(model_type=model_type, **TEXT, **more), DEVICE, (1,), 16, source="captured")
    assert facts["tensor_parallel"] is True
    works = {o.module: o.work for o in profile.graph.operators if o.work and o.work.kind == "norm" and o.work.passes}
    assert works[norm].split == "column"
    heads = make(config(model_type="qwen3", **TEXT), DEVICE, (1,), 16, source="captured")[0].graph.operators
    assert {o.work.split for o in heads if o.work and o.work.kind == "norm"} == {"sequence", "inner"}


VIDEO = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "frames_per_clip": 4, "num_frames": 4}


@pytest.mark.parametrize(
    ("model_type", "more", "tokens"),
    [
        ("vjepa2", {"crop_size": 32, "pred_num_hidden_layers": 1}, 8),
        ("videomae", {"image_size": 32, "intermediate_size": 64}, 8),
        ("audio-spectrogram-transformer", {"max_length": 64, "intermediate_size": 64}, 2 + 12 * 5),
    ],
)
def test_videos_and_spectra_are_inputs_of_their_kind(model_type: str, more: Any, tokens: int) -> None:
    """The classes that classify them were not asked, so that masked training's reading of values was refused."""
    graph = make(config(model_type=model_type, **VIDEO, **more), DEVICE, (1,), source="captured")[0].graph
    assert next(o.work.tokens for o in graph.operators if o.work and o.work.kind == "attention") == tokens


RULE = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16}


@pytest.mark.parametrize(
    ("model_type", "kind", "more"),
    [("qwen3_5_text", "attention", {**RULE, "layer_types": ["linear_attention"]}), ("falcon_mamba", "scan", {})],
)
def test_a_scan_that_a_class_writes_out_is_one_operator_however_long_it_is(
    model_type: str, kind: str, more: Any
) -> None:
    """Steps within chunks, or tokens, were operators each: a minute a layer, and no end."""
    path = config(model_type=model_type, **{**TEXT, "num_hidden_layers": 1}, **more)
    short, long = (make(path, DEVICE, (1,), n, source="captured")[0].graph.operators for n in (128, 256))
    assert [o.name for o in short] == [o.name for o in long]
    (work,) = (o.work for o in long if o.work and o.work.kind == kind)
    if kind == "attention":  # 64 tokens a chunk: keys by each other, queries, two inverses, states read and written
        assert (work.heads, work.kv_heads, work.split) == (4, 2, "inner")
        assert work.context == (64 * (3 * 8 + 2 * 16) + 3 * 8 * 16) // (8 + 16)


def test_attention_of_an_odd_number_of_heads_stays_whole_where_others_divide() -> None:
    """One stage of one head kept a whole pyramid from tensor parallelism."""
    stages = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "image_size": 32}
    more = {"num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    path = config(model_type="segformer", **stages, **more, decoder_hidden_size=16)
    graph = make(path, DEVICE, (1,), source="captured")[0].graph
    works = (o.work for o in graph.operators if o.work and o.work.kind == "attention")
    assert [(work.heads, work.split) for work in works] == [(1, "sequence"), (2, "inner")]


def test_a_class_that_reads_what_a_configuration_does_not_say_is_refused_by_its_module() -> None:
    """The message said that the model fails on its own inputs, and to run it by hand."""
    vision = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
    path = config(model_type="qwen3_vl", text_config=TEXT, vision_config={**vision, "deepstack_visual_indexes": [0]})
    with pytest.raises(InvalidInput, match=r"in the module 'model\.visual': .* text_config as a config\.json"):
        make(path, DEVICE, (1,), 16)


@pytest.mark.parametrize("sizes", [(2,), (4,), (1, 2)])
def test_a_batch_of_graphs_is_refused_by_its_module_with_the_way_out(sizes: tuple[int, ...]) -> None:
    """Four of twelve nodes with all edges were described as a graph; two rows of edges were cut like a batch of two."""
    said = r"the module 'head\.gather' takes rows of the batch .* the input 'edges' names.* Say by split="
    with pytest.raises(InvalidInput, match=said):
        make("capturedmodels:graphs", DEVICE, sizes)


def test_edges_as_many_as_samples_by_chance_are_no_batch() -> None:
    with pytest.raises(InvalidInput, match=r"no input tensor has the batch \(2\).*of a batch of graphs"):
        make("capturedmodels:grown_graphs", DEVICE, (1, 2))


def test_edges_that_are_cut_with_their_graphs_are_described() -> None:
    assert make("capturedmodels:cut_graphs", DEVICE, (4,))[1]["parameters"] == 36


def test_a_plan_of_a_dry_run_is_told_to_estimate_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "capturedmodels:language", "--dry-run", "-o", "p.json", "--json"]) == 0
    assert main(["plan", "p.json", "--devices", "2", "--batch", "4", "-o", "plan.json"]) == 3
    assert "penstock model capturedmodels:language --device ID" in capsys.readouterr().err
