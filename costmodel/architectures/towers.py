"""Transformer towers with layer norms and biases: ViT's images, CLIP's images and texts, and what joins CLIP's two.

ViT: Dosovitskiy et al., 2021; CLIP: Radford et al., 2021. A patch embedding is a matrix product over the pixels of a
patch. CLIP's loss compares all samples of a batch, so it does not separate over micro-batches; it is described for the
costs of the towers. Leaves out ViT's pooler, which classification does not use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.architectures.builder import Shape, Value
from costmodel.architectures.configs import Config
from costmodel.architectures.layer_operators import Heads, LayerOperators, join
from costmodel.model.graph import LOSS
from costmodel.model.work import Work


@dataclass(frozen=True, slots=True)
class Tower:
    """What a tower's layers are made of, and what their modules are called."""

    heads: Heads
    ffn: int
    norms: tuple[str, str]
    attention: str
    output: str
    bias: bool = True
    activation: str = "gelu"
    dropout: float = 0.0


def vit(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add ViT with a classification head; `tokens` follow from the image."""
    x = patches(builder, config, "vit.embeddings.patch_embeddings.projection", True)
    rows = x.tokens + 1
    extra = {"vit.embeddings.cls_token": (1, 1, x.width), "vit.embeddings.position_embeddings": (1, rows, x.width)}
    x = prepend(builder, "vit.embeddings.add", x, extra)
    x = builder.dropout("vit.embeddings.dropout", x, config.number("hidden_dropout_prob"))
    tower = Tower(
        _heads(config, x.width, False), config.integer("intermediate_size"), ("layernorm_before", "layernorm_after"),
        "attention", "o_proj", config.flag("qkv_bias"), dropout=config.number("hidden_dropout_prob"),
    )  # fmt: skip
    for i in range(config.integer("num_hidden_layers")):
        x = layer(builder, f"vit.layers.{i}", x, tower)
    pooled = first_row(builder, "vit.pool", builder.norm("vit.layernorm", x, bias=True))
    logits = builder.linear("classifier", pooled, config.integer("num_labels"), "whole", bias=True)
    builder.cross_entropy([logits], split="whole")


def clip(builder: LayerOperators, config: Config, tokens: int) -> None:
    """Add both towers of CLIP, their projections and the contrastive loss; texts have `tokens`."""
    width = config.integer("projection_dim")
    image = _clip_image(builder, config.parts["vision_config"])
    image = builder.linear("visual_projection", image, width, "whole")
    text = _clip_text(builder, config.parts["text_config"], tokens)
    text = builder.linear("text_projection", text, width, "whole")
    work = Work("loss", "whole", 2, outer=width)
    builder.add(
        LOSS, LOSS, "", [image, text], work, 1, parameters={"logit_scale": ()}, saved=[image.saved, text.saved],
        tokens=1, element_bytes=4, fixed=True,
    )  # fmt: skip


def layer(builder: LayerOperators, path: str, x: Value, tower: Tower) -> Value:
    """Add one pre-norm layer."""
    normed = builder.norm(join(path, tower.norms[0]), x, bias=True)
    owner, width = join(path, tower.attention), tower.heads.num_heads * tower.heads.width
    q, k, v = (builder.linear(join(owner, f"{n}_proj"), normed, width, "column", bias=tower.bias) for n in "qkv")
    mixed = builder.attention(join(owner, "attention"), q, k, v, tower.heads)
    out = builder.linear(join(owner, tower.output), mixed, x.width, "row", bias=True)
    out = builder.dropout(join(path, "dropout_1"), out, tower.dropout)
    x = builder.elementwise(join(path, "add_1"), "add", [x, out])
    out = plain_feed_forward(
        builder, path, builder.norm(join(path, tower.norms[1]), x, bias=True), tower.ffn, tower.activation
    )
    out = builder.dropout(join(path, "dropout_2"), out, tower.dropout)
    return builder.elementwise(join(path, "add_2"), "add", [x, out])


def plain_feed_forward(builder: LayerOperators, path: str, x: Value, width: int, activation: str) -> Value:
    """Add the two linear layers of `mlp` with the activation between."""
    up = builder.linear(join(path, "mlp.fc1"), x, width, "column", bias=True)
    inner = builder.activation(join(path, "mlp.activation_fn"), activation, up)
    return builder.linear(join(path, "mlp.fc2"), inner, x.width, "row", bias=True)


def patches(builder: LayerOperators, config: Config, module: str, bias: bool, width: str = "hidden_size") -> Value:
    """Add the convolution that turns each patch into a row."""
    side, channels = config.integer("patch_size"), config.integer("num_channels")
    num = (config.integer("image_size") // side) ** 2
    hidden, pixels = config.integer(width), channels * side * side
    parameters: dict[str, Shape] = {f"{module}.weight": (hidden, channels, side, side)}
    if bias:
        parameters[f"{module}.bias"] = (hidden,)
    work = Work("matmul", "sequence", num, inner=pixels, outer=hidden)
    return builder.add(module, "conv", module, (), work, hidden, parameters=parameters)


def prepend(builder: LayerOperators, path: str, x: Value, parameters: Mapping[str, Shape]) -> Value:
    """Add the class token in front and the learned positions."""
    return builder.elementwise(path, "add", [x], tokens=x.tokens + 1, parameters=parameters)


def first_row(builder: LayerOperators, path: str, x: Value) -> Value:
    """Take one row a sample, a view of all: the class token's, or the one at the end of a text."""
    work = Work("elementwise", "whole", 1, outer=x.width, passes=0)
    row = builder.add(path, "select", path.rpartition(".")[0], [x], work, x.width)
    builder.outputs[path] = replace(row, storage=x.storage, size_bytes=x.size_bytes)
    return builder.outputs[path]


def _heads(config: Config, hidden: int, causal: bool) -> Heads:
    num_heads = config.integer("num_attention_heads")
    return Heads(num_heads, num_heads, hidden // num_heads, hidden // num_heads, causal=causal)


def _clip_tower(config: Config, hidden: int, causal: bool) -> Tower:
    ffn = config.integer("intermediate_size")
    names = ("layer_norm1", "layer_norm2")
    return Tower(_heads(config, hidden, causal), ffn, names, "self_attn", "out_proj", activation="quick_gelu")


def _clip_image(builder: LayerOperators, config: Config) -> Value:
    x = patches(builder, config, "vision_model.embeddings.patch_embedding", False)
    owner = "vision_model.embeddings"
    extra = {f"{owner}.class_embedding": (x.width,), f"{owner}.position_embedding.weight": (x.tokens + 1, x.width)}
    x = prepend(builder, f"{owner}.add", x, extra)
    x = builder.norm("vision_model.pre_layrnorm", x, bias=True)
    tower = _clip_tower(config, x.width, False)
    for i in range(config.integer("num_hidden_layers")):
        x = layer(builder, f"vision_model.encoder.layers.{i}", x, tower)
    pooled = first_row(builder, "vision_model.pool", x)
    return builder.norm("vision_model.post_layernorm", pooled, bias=True, split="whole")


def _clip_text(builder: LayerOperators, config: Config, tokens: int) -> Value:
    owner, hidden = "text_model.embeddings", config.integer("hidden_size")
    words = builder.embedding(f"{owner}.token_embedding", tokens, config.integer("vocab_size"), hidden)
    places = builder.embedding(
        f"{owner}.position_embedding", tokens, config.integer("max_position_embeddings"), hidden, "sequence",
        batched=False,
    )  # fmt: skip
    x = builder.elementwise(f"{owner}.add", "add", [words, places])
    tower = _clip_tower(config, hidden, True)
    for i in range(config.integer("num_hidden_layers")):
        x = layer(builder, f"text_model.encoder.layers.{i}", x, tower)
    return first_row(builder, "text_model.pool", builder.norm("text_model.final_layer_norm", x, bias=True))
