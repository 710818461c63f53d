"""Decoder-only language models: Llama, Mistral, Mixtral, Qwen, DeepSeek, Kimi, GPT-OSS.

One layer: norm, attention, residual sum, norm, feed-forward, residual sum. Each layer of multi-token prediction reads
the trunk's last hidden state and the next tokens' embeddings, and shares embedding and head (DeepSeek-V3, 2024,
section 2.2). Leaves out dropout, which these models train without.
"""

from costmodel.architectures.attention import grouped_attention, latent_attention
from costmodel.architectures.builder import Value
from costmodel.architectures.feed_forward import gated_feed_forward, mixture
from costmodel.architectures.layer_operators import LayerOperators, join
from costmodel.architectures.shapes import Decoder


def decoder(builder: LayerOperators, shape: Decoder, tokens: int) -> None:
    """Add the whole training model, loss included."""
    x = embed(builder, shape, tokens)
    for i in range(shape.num_layers):
        x = layer(builder, shape, x, i)
    finish(builder, shape, x)


def embed(builder: LayerOperators, shape: Decoder, tokens: int) -> Value:
    """Add the token embedding."""
    return builder.embedding(join(shape.prefix, "embed_tokens"), tokens, shape.vocabulary, shape.hidden)


def layer(builder: LayerOperators, shape: Decoder, x: Value, i: int) -> Value:
    """Add layer `i`."""
    path = join(shape.prefix, f"layers.{i}")
    normed = builder.norm(join(path, "input_layernorm"), x)
    mixed = _attend(builder, join(path, "self_attn"), normed, shape, i in shape.windowed)
    x = builder.elementwise(join(path, "add_1"), "add", [x, mixed])
    normed = builder.norm(join(path, "post_attention_layernorm"), x)
    out = feed_forward(builder, join(path, "mlp"), normed, shape, i in shape.sparse)
    return builder.elementwise(join(path, "add_2"), "add", [x, out])


def feed_forward(builder: LayerOperators, path: str, x: Value, shape: Decoder, sparse: bool) -> Value:
    """Add the feed-forward block, with experts where `sparse`."""
    if sparse and shape.experts:
        return mixture(builder, path, x, shape.experts)
    return gated_feed_forward(builder, path, x, shape.ffn, shape.ffn_bias)


def finish(builder: LayerOperators, shape: Decoder, x: Value) -> None:
    """Add final norm, layers of multi-token prediction, head and loss."""
    embedding = join(shape.prefix, "embed_tokens.weight")
    tied = embedding if shape.tied else "lm_head.weight"
    normed = builder.norm(join(shape.prefix, "norm"), x)
    logits = [builder.linear("lm_head", normed, shape.vocabulary, "column", tied=tied)]
    for i in range(shape.num_layers, shape.num_layers + shape.num_predict):
        path = join(shape.prefix, f"layers.{i}")
        x = _predict(builder, shape, x, i, embedding)
        normed = builder.norm(join(path, "shared_head.norm"), x)
        logits.append(builder.linear(join(path, "shared_head.head"), normed, shape.vocabulary, "column", tied=tied))
    builder.cross_entropy(logits)


def _attend(builder: LayerOperators, path: str, x: Value, shape: Decoder, windowed: bool) -> Value:
    if shape.latent:
        return latent_attention(builder, path, x, shape, shape.latent)
    return grouped_attention(builder, path, x, shape, windowed)


def _predict(builder: LayerOperators, shape: Decoder, x: Value, i: int, embedding: str) -> Value:
    path = join(shape.prefix, f"layers.{i}")
    ahead = builder.embedding(join(path, "embed_tokens"), x.tokens, shape.vocabulary, shape.hidden, tied=embedding)
    both = [builder.norm(join(path, "enorm"), ahead), builder.norm(join(path, "hnorm"), x)]
    pair = builder.elementwise(join(path, "cat"), "cat", both, width=2 * shape.hidden)
    joined = builder.linear(join(path, "eh_proj"), pair, shape.hidden, "sequence")
    return layer(builder, shape, joined, i)
