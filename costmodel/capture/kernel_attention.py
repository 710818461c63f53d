"""Attention as one fused kernel, for tensors without values.

On `meta` torch takes attention apart and keeps every score; a fused kernel keeps its inputs, its output and one number
a row (5,184 instead of 1,088 MiB for one model). Models of a configuration call it in place of their own code where
that copies keys and values for each head of a group, or writes sinks and caps of scores out, as none that trains does.
Leaves out kernels' workspace, and what sinks and caps take.
"""

from typing import Any

import torch
from torch import nn

from costmodel.capture.custom_functions import OpaqueFunction

NAME, MASK_FREE = "penstock_kernel", "penstock_kernel_mask_free"
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


class KernelAttention(torch.autograd.Function):
    """Attention's shapes and what it keeps; `sinks` are scores that each head's softmax counts in.

    Masks that say no more than a window and what lies behind are none that a kernel keeps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Any,
        sinks: Any = None,
        causal: bool = False,
        keeps_mask: bool = False,
    ) -> torch.Tensor:
        """Return the output, without values, laid out like kernels' output, so that joining heads is no copy."""
        if q.device.type != "meta":
            raise ValueError("attention of a model of a configuration has no values: it is there to be counted")
        out = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3], v.shape[-1])).transpose(-3, -2)
        ctx.save_for_backward(
            q, k, v, mask if keeps_mask else None, out, q.new_empty(q.shape[:-1], dtype=torch.float32)
        )
        return out


ATTENTIONS = frozenset({ATTENTION, OpaqueFunction.of(KernelAttention)})
"""Targets of nodes that attend, called with (query, key, value, mask, _, whether it is causal)."""


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, *_: Any, **__: Any
) -> torch.Tensor:
    """Return the output of torch's attention, without values, keeping what a fused kernel keeps."""
    out: torch.Tensor = KernelAttention.apply(query, key, value, attn_mask, None, False, True)  # type: ignore[no-untyped-call]
    return out


def attention_flop(args: tuple[Any, ...]) -> int:
    """Return the floating-point operations of the forward: two products of scores, masked or not."""
    query, key, value = args[:3]
    *rows, size = query.shape
    pairs = key.shape[-2]
    for length in rows:
        pairs *= length
    return int(2 * pairs * (size + value.shape[-1]))


def use_kernels(model: nn.Module) -> None:
    """Let the modules of transformers that take other attentions than their own call the kernel."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name in (NAME, MASK_FREE):
        AttentionInterface.register(name, _forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    for module in model.modules():
        takes = getattr(module, "_supports_attention_backend", False) and getattr(module, "_supports_flash_attn", False)
        config: Any = getattr(module, "config", None) if takes else None
        if getattr(config, "_attn_implementation", "") in ("sdpa", "eager"):
            config._attn_implementation = NAME


def _forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers asks its attentions to; a learned bias of positions is added to scores, and kept."""
    causal, bias = options.get("is_causal"), options.get("position_bias")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    hidden = bool(causal) and query.shape[2] > 1 and (attention_mask is None or bias is not None)
    mask = attention_mask if bias is None else bias
    out = KernelAttention.apply(query, key, value, mask, options.get("s_aux"), hidden, bias is not None)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None
