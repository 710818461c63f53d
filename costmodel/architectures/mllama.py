"""Llama-3.2-Vision (mllama): an image tower that some layers of the text model attend to across.

One image of as many tiles as the model takes a sample. The tower's output joins states of several depths, and every
cross-attending layer reads it: long edges through the whole model. Leaves out padded tiles and rows without an image.
"""

from costmodel.architectures.builder import Value
from costmodel.architectures.configs import Config
from costmodel.architectures.decoder import finish, layer
from costmodel.architectures.families import decoder_shape
from costmodel.architectures.feed_forward import gated_feed_forward
from costmodel.architectures.layer_operators import Heads, LayerOperators, join
from costmodel.architectures.shapes import Decoder
from costmodel.architectures.towers import plain_feed_forward
from costmodel.model.work import Work

VISION, TEXT = "model.vision_model", "model.language_model"
EXTRA_ROWS = 8
"""Rows of the embedding beyond the vocabulary: the image token's."""

ASPECT_RATIOS = 8
"""How many aspect ratios the class supports when config.json names none; tile embeddings have a row for each and one
for no image."""


def mllama(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add image tower, projector and text model of `tokens`."""
    shape = decoder_shape(config.parts["text_config"], TEXT)
    crossing = config.parts["text_config"].listed("cross_attention_layers")
    seen = _tower(builder, config.parts["vision_config"])
    seen = builder.linear("model.multi_modal_projector", seen, shape.hidden, "sequence", bias=True)
    x = builder.embedding(join(TEXT, "embed_tokens"), tokens, shape.vocabulary + EXTRA_ROWS, shape.hidden)
    for i in range(shape.num_layers):
        x = _crossing_layer(builder, shape, x, seen, i) if i in crossing else layer(builder, shape, x, i)
    finish(builder, shape, x)


def _crossing_layer(builder: LayerOperators, shape: Decoder, x: Value, seen: Value, i: int) -> Value:
    path = join(TEXT, f"layers.{i}")
    normed = builder.norm(join(path, "input_layernorm"), x)
    out = _cross_attention(builder, shape, join(path, "cross_attn"), normed, seen)
    x = _gated_sum(builder, path, "add_1", x, out, "cross_attn_attn_gate")
    normed = builder.norm(join(path, "post_attention_layernorm"), x)
    out = gated_feed_forward(builder, join(path, "mlp"), normed, shape.ffn)
    return _gated_sum(builder, path, "add_2", x, out, "cross_attn_mlp_gate")


def _cross_attention(builder: LayerOperators, shape: Decoder, path: str, x: Value, seen: Value) -> Value:
    heads = Heads(
        shape.heads.num_heads, shape.heads.num_kv_heads, shape.heads.width, shape.heads.value_width, causal=False
    )
    q = builder.linear(join(path, "q_proj"), x, heads.num_heads * heads.width, "column")
    k, v = (
        builder.linear(join(path, name), seen, heads.num_kv_heads * heads.width, "column")
        for name in ("k_proj", "v_proj")
    )
    q = builder.norm(join(path, "q_norm"), q, split="inner", width=heads.width)
    k = builder.norm(join(path, "k_norm"), k, split="inner", width=heads.width)
    mixed = builder.attention(join(path, "attention"), q, k, v, heads)
    return builder.linear(join(path, "o_proj"), mixed, shape.hidden, "row")


def _gated_sum(builder: LayerOperators, path: str, name: str, x: Value, out: Value, gate: str) -> Value:
    """Add `out` times the tanh of a learned gate, for whose gradient it is kept."""
    return builder.elementwise(
        join(path, name), "gated_add", [x, out], keeps=[out], parameters={join(path, gate): (1,)}
    )


def _tower(builder: LayerOperators, config: Config) -> Value:
    x = _tiles(builder, config)
    local, depths = config.integer("num_hidden_layers"), []
    for i in range(local):
        if i in config.listed("intermediate_layers_indices"):
            depths.append(x)
        x = _image_layer(builder, config, f"{VISION}.transformer.layers.{i}", x, False)
    x = builder.norm(join(VISION, "layernorm_post"), x, bias=True)
    x = _tile_positions(builder, config, "post_tile_positional_embedding", x)
    for i in range(config.integer("num_global_layers")):
        x = _image_layer(builder, config, f"{VISION}.global_transformer.layers.{i}", x, True)
    kept = _rows(config) * config.integer("max_num_tiles")
    return builder.elementwise(
        join(VISION, "cat"), "cat", [x, *depths], width=config.integer("vision_output_dim"), tokens=kept
    )


def _rows(config: Config) -> int:
    """Return patches of one tile and its class token."""
    return (config.integer("image_size") // config.integer("patch_size")) ** 2 + 1


def _tiles(builder: LayerOperators, config: Config) -> Value:
    hidden, side = config.integer("hidden_size"), config.integer("patch_size")
    tiles, channels, module = config.integer("max_num_tiles"), config.integer("num_channels"), "patch_embedding"
    rows, pixels = _rows(config), channels * side * side
    work = Work("matmul", "sequence", tiles * (rows - 1), inner=pixels, outer=hidden)
    path = join(VISION, module)
    shape = {f"{path}.weight": (hidden, channels, side, side)}
    x = builder.add(path, "conv", path, (), work, hidden, parameters=shape)
    x = _tile_positions(builder, config, "pre_tile_positional_embedding", x)
    path = join(VISION, "gated_positional_embedding")
    learned = {
        join(VISION, "class_embedding"): (hidden,),
        f"{path}.gate": (1,),
        f"{path}.embedding": (rows, hidden),
        f"{path}.tile_embedding.weight": (_aspect_ratios(config) + 1, tiles * rows * hidden),
    }
    padded = -(-rows // 8) * 8
    x = builder.elementwise(path, "add", [x], tokens=tiles * padded, parameters=learned, module=path)
    return builder.norm(join(VISION, "layernorm_pre"), x, bias=True)


def _tile_positions(builder: LayerOperators, config: Config, name: str, x: Value) -> Value:
    path, tiles = join(VISION, name), config.integer("max_num_tiles")
    shape = (_aspect_ratios(config) + 1, tiles * config.integer("hidden_size"))
    learned = {f"{path}.gate": (1,), f"{path}.embedding.weight": shape}
    return builder.elementwise(path, "add", [x], parameters=learned, module=path)


def _aspect_ratios(config: Config) -> int:
    return (config.listed("supported_aspect_ratios") or (ASPECT_RATIOS,))[0]


def _image_layer(builder: LayerOperators, config: Config, path: str, x: Value, gated: bool) -> Value:
    num_heads, width = config.integer("attention_heads"), x.width // config.integer("attention_heads")
    heads = Heads(num_heads, num_heads, width, width, causal=False)
    ffn = config.integer("intermediate_size")
    normed = builder.norm(join(path, "input_layernorm"), x, bias=True)
    owner = join(path, "self_attn")
    q, k, v = (builder.linear(join(owner, f"{n}_proj"), normed, x.width, "column") for n in "qkv")
    mixed = builder.attention(join(owner, "attention"), q, k, v, heads)
    out = builder.linear(join(owner, "o_proj"), mixed, x.width, "row")
    x = _image_sum(builder, path, "add_1", x, out, "gate_attn" if gated else "")
    normed = builder.norm(join(path, "post_attention_layernorm"), x, bias=True)
    out = plain_feed_forward(builder, path, normed, ffn, "gelu")
    return _image_sum(builder, path, "add_2", x, out, "gate_ffn" if gated else "")


def _image_sum(builder: LayerOperators, path: str, name: str, x: Value, out: Value, gate: str) -> Value:
    if gate:
        return _gated_sum(builder, path, name, x, out, gate)
    return builder.elementwise(join(path, name), "add", [x, out])
