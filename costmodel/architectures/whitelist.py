"""Model types that are understood, and what their class takes for a key that a config.json leaves out.

Checked against the configuration classes of transformers 5.23 (`tests/costmodel/test_architectures_huggingface.py`). A
value of None: the key may be null or absent, and its meaning then is in the family's module. Leaves out keys that
change neither shapes nor work (initialisers, rotation bases, caches).
"""

from collections.abc import Mapping

Default = int | float | bool | str | None | tuple[int, ...]

_TEXT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_LLAMA = {**_TEXT, "head_dim": None, "attention_bias": False, "mlp_bias": False}
_MISTRAL = {
    **_TEXT,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "head_dim": None,
    "sliding_window": 4096,
}
_QWEN_TEXT = {
    **_TEXT,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_QWEN = {**_QWEN_TEXT, "max_window_layers": 28, "layer_types": None}
_QWEN_MOE = {
    **_QWEN_TEXT,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
_LATENT = {
    **_TEXT,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK_V3 = {
    **_LATENT,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 4096,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}
_QWEN_VL_TEXT = {
    **_QWEN,
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_window_layers": 80,
}
_QWEN_VISION = {
    "depth": 32,
    "hidden_size": 3584,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_CLIP_LAYERS = {"num_hidden_layers": 12, "projection_dim": 512, "attention_dropout": 0.0}

DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": {**_MISTRAL, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128, "attention_bias": False},
    "qwen2_moe": {
        **_QWEN_MOE,
        "max_window_layers": 28,
        "layer_types": None,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "num_experts": 60,
        "qkv_bias": True,
    },
    "qwen3_moe": {
        **_QWEN_MOE,
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "head_dim": None,
        "attention_bias": False,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    },
    "deepseek_v2": {
        **_LATENT,
        "vocab_size": 102400,
        "mlp_bias": False,
        "first_k_dense_replace": 0,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "n_group": None,
        "topk_group": None,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
    },
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": {
        **_TEXT,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "head_dim": 64,
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
    },
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_dropout": 0.0,
        "max_position_embeddings": 2048,
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "t5": {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "dropout_rate": 0.1,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
    },
    "vit": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_dropout_prob": 0.0,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "num_labels": 2,
    },
    "clip": {"projection_dim": 512},
    "qwen2_vl": {"tie_word_embeddings": False},
    "qwen2_5_vl": {"tie_word_embeddings": False},
    "mllama": {},
}
"""Keys of each model type's own level."""

PARTS: Mapping[str, Mapping[str, Mapping[str, Default]]] = {
    "clip": {
        "text_config": {
            **_CLIP_LAYERS,
            "vocab_size": 49408,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "max_position_embeddings": 77,
        },
        "vision_config": {
            **_CLIP_LAYERS,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "num_channels": 3,
            "image_size": 224,
            "patch_size": 32,
        },
    },
    "qwen2_vl": {
        "text_config": _QWEN_VL_TEXT,
        "vision_config": {**_QWEN_VISION, "embed_dim": 1280, "mlp_ratio": 4},
    },
    "qwen2_5_vl": {
        "text_config": _QWEN_VL_TEXT,
        "vision_config": {
            **_QWEN_VISION,
            "intermediate_size": 3420,
            "out_hidden_size": 3584,
            "window_size": 112,
            "fullatt_block_indexes": (7, 15, 23, 31),
        },
    },
    "mllama": {
        "text_config": {
            **_TEXT,
            "vocab_size": 128256,
            "intermediate_size": 14336,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
        },
        "vision_config": {
            "hidden_size": 1280,
            "num_hidden_layers": 32,
            "num_global_layers": 8,
            "attention_heads": 16,
            "num_channels": 3,
            "intermediate_size": 5120,
            "vision_output_dim": 7680,
            "image_size": 448,
            "patch_size": 14,
            "max_num_tiles": 4,
            "intermediate_layers_indices": (3, 7, 15, 23, 30),
            "supported_aspect_ratios": None,
        },
    },
}
"""Keys of the parts of models with several towers; a part's keys may be at the top where none of the top's are."""

HEADS: Mapping[str, tuple[str, ...]] = {
    "llama": ("LlamaForCausalLM",),
    "mistral": ("MistralForCausalLM",),
    "mixtral": ("MixtralForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen2_moe": ("Qwen2MoeForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",),
    "deepseek_v2": ("DeepseekV2ForCausalLM",),
    "deepseek_v3": ("DeepseekV3ForCausalLM",),
    "kimi_k2": ("DeepseekV3ForCausalLM", "KimiK2ForCausalLM"),
    "gpt_oss": ("GptOssForCausalLM",),
    "gpt2": ("GPT2LMHeadModel",),
    "gpt_neox": ("GPTNeoXForCausalLM",),
    "t5": ("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    "vit": ("ViTForImageClassification",),
    "clip": ("CLIPModel",),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration",),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration",),
    "mllama": ("MllamaForConditionalGeneration",),
}
"""The classes (``architectures``) that a model type is described as; any other holds more or less than they do."""
