"""Hugging Face models as they run when nothing is traced: causal attention without masks, no cache.

While torch.export traces, transformers materialises causal masks that eager training never makes, and
with a mask another kernel runs. For the time of the capture no mask is made where the inputs allow that:
no padding, no positions of the user's own, no window shorter than the sequence. The caller compares the
result with the model itself. transformers is imported only when the model's class comes from it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodel.capture import kernel_attention
from costmodel.capture.batches import TrainingModel

NAME = "penstock_mask_free"
FREE_OF_MASKS = {"sdpa": NAME, kernel_attention.NAME: kernel_attention.MASK_FREE}
"""What stands for an attention of transformers where it needs no masks."""


@contextmanager
def mask_free_attention(model: TrainingModel) -> Iterator[bool]:
    """Within the block a Hugging Face model makes no causal masks; yields whether that changes anything."""
    own = [(config, getattr(config, "_attn_implementation", None)) for config in _configs(model.module)]
    found = [(config, name) for config, name in own if name in FREE_OF_MASKS]
    changes = bool(found) and _masks_can_go(model, [config for config, _ in found]) and _register()
    try:
        for config, name in found if changes else ():
            config._attn_implementation = FREE_OF_MASKS[name]
        yield changes
    finally:
        for config, name in found:
            config._attn_implementation = name


def configs_with_cache(module: nn.Module) -> list[Any]:
    """Return the configs of Hugging Face modules that would keep keys and values, which training never reads."""
    return [config for config in _configs(module) if getattr(config, "use_cache", False)]


@contextmanager
def no_cache(configs: Sequence[Any]) -> Iterator[None]:
    """Within the block modules of these configs keep no keys and values."""
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


def agrees(model: TrainingModel, program: Any) -> bool:
    """Return whether a program gives the model's own output on the model's inputs, random draws alike.

    Tensors on `meta` have no values to disagree in.
    """
    if any(parameter.is_meta for parameter in model.module.parameters()):
        return True
    buffers = [(buffer, buffer.clone()) for buffer in model.module.buffers()]

    def run(function: Any, *args: Any, **kwargs: Any) -> list[Any]:
        torch.manual_seed(0)
        with torch.no_grad():
            return pytree.tree_leaves(function(*args, **kwargs))

    own = run(model.module, *model.args, **model.kwargs)
    other = run(program, *pytree.tree_leaves((model.args, dict(model.kwargs))))
    for buffer, value in buffers:
        buffer.copy_(value)
    return len(own) == len(other) and all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-4) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(own, other, strict=True)
    )


def _configs(model: nn.Module) -> list[Any]:
    """Return the configs, each once, of the modules that come from transformers."""
    found: dict[int, Any] = {}
    for module in model.modules():
        if any(kind.__module__.partition(".")[0] == "transformers" for kind in type(module).__mro__):
            config = getattr(module, "config", None)
            if config is not None:
                found[id(config)] = config
    return list(found.values())


def _masks_can_go(model: TrainingModel, configs: list[Any]) -> bool:
    leaves = [leaf for leaf in pytree.tree_leaves((model.args, dict(model.kwargs))) if isinstance(leaf, torch.Tensor)]
    longest = max((max(leaf.shape, default=0) for leaf in leaves), default=0)
    windows = [getattr(c, name, None) for c in configs for name in ("sliding_window", "attention_chunk_size")]
    padded = [value for name, value in model.kwargs.items() if name.endswith("attention_mask") and value is not None]
    return (
        not any(name.endswith("position_ids") for name in model.kwargs)
        and not any(isinstance(window, int) and window <= longest for window in windows)
        and all(mask.is_meta or bool(mask.all()) for mask in padded)
    )


def _register() -> bool:
    """Register the attention without its mask function; False where transformers has no such registry."""
    try:
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
    except ImportError:
        return False
    # A name without a mask function means "this attention needs no mask" to transformers.
    AttentionInterface.register(NAME, sdpa_attention_forward)
    return True
