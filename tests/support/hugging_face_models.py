"""Hugging Face models with small random configurations, their code unchanged, each with its own loss."""

from typing import Any

import torch
import transformers

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def own_loss(output: Any) -> Any:
    return output.loss


def _language(module: Any, batch: int) -> Any:
    tokens = torch.randint(50, (batch, 8))
    return module, {"input_ids": tokens, "labels": tokens}, own_loss


def llama(batch: int = 4) -> Any:
    torch.manual_seed(0)
    return _language(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), batch)


def mixtral(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4)
    return _language(transformers.MixtralForCausalLM(config), batch)


def deepseek(batch: int = 4) -> Any:
    """Layers of four experts beside a shared one, attention through latents."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4}, moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=0, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=4,
    )  # fmt: skip
    return _language(transformers.DeepseekV3ForCausalLM(config), batch)


def mistral(batch: int = 4) -> Any:
    torch.manual_seed(0)
    return _language(transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL)), batch)


def gemma(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.GemmaConfig(**{**SMALL, "num_hidden_layers": 1}, head_dim=4)
    return _language(transformers.GemmaForCausalLM(config), batch)


def bert(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return _language(transformers.BertForMaskedLM(config), batch)


def opt(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=16, word_embed_proj_dim=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=16, dropout=0.0,
    )  # fmt: skip
    return _language(transformers.OPTForCausalLM(config), batch)


def vit(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**VISION, image_size=16, patch_size=8, num_labels=4)
    images = {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(4, (batch,))}
    return transformers.ViTForImageClassification(config), images, own_loss


def gpt2(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _language(transformers.GPT2LMHeadModel(config), batch)


def t5(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return _language(transformers.T5ForConditionalGeneration(config), batch)


def clip_vision(batch: int = 4) -> Any:
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(**VISION, image_size=16, patch_size=4)
    images = {"pixel_values": torch.randn(batch, 3, 16, 16)}
    return transformers.CLIPVisionModel(config), images, lambda output: output.pooler_output.square().mean()


def llava(batch: int = 4) -> Any:
    """A vision tower, a projector and a language model; four tokens of each text are the image's."""
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION, image_size=16, patch_size=8),
        text_config=transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}),
        image_token_index=63,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    module, inputs, loss = _language(transformers.LlavaForConditionalGeneration(config), batch)
    inputs["input_ids"][:, 1:5] = config.image_token_index
    return module, {**inputs, "pixel_values": torch.randn(batch, 3, 16, 16)}, loss


def qwen2_vl(batch: int = 4) -> Any:
    """One image of 4 x 4 patches a sample, which become four tokens; patches of all images lie in one list."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}
    config = transformers.Qwen2VLConfig(
        text_config={
            **SMALL,
            "num_hidden_layers": 1,
            "vocab_size": 70,
            "rope_parameters": rope,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4},
        image_token_id=65,
        vision_start_token_id=67,
        vision_end_token_id=68,
    )
    tokens = torch.randint(50, (batch, 10))
    tokens[:, 1:7] = torch.tensor([67, 65, 65, 65, 65, 68])
    inputs = {
        "input_ids": tokens,
        "labels": tokens.clone(),
        "mm_token_type_ids": (tokens == config.image_token_id).long(),
        "pixel_values": torch.randn(16 * batch, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * batch),
    }
    patches = {"pixel_values": lambda value, k, n: value[len(value) // n * k : len(value) // n * (k + 1)]}
    return {
        "model": transformers.Qwen2VLForConditionalGeneration(config),
        "inputs": inputs,
        "loss": own_loss,
        "split": patches,
    }
