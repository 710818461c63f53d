"""Configurations of 2024 to 2026 with their real widths, heads and experts, and few layers, by name: type and keys.

Vocabularies are 32,000. Leaves out weights, and towers of models of several kinds beyond two layers each.
"""

from typing import Any

Shape = dict[str, Any]
WORDS: Shape = {"vocab_size": 32000, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def text(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, **more: Any) -> Shape:
    """Return the keys of a language model."""
    return {
        **WORDS, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 4096, **more,
    }  # fmt: skip


def images(hidden: int, ffn: int, heads: int, side: int | list[int], patch: int | list[int], **more: Any) -> Shape:
    """Return the keys of a tower over images, two layers."""
    return {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 2, "num_attention_heads": heads,
        "image_size": side, "patch_size": patch, **more,
    }  # fmt: skip


def experts(num: int, active: int, width: int, **more: Any) -> Shape:
    """Return the keys of experts."""
    return {
        "num_experts": num, "num_local_experts": num, "n_routed_experts": num, "num_experts_per_tok": active,
        "moe_intermediate_size": width, **more,
    }  # fmt: skip


LATENT: Shape = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
SIGLIP = images(1152, 4304, 16, 224, 14, model_type="siglip_vision_model")
MAMBA: Shape = {"mamba_n_heads": 128, "mamba_d_head": 64}

SHAPES: dict[str, tuple[str, Shape]] = {
    "qwen2.5-7b": ("qwen2", text(3584, 18944, 2, 28, 4)),
    "command-r7b": ("cohere2", text(4096, 14336, 4, 32, 8, sliding_window=1024)),
    "olmo2-7b": ("olmo2", text(4096, 11008, 2, 32, 32)),
    "apertus-8b": ("apertus", text(4096, 21504, 2, 32, 8)),
    "ministral-8b": ("ministral", text(4096, 12288, 2, 32, 8, head_dim=128, sliding_window=1024)),
    "bitnet-2b": ("bitnet", text(2560, 6912, 2, 20, 5)),
    "diffllama-375m": ("diffllama", text(1024, 4096, 2, 32, 8)),
    "nanochat-d20": ("nanochat", text(1280, 5120, 2, 10, 10)),
    "minicpm3-4b": ("minicpm3", text(2560, 6400, 2, 40, 40, q_lora_rank=768, kv_lora_rank=256, qk_nope_head_dim=64,
                                     qk_rope_head_dim=32, v_head_dim=64)),
    "eurobert-210m": ("eurobert", text(768, 3072, 2, 12, 12)),
    "t5gemma-ml": ("t5gemma", {side: text(1024, 4096, 2, 8, 4, head_dim=128, sliding_window=512)
                               for side in ("encoder", "decoder")}),
    "deepseek-v2-lite": ("deepseek_v2", text(2048, 10944, 3, 16, 16, first_k_dense_replace=1, n_shared_experts=2,
                                             q_lora_rank=None, **LATENT, **experts(64, 6, 1408))),
    "qwen1.5-moe-a2.7b": ("qwen2_moe", text(2048, 5632, 2, 16, 16, shared_expert_intermediate_size=5632,
                                            **experts(60, 4, 1408))),
    "qwen3-next-80b": ("qwen3_next", text(2048, 5120, 4, 16, 2, head_dim=256, shared_expert_intermediate_size=512,
                                          linear_num_value_heads=32, linear_num_key_heads=16,
                                          **experts(512, 10, 512))),
    "llama4-scout": ("llama4_text", text(5120, 8192, 4, 40, 8, head_dim=128, intermediate_size_mlp=16384,
                                         num_local_experts=16, num_experts_per_tok=1)),
    "minimax-m2": ("minimax_m2", text(3072, 1536, 2, 48, 8, head_dim=128, num_local_experts=256,
                                      num_experts_per_tok=8)),
    "ernie4.5-21b-a3b": ("ernie4_5_moe", text(2560, 12288, 3, 20, 4, moe_num_experts=64, moe_k=6,
                                              moe_intermediate_size=1536, moe_num_shared_experts=2,
                                              moe_layer_start_index=1)),
    "hunyuan-a13b": ("hunyuan_v1_moe", text(4096, 3072, 2, 32, 8, head_dim=128, num_experts=64, moe_topk=8)),
    "lfm2-1.2b": ("lfm2", text(2048, 8192, 4, 32, 8, layer_types=["conv", "conv", "full_attention", "conv"])),
    "lfm2-8b-a1b": ("lfm2_moe", text(2048, 7168, 4, 32, 8, num_dense_layers=2, **experts(32, 4, 1792),
                                     layer_types=["conv", "conv", "full_attention", "conv"])),
    "falcon-h1-1.5b": ("falcon_h1", text(2048, 4096, 2, 8, 2, head_dim=128, mamba_d_ssm=2048, mamba_n_heads=32,
                                         mamba_d_head=64, mamba_d_state=256)),
    "mamba2-1.3b": ("mamba2", {**WORDS, "hidden_size": 2048, "num_hidden_layers": 2, "num_heads": 64, "head_dim": 64,
                               "state_size": 128, "n_groups": 1}),
    "nemotron-h-8b": ("nemotron_h", text(4096, 14336, 4, 32, 8, hybrid_override_pattern="M-*-", head_dim=128,
                                         mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128)),
    "bamba-9b": ("bamba", text(4096, 14336, 4, 32, 8, attn_layer_indices=[2], mamba_n_groups=1, mamba_d_state=128,
                               **MAMBA)),
    "dinov3-l": ("dinov3_vit", images(1024, 4096, 16, 224, 16)),
    "swinv2-b": ("swinv2", {"image_size": 256, "patch_size": 4, "embed_dim": 128, "depths": [2, 2],
                            "num_heads": [4, 8], "window_size": 8}),
    "convnextv2-b": ("convnextv2", {"depths": [2, 2, 2, 2], "hidden_sizes": [128, 256, 512, 1024]}),
    "hiera-b": ("hiera", {}),
    "segformer-b0": ("segformer", {}),
    "depth-anything-s": ("depth_anything", {}),
    "vjepa2-l": ("vjepa2", {"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
                            "pred_num_hidden_layers": 2, "crop_size": 256, "frames_per_clip": 16}),
    "internvit-300m": ("internvl_vision", images(1024, 4096, 16, [448, 448], [14, 14])),
    "moonshine": ("moonshine", {}),
    "w2v-bert-2": ("wav2vec2-bert", {"num_hidden_layers": 2, "vocab_size": 64}),
    "parakeet-ctc": ("parakeet_ctc", {}),
    "qwen2-audio-tower": ("qwen2_audio_encoder", {"encoder_layers": 2}),
    "wav2vec2-base": ("wav2vec2", {"num_hidden_layers": 2}),
    "gemma3-4b": ("gemma3", {"text_config": text(2560, 10240, 2, 8, 4, head_dim=256, sliding_window=1024),
                             "vision_config": images(1152, 4304, 16, 896, 14), "mm_tokens_per_image": 256,
                             "image_token_id": 31999}),
    "llava-7b": ("llava", {"text_config": text(4096, 11008, 2, 32, 32, model_type="llama"),
                           "vision_config": images(1024, 4096, 16, 336, 14, model_type="clip_vision_model"),
                           "image_token_index": 31999, "image_token_id": 31999, "image_seq_length": 576}),
    "paligemma-3b": ("paligemma", {"text_config": text(2048, 16384, 2, 8, 1, head_dim=256, model_type="gemma"),
                                   "vision_config": {**SIGLIP, "projection_dim": 2048, "num_image_tokens": 256},
                                   "image_token_id": 31999, "image_token_index": 31999}),
    "internvl3-1b": ("internvl", {"text_config": text(896, 4864, 2, 14, 2, model_type="qwen2"),
                                  "vision_config": images(1024, 4096, 16, [448, 448], [14, 14]),
                                  "image_token_id": 31999, "image_seq_length": 256}),
    "aya-vision-8b": ("aya_vision", {"text_config": text(4096, 14336, 2, 32, 8, model_type="cohere2"),
                                     "vision_config": {**SIGLIP, "image_size": 364}, "image_token_id": 31999,
                                     "image_token_index": 31999}),
    "qwen3-vl-4b": ("qwen3_vl", {"text_config": text(2560, 9728, 2, 32, 8, head_dim=128), "image_token_id": 31999,
                                 "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "depth": 2,
                                                   "num_heads": 16, "out_hidden_size": 2560,
                                                   "deepstack_visual_indexes": [0]}}),
    "blip-2": ("blip-2", {"text_config": {"model_type": "opt", "num_hidden_layers": 2}, "image_token_index": 50265,
                          "vision_config": {"num_hidden_layers": 2}, "qformer_config": {"num_hidden_layers": 2}}),
    "florence2-l": ("florence2", {}),
    "bart-l": ("bart", {"vocab_size": 32000, "d_model": 1024, "encoder_layers": 2, "decoder_layers": 2,
                        "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
                        "decoder_ffn_dim": 4096}),
    "umt5-l": ("umt5", {"vocab_size": 32000, "d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_layers": 2,
                        "num_decoder_layers": 2, "num_heads": 16}),
    "esm2-650m": ("esm", {"vocab_size": 33, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 2,
                          "num_attention_heads": 20, "pad_token_id": 1, "mask_token_id": 32}),
    "gemma3n-e2b": ("gemma3n_text", text(2048, 8192, 10, 8, 2, head_dim=256, sliding_window=512,
                                         vocab_size_per_layer_input=32000, num_kv_shared_layers=5,
                                         layer_types=[*["sliding_attention"] * 4, "full_attention"] * 2)),
    "longcat-flash": ("longcat_flash", text(6144, 12288, 2, 64, 64, ffn_hidden_size=12288, n_routed_experts=64,
                                            expert_ffn_hidden_size=2048, zero_expert_num=32, moe_topk=12,
                                            q_lora_rank=1536, kv_lora_rank=512, num_layers=2)),
    "qwen3.5-9b-text": ("qwen3_5_text", text(4096, 12288, 4, 16, 4, head_dim=256)),
    "kimi-linear-48b": ("kimi_linear", text(2304, 9216, 4, 32, 32, head_dim=128, **experts(64, 8, 1024))),
    "olmo-hybrid-7b": ("olmo_hybrid", text(3840, 11008, 4, 30, 30)),
    "jamba-mini": ("jamba", text(4096, 14336, 4, 32, 8, attn_layer_period=4, attn_layer_offset=1, mamba_d_state=16,
                                 num_experts=16, num_experts_per_tok=2)),
    "falcon-mamba-7b": ("falcon_mamba", {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 2,
                                         "state_size": 16, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}),
    "helium-2b": ("helium", text(2560, 7040, 2, 20, 20, head_dim=128)),
    "vaultgemma-1b": ("vaultgemma", text(1152, 6912, 2, 4, 4, head_dim=256, sliding_window=512)),
    "granite-moe-shared": ("granitemoeshared", text(1536, 512, 2, 24, 8, num_local_experts=40, num_experts_per_tok=8,
                                                    shared_intermediate_size=1024)),
    "videomae-b": ("videomae", images(768, 3072, 12, 224, 16, num_frames=16)),
    "vivit-b": ("vivit", images(768, 3072, 12, 224, 16, num_frames=32)),
    "timesformer-b": ("timesformer", images(768, 3072, 12, 224, 16, num_frames=8)),
    "ast": ("audio-spectrogram-transformer", {"num_hidden_layers": 2}),
}  # fmt: skip
