"""Described models: published parameter counts, closed forms of their operations, what is kept, what is refused."""

import json
from pathlib import Path

import pytest

from costmodel.architectures.command import describe, make
from costmodel.architectures.configs import make_config, read_config
from costmodel.architectures.describe import Description, describe_config
from costmodel.architectures.table import rows
from costmodel.errors import InvalidInput, UsageError
from costmodel.model.graph import Operator
from costmodel.model.profile import read_profile, write_profile


def written(path: Path, **values: object) -> Path:
    path.write_text(json.dumps(values))
    return path


def named(found: Description, name: str) -> Operator:
    return found.graph.operators[found.graph.index[name]]


@pytest.mark.parametrize("row", [row for row in rows() if row.parameters], ids=lambda row: row.id)
def test_parameters_of_the_table_are_exact(row: object) -> None:
    found = describe(row.id)
    assert (found.parameters, found.active_parameters) == (row.parameters, row.active_parameters)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v2", 235_741_434_880, 21_375_800_320),  # 236B, 21B active: arXiv 2405.04434
        ("kimi-k2", 1_026_408_232_448, 32_861_500_928),  # 1.04T (rounded up), 32B active: its report
        # 116.83B; the report's 5.13B active leaves out the embedding's 201,088 x 2,880.
        ("gpt-oss-120b", 116_829_156_672, 5_132_849_472 + 201_088 * 2_880),
    ],
)
def test_parameters_agree_with_publications_to_their_precision(name: str, total: int, active: int) -> None:
    found = describe(name)
    assert (found.parameters, found.active_parameters) == (total, active)


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ({"model_type": "gpt2"}, 124_439_808),  # GPT-2 small
        ({"model_type": "t5"}, 60_506_624),  # T5-small
        # T5 1.1-small unties the head: 76,961,152.
        ({"model_type": "t5", "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu",
          "tie_word_embeddings": False}, 76_961_152),
        ({"model_type": "gpt_neox"}, 20_554_567_680),  # GPT-NeoX-20B
        ({"model_type": "llama"}, 6_738_415_616),  # Llama-2-7B
        ({"model_type": "mistral", "max_position_embeddings": 32768}, 7_241_732_096),  # Mistral-7B
        ({"model_type": "clip"}, 151_277_313),  # CLIP ViT-B/32
    ],
)  # fmt: skip
def test_class_defaults_give_the_published_model(values: dict[str, object], total: int, tmp_path: Path) -> None:
    found = describe_config("m", read_config(written(tmp_path / "config.json", **values)))
    assert found.parameters == total


def test_the_prediction_layer_is_described_but_not_counted_in_the_main_model() -> None:
    found = describe("deepseek-v3")
    h, layer = 7168, 11_507_286_272
    # eh_proj, enorm, hnorm, shared_head.norm and the layer; embedding and head are shared.
    assert found.all_parameters - found.parameters == layer + 2 * h * h + 3 * h
    assert named(found, "model.layers.61.shared_head.head").parameters == ("lm_head.weight",)
    assert named(found, "model.layers.61.embed_tokens").parameters == ("model.embed_tokens.weight",)
    assert set(found.graph.predecessors[found.graph.index["loss"]]) == {
        found.graph.index["lm_head"],
        found.graph.index["model.layers.61.shared_head.head"],
    }


@pytest.mark.parametrize(("name", "s"), [("gpt3-175b", 2048), ("gpt3-175b", 1024)])
def test_operations_of_a_gpt_step_are_megatrons_closed_form(name: str, s: int) -> None:
    """Narayanan et al., 2021, appendix: forward 24 l s h^2 (1 + s / 6h + V / 12 l h), written without fractions."""
    l, h, v = 96, 12288, 50257  # noqa: E741
    assert describe(name, sequence=s).flop == 24 * l * s * h * h + 4 * l * s * s * h + 2 * s * h * v


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "qwen3-32b"])
def test_operations_of_a_dense_step_are_palms_closed_form(name: str) -> None:
    """Chowdhery et al., 2022, appendix B: 6 N + 12 L H Q T a token, forward a third; N without embedding and norms."""
    found, s = describe(name), 4096
    matrices = sum(o.parameter_bytes // 2 for o in found.graph.operators if o.kind == "linear")
    work = named(found, "model.layers.0.self_attn.attention").work
    num_layers = sum(o.kind == "attention" for o in found.graph.operators)
    assert found.flop == s * (2 * matrices + 4 * num_layers * work.heads * work.inner * s)


def test_operations_of_experts_count_the_active_ones() -> None:
    found = describe("mixtral-8x7b", sequence=1024)
    assert named(found, "model.layers.0.mlp.experts.gate_up_proj").flop == 2 * 1024 * 2 * 4096 * 2 * 14336


def test_a_gpt_layer_keeps_korthikantis_34_sbh_and_the_statistics_of_flash_attention() -> None:
    """Korthikanti et al., 2022, section 4.1, without the 5 a s^2 b that a flash kernel never stores."""
    s, h, a = 2048, 12288, 96
    found = describe("gpt3-175b", sequence=s)
    kept = {
        item.storage: item.size_bytes
        for operator in found.graph.operators
        if operator.module.startswith("transformer.h.5.") or operator.module == "transformer.h.5"
        for item in operator.saved
    }
    assert sum(kept.values()) == 34 * s * h + 4 * a * s


def test_a_model_without_dropout_has_no_dropout_operators() -> None:
    kinds = {o.kind for o in describe("llama3-8b").graph.operators}
    assert "dropout" not in kinds
    assert {o.kind for o in describe("gpt3-175b").graph.operators} >= {"dropout", "gelu", "layer_norm"}


def test_tied_embeddings_share_one_parameter() -> None:
    found = describe("gpt3-175b")
    assert named(found, "lm_head").parameters == named(found, "transformer.wte").parameters


def test_the_towers_of_clip_meet_only_at_the_loss() -> None:
    graph = describe("clip-vit-l-14").graph
    for position, reads in enumerate(graph.predecessors[:-1]):
        towers = {graph.operators[i].name.split("_")[0] for i in (position, *reads)}
        assert len(towers - {"visual"}) <= 1 or towers == {"visual", "vision"}
    assert len(graph.predecessors[-1]) == 2


def test_cross_attending_layers_of_llama_vision_all_read_the_tower() -> None:
    graph = describe("llama3.2-11b-vision").graph
    projector = next(t for t in graph.tensors if t.producer == "model.multi_modal_projector")
    layers = {int(name.split(".")[3]) for name in projector.consumers}
    assert layers == {3, 8, 13, 18, 23, 28, 33, 38}


def test_every_layer_of_t5s_decoder_attends_to_the_encoder() -> None:
    graph = describe_config("t5", make_config("t5", {"num_layers": 3, "num_decoder_layers": 2})).graph
    encoded = next(t for t in graph.tensors if t.producer == "encoder.final_dropout")
    assert encoded.consumers == tuple(
        f"decoder.block.{i}.layer.1.EncDecAttention.{part}" for i in range(2) for part in "kv"
    )


def test_windowed_layers_see_no_more_than_their_window() -> None:
    found = describe("gpt-oss-120b", sequence=4096)
    contexts = [o.work.context for o in found.graph.operators if o.kind == "attention"]
    assert contexts == [128, 4096] * 18


@pytest.mark.parametrize("name", [row.id for row in rows()])
def test_every_operator_says_what_it_does_and_ends_in_the_loss(name: str) -> None:
    graph = describe(name).graph
    assert all(operator.work for operator in graph.operators)
    assert graph.operators[-1].name == "loss"
    assert all(graph.successors[:-1])


@pytest.mark.parametrize("name", [row.id for row in rows()])
def test_kept_storages_that_flow_have_their_tensors_size(name: str) -> None:
    graph = describe(name).graph
    sizes: dict[int, int] = {}
    for tensor in graph.tensors:  # views of a storage are smaller
        sizes[tensor.storage] = max(tensor.size_bytes[0], sizes.get(tensor.storage, 0))
    for operator in graph.operators:
        for item in operator.saved:
            assert sizes.get(item.storage, item.size_bytes) == item.size_bytes


def test_keys_left_out_take_the_class_default_and_are_named(tmp_path: Path) -> None:
    values = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "architectures": ["LlamaForCausalLM"]}
    found = read_config(written(tmp_path / "config.json", **values))
    assert "intermediate_size" in found.defaults
    assert "hidden_size" not in found.defaults
    assert found.integer("intermediate_size") == 11008


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "mamba"},
            r"/model_type: found \"mamba\"; described from shapes are llama, .*model captures",
        ),
        ({"hidden_size": 8}, "names its model_type"),
        ({"model_type": "llama", "hidden_size": "64"}, "/hidden_size: found .*whole number"),
        ({"model_type": "llama", "hidden_size": 0}, "/hidden_size: found 0"),
        ({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}, "no multiple of num_key_value"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "/moe_layer_freq: found 2; only 1 is described"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"]}, "/layer_types/0: .*allowed are sliding_att"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"]}, "layer_types names 1 layers of 36"),
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok is None; give it a value"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "is LlamaForCausalLM alone"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForRewardModel"]}, "is Qwen2ForCausalLM alone"),
        ({"model_type": "mistral", "architectures": ["MistralModel"]}, "other classes hold more or less"),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "is T5ForConditionalGeneration or T5WithLM"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "take quantization_config out"),
        ({"model_type": "llama", "hidden_size": [64]}, "/hidden_size: found .*whole number"),
        ({"model_type": "llama", "attention_bias": []}, "/attention_bias: found .*true or false"),
        ({"model_type": "mllama", "cross_attention_layers": 3}, "/cross_attention_layers: found 3; a list"),
        ({"model_type": "llama", "num_attention_heads": 8192}, "hidden_size 4096 is no multiple of num_att"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "9 of 8 experts take each token"),
        ({"model_type": "vit", "patch_size": 500}, "image_size of 224 has no patch of patch_size 500"),
    ],
)
def test_a_config_that_cannot_be_described_is_refused_with_the_way_out(
    values: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "config.json", **values)
    with pytest.raises(InvalidInput, match=message):
        describe_config("m", read_config(path))


def test_a_key_that_transformers_writes_as_null_is_one_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", model_type="vit", architectures=None, id2label=None, head_dim=None)
    assert read_config(path).integer("num_labels") == 2


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match=r"'yolo11n' is no known model; ids are llama3-8b.*module:function"):
        make("yolo11n", "h100-sxm-80", (1,))


def test_learned_positions_bound_the_sequence() -> None:
    with pytest.raises(UsageError, match="2048 learned positions"):
        describe("gpt3-175b", sequence=4096)


def test_an_image_must_fit_the_text() -> None:
    with pytest.raises(UsageError, match="takes 256 of the text's tokens"):
        describe("qwen2.5-vl-7b", sequence=256)


def test_a_described_profile_reads_back_and_is_marked_as_estimated(tmp_path: Path) -> None:
    config = written(tmp_path / "config.json", model_type="llama", num_hidden_layers=2)
    profile, facts = make(str(config), "a100-sxm-80", (1, 4), 512)
    write_profile(tmp_path / "p.json", profile)
    assert read_profile(tmp_path / "p.json") == profile
    assert profile.origin.estimated
    assert profile.whole.step_ns[0] == profile.whole.accumulate_ns + sum(
        t.forward_ns[0] + t.backward_input_ns[0] + t.backward_weight_ns[0] for t in profile.times
    )
    assert facts["sequence"] == 512


def test_the_bounds_of_a_step_enclose_it() -> None:
    profile, _ = make("qwen3-8b", "h100-sxm-80", (1, 2), 1024)
    bounds = profile.extra["step_bounds"]
    for i, step in enumerate(profile.whole.step_ns):
        assert bounds["low_ns"][i] <= step - profile.whole.accumulate_ns <= bounds["high_ns"][i]


def test_a_device_without_the_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="has no bf16"):
        make("llama3-8b", "v100-sxm2-16", (1,))


def test_layers_beyond_the_limit_of_operators_are_refused_before_any_is_built() -> None:
    with pytest.raises(UsageError, match=r"num_hidden_layers 10001: at least 100010 operators .*; at most 100000"):
        describe_config("here", make_config("llama", {"num_hidden_layers": 10_001}))
