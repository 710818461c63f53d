"""Small remakes of 31 configurations of 2024 to 2026, with their real proportions of kinds, for transformers 5.24.

One or two layers and small widths; heads, groups of them, windows, experts and towers as the published configurations
have them. Keys are model types.
"""

from typing import Any

WRITTEN_FOR = "5.24"

TEXT: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
WIDE: dict[str, Any] = {**TEXT, "head_dim": 16}
EXPERTS: dict[str, Any] = {
    **TEXT, "num_hidden_layers": 2, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **EXPERTS, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
SPEECH: dict[str, Any] = {
    "vocab_size": 128, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
    "max_source_positions": 32, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": TEXT,
    "mistral": {**TEXT, "sliding_window": 16},
    "qwen3": WIDE,
    "phi3": TEXT,
    "gemma2": WIDE,
    "gemma3_text": {**WIDE, "sliding_window": 16},
    "olmo3": {**TEXT, "sliding_window": 16},
    "granite": TEXT,
    "glm4": WIDE,
    "smollm3": TEXT,
    "ernie4_5": TEXT,
    "exaone4": TEXT,
    "hunyuan_v1_dense": WIDE,
    "nemotron": TEXT,
    "starcoder2": TEXT,
    "seed_oss": WIDE,
    "arcee": TEXT,
    "stablelm": TEXT,
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "olmoe": EXPERTS,
    "phimoe": EXPERTS,
    "gpt_oss": {**EXPERTS, "head_dim": 16},
    "granitemoe": EXPERTS,
    "deepseek_v3": LATENT,
    "glm4_moe": {**EXPERTS, "head_dim": 16, "first_k_dense_replace": 1, "n_shared_experts": 1},
    "dots1": {**EXPERTS, "num_key_value_heads": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "modernbert": {**TEXT, "local_attention": 16, "cls_token_id": 0, "sep_token_id": 0},
    "whisper": SPEECH,
    "siglip_vision_model": IMAGES,
    "dinov2": {**IMAGES, "mlp_ratio": 2},
}
