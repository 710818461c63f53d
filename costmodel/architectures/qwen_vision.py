"""Qwen2-VL and Qwen2.5-VL: an image tower whose merged patches take places among the text's tokens.

One image of `IMAGE_SIDE` pixels a sample. Qwen2.5's blocks attend within windows except a few. Leaves out video (a
frame counts twice, as images do) and images of other sizes.
"""

from dataclasses import replace

from costmodel.architectures.builder import Value
from costmodel.architectures.configs import Config
from costmodel.architectures.decoder import embed, finish, layer
from costmodel.architectures.families import decoder_shape
from costmodel.architectures.feed_forward import gated_feed_forward
from costmodel.architectures.layer_operators import Heads, LayerOperators, join
from costmodel.errors import UsageError
from costmodel.model.work import Work

IMAGE_SIDE = 448


def qwen_vl(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add image tower, merger and text model; of the `tokens` the merged patches are a part."""
    image = _tower(builder, config.parts["vision_config"])
    if image.tokens >= tokens:
        raise UsageError(
            f"--sequence {tokens}: the image of {IMAGE_SIDE} x {IMAGE_SIDE} takes {image.tokens} of the text's tokens; "
            "give a longer sequence"
        )
    shape = decoder_shape(config.parts["text_config"], "model.language_model")
    shape = replace(shape, tied=shape.tied or config.flag("tie_word_embeddings"))
    words = embed(builder, shape, tokens)
    x = builder.elementwise("model.masked_scatter", "masked_scatter", [words, image])
    for i in range(shape.num_layers):
        x = layer(builder, shape, x, i)
    finish(builder, shape, x)


def _tower(builder: LayerOperators, config: Config) -> Value:
    newer = "out_hidden_size" in config.values
    hidden = config.integer("hidden_size" if newer else "embed_dim")
    x = _patches(builder, config, hidden)
    for i in range(config.integer("depth")):
        x = _block(builder, config, f"model.visual.blocks.{i}", x, i)
    return _merge(builder, config, x, config.integer("out_hidden_size" if newer else "hidden_size"))


def _patches(builder: LayerOperators, config: Config, hidden: int) -> Value:
    side, frames, channels = (config.integer(k) for k in ("patch_size", "temporal_patch_size", "in_channels"))
    module = "model.visual.patch_embed.proj"
    shape = {f"{module}.weight": (hidden, channels, frames, side, side)}
    work = Work("matmul", "sequence", (IMAGE_SIDE // side) ** 2, inner=channels * frames * side * side, outer=hidden)
    return builder.add(module, "conv", module, (), work, hidden, parameters=shape)


def _block(builder: LayerOperators, config: Config, path: str, x: Value, i: int) -> Value:
    newer = "window_size" in config.values
    normed = builder.norm(join(path, "norm1"), x, bias=not newer)
    out = _attention(builder, config, join(path, "attn"), normed, i)
    x = builder.elementwise(join(path, "add_1"), "add", [x, out])
    normed = builder.norm(join(path, "norm2"), x, bias=not newer)
    out = _feed_forward(builder, config, join(path, "mlp"), normed)
    return builder.elementwise(join(path, "add_2"), "add", [x, out])


def _attention(builder: LayerOperators, config: Config, path: str, x: Value, i: int) -> Value:
    num_heads = config.integer("num_heads")
    width, window = x.width // num_heads, 0
    if "window_size" in config.values and i not in config.listed("fullatt_block_indexes"):
        window = (config.integer("window_size") // config.integer("patch_size")) ** 2
    qkv = builder.linear(join(path, "qkv"), x, 3 * x.width, "column", bias=True)
    q = builder.elementwise(join(path, "rope_q"), "rope", [qkv], split="inner", width=x.width)
    k = builder.elementwise(join(path, "rope_k"), "rope", [qkv], split="inner", width=x.width)
    heads = Heads(num_heads, num_heads, width, width, window, causal=False)
    mixed = builder.attention(join(path, "attention"), q, k, qkv, heads)
    return builder.linear(join(path, "proj"), mixed, x.width, "row", bias=True)


def _feed_forward(builder: LayerOperators, config: Config, path: str, x: Value) -> Value:
    if "mlp_ratio" not in config.values:
        return gated_feed_forward(builder, path, x, config.integer("intermediate_size"), bias=True)
    up = builder.linear(join(path, "fc1"), x, config.integer("mlp_ratio") * x.width, "column", bias=True)
    inner = builder.activation(join(path, "act"), "quick_gelu", up)
    return builder.linear(join(path, "fc2"), inner, x.width, "row", bias=True)


def _merge(builder: LayerOperators, config: Config, x: Value, outer: int) -> Value:
    path, wide = "model.visual.merger", x.width * config.integer("spatial_merge_size") ** 2
    normed = builder.norm(join(path, "ln_q"), x, bias="mlp_ratio" in config.values)
    up = builder.linear(join(path, "mlp.0"), normed, wide, "sequence", bias=True, inner=wide)
    inner = builder.activation(join(path, "mlp.1"), "gelu", up, "sequence")
    return builder.linear(join(path, "mlp.2"), inner, outer, "sequence", bias=True)
