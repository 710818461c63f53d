"""T5: an encoder and a decoder that attends to it (Raffel et al., 2020).

The first layer of each stack looks up the relative-position biases that all its layers add to their scores, one value
for all samples. Both stacks read sequences of the same length. A config that unties the head has one of its own, as T5
1.1's checkpoints do. Leaves out that a learned bias keeps some flash kernels away.
"""

from costmodel.architectures.builder import Value
from costmodel.architectures.configs import Config
from costmodel.architectures.layer_operators import Heads, LayerOperators, join
from costmodel.model.work import Work

SHARED = "shared.weight"


def t5(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add T5's training model for `tokens` in the encoder and as many in the decoder."""
    encoded = _stack(builder, config, "encoder", config.integer("num_layers"), tokens, None)
    num_layers = config.optional("num_decoder_layers") or config.integer("num_layers")
    decoded = _stack(builder, config, "decoder", num_layers, tokens, encoded)
    tied = SHARED if config.flag("tie_word_embeddings") else ""
    builder.head_and_loss(decoded, config.integer("vocab_size"), tied)


def _stack(
    builder: LayerOperators, config: Config, path: str, num_layers: int, tokens: int, source: Value | None
) -> Value:
    rate, hidden = config.number("dropout_rate"), config.integer("d_model")
    x = builder.embedding(join(path, "embed_tokens"), tokens, config.integer("vocab_size"), hidden, tied=SHARED)
    x = builder.dropout(join(path, "dropout"), x, rate)
    bias = _position_bias(builder, config, f"{path}.block.0.layer.0.SelfAttention", tokens)
    for i in range(num_layers):
        inner = f"{path}.block.{i}.layer"
        x = _attention(builder, config, f"{inner}.0", "SelfAttention", x, None, bias, source is not None)
        if source is not None:
            x = _attention(builder, config, f"{inner}.1", "EncDecAttention", x, source, None, False)
        x = _feed_forward(builder, config, f"{inner}.{1 if source is None else 2}", x)
    x = builder.norm(join(path, "final_layer_norm"), x)
    return builder.dropout(join(path, "final_dropout"), x, rate)


def _position_bias(builder: LayerOperators, config: Config, path: str, tokens: int) -> Value:
    buckets, heads = config.integer("relative_attention_num_buckets"), config.integer("num_heads")
    name = join(path, "relative_attention_bias")
    work = Work("embedding", "inner", tokens * tokens, inner=buckets, outer=heads)
    shape = {join(name, "weight"): (buckets, heads)}
    return builder.add(name, "embedding", name, (), work, heads, parameters=shape, fixed=True)


def _attention(
    builder: LayerOperators,
    config: Config,
    path: str,
    name: str,
    x: Value,
    source: Value | None,
    bias: Value | None,
    causal: bool,
) -> Value:
    num_heads, width = config.integer("num_heads"), config.integer("d_kv")
    inner, owner = num_heads * width, join(path, name)
    normed = builder.norm(join(path, "layer_norm"), x)
    read = source or normed
    q = builder.linear(join(owner, "q"), normed, inner, "column")
    k, v = (builder.linear(join(owner, part), read, inner, "column") for part in "kv")
    heads = Heads(num_heads, num_heads, width, width, causal=causal)
    mixed = builder.attention(join(owner, "attention"), q, k, v, heads, bias=bias)
    out = builder.linear(join(owner, "o"), mixed, x.width, "row")
    out = builder.dropout(join(path, "dropout"), out, config.number("dropout_rate"))
    return builder.elementwise(join(path, "add"), "add", [x, out], module=path)


def _feed_forward(builder: LayerOperators, config: Config, path: str, x: Value) -> Value:
    rate, width, owner = config.number("dropout_rate"), config.integer("d_ff"), join(path, "DenseReluDense")
    normed = builder.norm(join(path, "layer_norm"), x)
    gated, _, kind = config.text("feed_forward_proj").rpartition("-")
    if gated == "gated":
        gate, up = (builder.linear(join(owner, part), normed, width, "column") for part in ("wi_0", "wi_1"))
        inner = builder.gated(join(owner, "act"), kind, gate, up)
    else:
        inner = builder.activation(join(owner, "act"), kind, builder.linear(join(owner, "wi"), normed, width, "column"))
    inner = builder.dropout(join(owner, "dropout"), inner, rate, split="inner")
    out = builder.dropout(join(path, "dropout"), builder.linear(join(owner, "wo"), inner, x.width, "row"), rate)
    return builder.elementwise(join(path, "add"), "add", [x, out], module=path)
