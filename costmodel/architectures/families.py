"""From a configuration to the shape of a decoder.

Where keys of one meaning have several names, this is where they meet. Leaves out the reading (`configs`).
"""

from costmodel.architectures.configs import Config
from costmodel.architectures.layer_operators import Heads
from costmodel.architectures.shapes import Decoder, Experts, Latent
from costmodel.errors import InvalidInput


def decoder_shape(config: Config, prefix: str = "model") -> Decoder:
    """Return the shape of a Llama-like decoder."""
    hidden, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kind, num_layers = config.model_type.partition(".")[0], config.integer("num_hidden_layers")
    latent = _latent(config) if "kv_lora_rank" in config.values else None
    width = config.optional("head_dim") or hidden // num_heads
    heads = Heads(
        num_heads, config.optional("num_key_value_heads") or num_heads, width, width, config.optional("sliding_window")
    )
    if latent:
        heads = Heads(num_heads, num_heads, latent.plain_width + latent.rotary_width, config.integer("v_head_dim"))
    biased = bool(config.values.get("attention_bias"))
    qwen2 = kind in ("qwen2", "qwen2_vl", "qwen2_5_vl")
    return Decoder(
        config.integer("vocab_size"),
        hidden,
        num_layers,
        config.integer("intermediate_size"),
        heads,
        tied=config.flag("tie_word_embeddings"),
        windowed=_windowed(config, kind, num_layers),
        sparse=_sparse(config, num_layers),
        experts=_experts(config, kind),
        latent=latent,
        query_bias=biased or qwen2 or bool(config.values.get("qkv_bias")),
        output_bias=biased,
        ffn_bias=bool(config.values.get("mlp_bias")),
        head_norms=kind in ("qwen3", "qwen3_moe"),
        sinks=kind == "gpt_oss",
        num_predict=config.optional("num_nextn_predict_layers"),
        prefix=prefix,
    )


def _latent(config: Config) -> Latent:
    return Latent(
        config.optional("q_lora_rank"),
        config.integer("kv_lora_rank"),
        config.integer("qk_nope_head_dim"),
        config.integer("qk_rope_head_dim"),
    )


def _windowed(config: Config, kind: str, num_layers: int) -> frozenset[int]:
    """Return the layers whose attention is windowed."""
    if config.values.get("layer_types") is not None:
        given = config.listed("layer_types")
        if len(given) != num_layers:
            raise InvalidInput(f"layer_types names {len(given)} layers of {num_layers}; correct config.json")
        return frozenset(i for i, windowed in enumerate(given) if windowed)
    if kind in ("mistral", "mixtral"):
        return frozenset(range(num_layers))
    if kind == "gpt_oss":
        return frozenset(range(0, num_layers, 2))
    if not config.values.get("use_sliding_window"):
        return frozenset()
    if kind == "qwen2_moe":
        return frozenset(range(0, min(num_layers, config.integer("max_window_layers")), 2))
    if kind == "qwen3_moe":
        return frozenset(range(num_layers))
    return frozenset(range(config.integer("max_window_layers"), num_layers))


def _sparse(config: Config, num_layers: int) -> frozenset[int]:
    """Return the layers with experts; layers of multi-token prediction have them too."""
    if "decoder_sparse_step" in config.values:
        step, dense = config.integer("decoder_sparse_step"), config.listed("mlp_only_layers")
        return frozenset(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense)
    first = config.integer("first_k_dense_replace") if "first_k_dense_replace" in config.values else 0
    return frozenset(range(first, num_layers + config.optional("num_nextn_predict_layers")))


def _experts(config: Config, kind: str) -> Experts | None:
    if "n_routed_experts" in config.values:
        width = config.integer("moe_intermediate_size")
        num, active = config.integer("n_routed_experts"), config.integer("num_experts_per_tok")
        shared = config.optional("n_shared_experts") * width
        groups, reached = config.optional("n_group"), config.optional("topk_group")
        groups, reached = (groups, reached) if 0 < reached < groups else (0, 0)
        corrected = kind in ("deepseek_v3", "kimi_k2")
        return Experts(num, active, width, shared, corrected=corrected, groups=groups, reached=reached)
    if "num_experts_per_tok" not in config.values:
        return None
    num = config.integer("num_local_experts" if "num_local_experts" in config.values else "num_experts")
    active = config.integer("num_experts_per_tok")
    if kind == "qwen2_moe":
        shared = config.integer("shared_expert_intermediate_size")
        return Experts(num, active, config.integer("moe_intermediate_size"), shared, "shared_expert", True)
    width = config.integer("moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size")
    biased = kind == "gpt_oss"
    return Experts(num, active, width, router="router" if biased else "gate", biased=biased)
