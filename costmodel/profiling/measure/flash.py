"""Attention as fused kernels keep it, for tensors without values.

On `meta` torch takes attention apart and keeps every score; a fused kernel keeps its inputs, its output
and one number a row (5,184 instead of 1,088 MiB for one model). Leaves out kernels' workspace.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

_SIGNATURE = inspect.signature(lambda query, key, value, attn_mask=None, *rest, **named: None)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> torch.Tensor:
        # Laid out like the kernels' output, so that putting the heads together again is no copy.
        out = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3], v.shape[-1])).transpose(-3, -2)
        ctx.save_for_backward(q, k, v, mask, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out


def attend(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return attention's output, without values, keeping what a fused kernel keeps."""
    given = _SIGNATURE.bind(*args, **kwargs).arguments
    out: torch.Tensor = _Flash.apply(given["query"], given["key"], given["value"], given.get("attn_mask"))  # type: ignore[no-untyped-call]
    return out


def attention_flop(args: tuple[Any, ...]) -> int:
    """Return the floating-point operations of the forward: two products of scores, masked or not."""
    query, key, value = args[:3]
    *rows, size = query.shape
    pairs = key.shape[-2]
    for length in rows:
        pairs *= length
    return int(2 * pairs * (size + value.shape[-1]))
