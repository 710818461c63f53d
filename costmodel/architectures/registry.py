"""Which function describes which model type. Leaves out what they need (`whitelist`) and how they work."""

from collections.abc import Callable, Mapping

from costmodel.architectures.configs import Config
from costmodel.architectures.decoder import decoder
from costmodel.architectures.encoder_decoder import t5
from costmodel.architectures.families import decoder_shape
from costmodel.architectures.gpt import gpt2, gpt_neox
from costmodel.architectures.layer_operators import LayerOperators
from costmodel.architectures.mllama import mllama
from costmodel.architectures.qwen_vision import qwen_vl
from costmodel.architectures.towers import clip, vit

Build = Callable[[LayerOperators, Config, int], None]


def _decoder(builder: LayerOperators, config: Config, tokens: int) -> None:
    decoder(builder, decoder_shape(config), tokens)


_DECODERS = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "kimi_k2",
    "gpt_oss",
)  # fmt: skip

BUILDERS: Mapping[str, Build] = {
    **dict.fromkeys(_DECODERS, _decoder),
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "t5": t5,
    "vit": vit,
    "clip": clip,
    "qwen2_vl": qwen_vl,
    "qwen2_5_vl": qwen_vl,
    "mllama": mllama,
}
"""Model type -> the function that adds its operators for a number of tokens of text."""
