"""GPT-2 (GPT-3's shape too) and GPT-NeoX: fused query, key and value, plain feed-forward, layer norms with biases.

GPT-2 learns its positions and drops values after embedding, attention and feed-forward, so that Korthikanti et al.'s
layer (2022, section 4.1) follows from its operators. GPT-NeoX's layer sums attention and feed-forward of one input.
Leaves out dropout of attention's scores: the flash kernel draws it again in the backward.
"""

from costmodel.architectures.builder import Value
from costmodel.architectures.configs import Config
from costmodel.architectures.layer_operators import Heads, LayerOperators, join


def gpt2(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add GPT-2's training model."""
    hidden, vocabulary = config.integer("n_embd"), config.integer("vocab_size")
    words = builder.embedding("transformer.wte", tokens, vocabulary, hidden)
    places = builder.embedding(
        "transformer.wpe", tokens, config.integer("n_positions"), hidden, split="sequence", batched=False
    )
    x = builder.elementwise("transformer.add", "add", [words, places])
    x = builder.dropout("transformer.drop", x, config.number("embd_pdrop"))
    for i in range(config.integer("n_layer")):
        x = _gpt2_layer(builder, config, f"transformer.h.{i}", x)
    x = builder.norm("transformer.ln_f", x, bias=True)
    tied = "transformer.wte.weight" if config.flag("tie_word_embeddings") else ""
    builder.head_and_loss(x, vocabulary, tied)


def gpt_neox(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add GPT-NeoX's training model."""
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    x = builder.embedding("gpt_neox.embed_in", tokens, vocabulary, hidden)
    x = builder.dropout("gpt_neox.emb_dropout", x, config.number("hidden_dropout"))
    for i in range(config.integer("num_hidden_layers")):
        x = _neox_layer(builder, config, f"gpt_neox.layers.{i}", x)
    x = builder.norm("gpt_neox.final_layer_norm", x, bias=True)
    tied = "gpt_neox.embed_in.weight" if config.flag("tie_word_embeddings") else ""
    builder.head_and_loss(x, vocabulary, tied)


def _gpt2_layer(builder: LayerOperators, config: Config, path: str, x: Value) -> Value:
    rate, num_heads = config.number("resid_pdrop"), config.integer("n_head")
    heads = Heads(num_heads, num_heads, x.width // num_heads, x.width // num_heads)
    normed = builder.norm(join(path, "ln_1"), x, bias=True)
    qkv = builder.linear(join(path, "attn.c_attn"), normed, 3 * x.width, "column", bias=True, transposed=True)
    mixed = builder.attention(join(path, "attn.attention"), qkv, qkv, qkv, heads)
    out = builder.linear(join(path, "attn.c_proj"), mixed, x.width, "row", bias=True, transposed=True)
    out = builder.dropout(join(path, "attn.resid_dropout"), out, rate)
    x = builder.elementwise(join(path, "add_1"), "add", [x, out])
    normed = builder.norm(join(path, "ln_2"), x, bias=True)
    width = config.optional("n_inner") or 4 * x.width
    up = builder.linear(join(path, "mlp.c_fc"), normed, width, "column", bias=True, transposed=True)
    inner = builder.activation(join(path, "mlp.act"), "gelu", up)
    out = builder.linear(join(path, "mlp.c_proj"), inner, x.width, "row", bias=True, transposed=True)
    out = builder.dropout(join(path, "mlp.dropout"), out, rate)
    return builder.elementwise(join(path, "add_2"), "add", [x, out])


def _neox_layer(builder: LayerOperators, config: Config, path: str, x: Value) -> Value:
    rate, parallel = config.number("hidden_dropout"), config.flag("use_parallel_residual")
    out = _neox_attention(builder, config, path, builder.norm(join(path, "input_layernorm"), x, bias=True))
    out = builder.dropout(join(path, "post_attention_dropout"), out, rate)
    middle = x if parallel else builder.elementwise(join(path, "add_1"), "add", [x, out])
    normed = builder.norm(join(path, "post_attention_layernorm"), middle, bias=True)
    up = builder.linear(
        join(path, "mlp.dense_h_to_4h"), normed, config.integer("intermediate_size"), "column", bias=True
    )
    inner = builder.activation(join(path, "mlp.act"), "gelu", up)
    down = builder.linear(join(path, "mlp.dense_4h_to_h"), inner, x.width, "row", bias=True)
    down = builder.dropout(join(path, "post_mlp_dropout"), down, rate)
    return builder.elementwise(join(path, "add_2"), "add", [down, out, x] if parallel else [down, middle])


def _neox_attention(builder: LayerOperators, config: Config, path: str, x: Value) -> Value:
    num_heads, bias = config.integer("num_attention_heads"), config.flag("attention_bias")
    heads = Heads(num_heads, num_heads, x.width // num_heads, x.width // num_heads)
    qkv = builder.linear(join(path, "attention.query_key_value"), x, 3 * x.width, "column", bias=bias)
    q = builder.elementwise(join(path, "attention.rope_q"), "rope", [qkv], split="inner", width=x.width)
    k = builder.elementwise(join(path, "attention.rope_k"), "rope", [qkv], split="inner", width=x.width)
    mixed = builder.attention(join(path, "attention.attention"), q, k, qkv, heads)
    return builder.linear(join(path, "attention.dense"), mixed, x.width, "row", bias=bias)
