"""Described models against the real classes of transformers on `meta`: the same parameters, name by name."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from costmodel.architectures.configs import read_config
from costmodel.architectures.describe import describe_config
from costmodel.architectures.whitelist import DEFAULTS, PARTS

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()

TEXT = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
MLA = {
    **TEXT, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 24, "head_dim": 8,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "moe_intermediate_size": 32, "num_experts_per_tok": 2, "num_nextn_predict_layers": 0,
}  # fmt: skip
CLIP_TEXT = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
CLIP_IMAGE = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
MLLAMA_IMAGE = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_global_layers": 1, "attention_heads": 4, "intermediate_size": 96,
    "vision_output_dim": 144, "image_size": 28, "patch_size": 14, "intermediate_layers_indices": [1, 2],
}  # fmt: skip
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "LlamaForCausalLM", TEXT),
    ("llama", "LlamaForCausalLM", {**TEXT, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", "MistralForCausalLM", {**TEXT, "head_dim": 24}),
    ("mixtral", "MixtralForCausalLM", TEXT),
    ("qwen2", "Qwen2ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    ("qwen3", "Qwen3ForCausalLM", TEXT),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**TEXT, "mlp_only_layers": [0], "num_experts": 6}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**TEXT, "decoder_sparse_step": 2, "num_experts": 8}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", MLA),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {**MLA, "q_lora_rank": None}),
    ("deepseek_v3", "DeepseekV3ForCausalLM", {**MLA, "n_group": 2, "topk_group": 1}),
    ("gpt_oss", "GptOssForCausalLM", {**TEXT, "num_local_experts": 4}),
    ("gpt2", "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32}),
    ("gpt_neox", "GPTNeoXForCausalLM", TEXT),
    ("t5", "T5ForConditionalGeneration", {"vocab_size": 96, "d_model": 64, "d_kv": 12, "d_ff": 96, "num_layers": 2,
        "num_heads": 4, "num_decoder_layers": 3}),
    ("t5", "T5ForConditionalGeneration", {"vocab_size": 96, "d_model": 64, "d_ff": 96, "num_heads": 4,
        "feed_forward_proj": "gated-gelu"}),
    ("vit", "ViTForImageClassification", {**CLIP_IMAGE, "id2label": {str(i): str(i) for i in range(7)}}),
    ("clip", "CLIPModel", {"text_config": CLIP_TEXT, "vision_config": CLIP_IMAGE, "projection_dim": 40}),
    ("qwen2_vl", "Qwen2VLForConditionalGeneration", {"text_config": TEXT,
        "vision_config": {"depth": 2, "embed_dim": 48, "hidden_size": 64, "num_heads": 4}}),
    ("qwen2_vl", "Qwen2VLForConditionalGeneration", {**TEXT, "tie_word_embeddings": True,
        "vision_config": {"depth": 1, "embed_dim": 48, "hidden_size": 64, "num_heads": 4}}),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"text_config": TEXT,
        "vision_config": {"depth": 2, "hidden_size": 48, "out_hidden_size": 64, "num_heads": 4}}),
    ("mllama", "MllamaForConditionalGeneration", {"text_config": {**TEXT, "cross_attention_layers": [1]},
        "vision_config": MLLAMA_IMAGE}),
]  # fmt: skip


def named(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("model_type", "class_name", "values"), CASES)
def test_parameters_are_those_of_the_class_by_name_and_shape(
    model_type: str, class_name: str, values: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **values}))
    config = transformers.AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        real = named(getattr(transformers, class_name)(config))
    graph = describe_config("small", read_config(path), tokens=300 if "vl" in model_type else 16).graph
    assert {p.name: p.shape for p in graph.parameters if p.trainable} == real


@pytest.mark.parametrize("model_type", [name for name in DEFAULTS if name != "kimi_k2"])
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[model_type]
    levels = [(config, DEFAULTS[model_type])]
    levels += [(config.sub_configs[part], keys) for part, keys in PARTS.get(model_type, {}).items()]
    for owner, keys in levels:
        made = owner()
        for key, default in keys.items():
            if default is None or (key == "tie_word_embeddings" and owner is not config):
                continue  # worked out from other keys; towers are tied by the level above
            found = getattr(owner, key, None)
            if found is None or isinstance(found, property):
                found = getattr(made, key)
            assert (tuple(found) if isinstance(found, list) else found) == default, (owner.__name__, key)
