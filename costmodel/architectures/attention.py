"""Self-attention of decoders: grouped queries (Ainslie et al., 2023) and latent attention (DeepSeek-V2, 2024).

Column-parallel projections, row-parallel output. Latent attention's down-projections are whole on every device of a
tensor-parallel group, as in Megatron-LM. Leaves out attention with absorbed weights, which only inference uses.
"""

from dataclasses import replace

from costmodel.architectures.builder import Value
from costmodel.architectures.layer_operators import Heads, LayerOperators, join
from costmodel.architectures.shapes import Decoder, Latent


def grouped_attention(builder: LayerOperators, path: str, x: Value, shape: Decoder, windowed: bool) -> Value:
    """Add projections, head norms, rotation, core and output projection."""
    heads = _window(shape.heads, windowed)
    q = builder.linear(join(path, "q_proj"), x, heads.num_heads * heads.width, "column", bias=shape.query_bias)
    k = builder.linear(join(path, "k_proj"), x, heads.num_kv_heads * heads.width, "column", bias=shape.query_bias)
    v = builder.linear(join(path, "v_proj"), x, heads.num_kv_heads * heads.width, "column", bias=shape.query_bias)
    if shape.head_norms:
        q = builder.norm(join(path, "q_norm"), q, split="inner", width=heads.width)
        k = builder.norm(join(path, "k_norm"), k, split="inner", width=heads.width)
    q = builder.elementwise(join(path, "rope_q"), "rope", [q], split="inner")
    k = builder.elementwise(join(path, "rope_k"), "rope", [k], split="inner")
    sinks = {join(path, "sinks"): (heads.num_heads,)} if shape.sinks else None
    mixed = builder.attention(join(path, "attention"), q, k, v, heads, parameters=sinks)
    return builder.linear(join(path, "o_proj"), mixed, shape.hidden, "row", bias=shape.output_bias)


def latent_attention(builder: LayerOperators, path: str, x: Value, shape: Decoder, latent: Latent) -> Value:
    """Add compressed queries, keys and values, their expansion per head, core and output projection."""
    heads = shape.heads
    q = x
    if latent.query_rank:
        q = builder.linear(join(path, "q_a_proj"), x, latent.query_rank, "sequence", bias=shape.query_bias)
        q = builder.norm(join(path, "q_a_layernorm"), q)
    name = "q_b_proj" if latent.query_rank else "q_proj"
    q = builder.linear(join(path, name), q, heads.num_heads * heads.width, "column")
    rank = latent.key_rank + latent.rotary_width
    low = builder.linear(join(path, "kv_a_proj_with_mqa"), x, rank, "sequence", bias=shape.query_bias)
    normed = builder.norm(join(path, "kv_a_layernorm"), replace(low, width=latent.key_rank))
    wide = heads.num_heads * (latent.plain_width + heads.value_width)
    kv = builder.linear(join(path, "kv_b_proj"), normed, wide, "column")
    q = builder.elementwise(join(path, "rope_q"), "rope", [q], split="inner")
    k = builder.elementwise(join(path, "rope_k"), "rope", [kv, low], split="inner", width=heads.num_heads * heads.width)
    mixed = builder.attention(join(path, "attention"), q, k, kv, heads)
    return builder.linear(join(path, "o_proj"), mixed, shape.hidden, "row", bias=shape.output_bias)


def _window(heads: Heads, windowed: bool) -> Heads:
    return heads if windowed else replace(heads, window=0)
