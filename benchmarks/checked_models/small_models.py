"""Small models of the families that the installed transformers builds, their code unchanged: ``...small_models:NAME``.

Each is built from its own configuration with random weights, and has its own loss. Leaves out weights that people use.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EXPERTS: dict[str, object] = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
}  # fmt: skip
CAUSAL: dict[str, dict[str, object]] = {
    "qwen2": {}, "qwen3": {}, "qwen3_moe": EXPERTS, "gemma2": {}, "gemma3_text": {}, "phi3": {}, "olmo2": {},
    "olmoe": EXPERTS, "glm4": {}, "cohere2": {}, "granite": {}, "granitemoe": EXPERTS, "gpt_oss": EXPERTS,
    "smollm3": {}, "ernie4_5": {}, "starcoder2": {}, "stablelm": {}, "nemotron": {}, "exaone4": {}, "gpt_neox": {},
    "helium": {}, "mistral": {}, "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "state_size": 4},
    "llama4_text": EXPERTS,
}  # fmt: skip
"""Language models by their ``model_type``, with what their configurations need beside the sizes of all."""
MASKED: dict[str, dict[str, object]] = {"roberta": {}, "modernbert": {}, "electra": {"embedding_size": 16}}
VISION: dict[str, dict[str, object]] = {"dinov2": {}, "vit_msn": {}, "dinov2_with_registers": {}}
TOKENS = 8


def _language(kind: str, auto: Any, options: dict[str, object], batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **options})
    for name in vars(config):
        if "dropout" in name and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    tokens = torch.randint(3, 60, (batch, TOKENS))
    return auto.from_config(config), {"input_ids": tokens, "labels": tokens}, _own_loss


def _vision(kind: str, options: dict[str, object], batch: int = 4) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(kind, **sizes, image_size=16, patch_size=8, num_labels=4, **options)
    images = {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(4, (batch,))}
    auto: Any = transformers.AutoModelForImageClassification
    return auto.from_config(config), images, _own_loss


def _own_loss(output: Any) -> Any:
    return output.loss


def _builder(make: Callable[..., Any], *arguments: object) -> Callable[..., Any]:
    def build(batch: int = 4) -> Any:
        return make(*arguments, batch=batch)

    return build


for _name, _options in CAUSAL.items():
    globals()[_name] = _builder(_language, _name, transformers.AutoModelForCausalLM, _options)
for _name, _options in MASKED.items():
    globals()[_name] = _builder(_language, _name, transformers.AutoModelForMaskedLM, _options)
for _name, _options in VISION.items():
    globals()[_name] = _builder(_vision, _name, _options)
