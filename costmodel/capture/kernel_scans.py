"""Scans along a sequence as one fused kernel each, for tensors without values.

Classes of transformers write them out where no kernel is installed: step by step within a chunk and chunk by chunk
(the gated delta rule of Yang et al., ICLR 2025, and Kimi's), or token by token (Gu and Dao, Mamba, 2023). Models of a
configuration call a kernel in their place, as all that train them do, and keep what flash-linear-attention and
mamba-ssm keep: their inputs, inverses within chunks, states at chunks' ends. Leaves out kernels' workspace, normalised
copies of queries and keys, and exponentials of states, which are computed while values are read.
"""

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from costmodel.capture.custom_functions import OpaqueFunction

CHUNK = 64
"""Tokens of a chunk of the delta rule."""
STATES_EVERY = 2048
"""Tokens after which a selective scan keeps its states."""


class DeltaRule(torch.autograd.Function):
    """Shapes of linear attention by the gated delta rule, (samples, tokens, heads, width), and what it keeps."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        """Return the output, without values."""
        _without_values(q)
        sums, inverses = gate.new_empty(gate.shape, dtype=torch.float32), k.new_empty((*v.shape[:-1], CHUNK))
        ctx.save_for_backward(q, k, v, sums, beta, inverses)
        return v.new_empty(v.shape)


class SelectiveScan(torch.autograd.Function):
    """Shapes of a state-space layer's scan over `u`, (samples, channels, tokens), and what it keeps."""

    @staticmethod
    def forward(
        ctx: Any, u: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *more: Any
    ) -> torch.Tensor:
        """Return the output, without values."""
        _without_values(u)
        out = u.new_empty(u.shape)
        samples, channels, tokens = u.shape
        states = u.new_empty((samples, channels, -(-tokens // STATES_EVERY), 2 * a.shape[-1]), dtype=torch.float32)
        ctx.save_for_backward(u, delta, b, c, *more, out, states)
        return out


DELTA_RULE, SELECTIVE_SCAN = OpaqueFunction.of(DeltaRule), OpaqueFunction.of(SelectiveScan)


def keys_of_equal_work(key_width: int, value_width: int) -> int:
    """Return how many keys a query of attention sees that does as many operations a token as the delta rule.

    A chunk's keys meet each other, and queries, with an inverse applied to keys and values (each times `CHUNK`); states
    are read twice and written once.
    """
    within = CHUNK * (3 * key_width + 2 * value_width)
    return (within + 3 * key_width * value_width) // (key_width + value_width)


def use_scan_kernels(model: nn.Module) -> None:
    """Let the modules of a model whose code writes a scan out call its kernel."""
    for module in model.modules():
        for name, method in inspect.getmembers(type(module), inspect.isfunction):
            own = inspect.unwrap(method)
            if not _KERNELS.keys().isdisjoint(own.__code__.co_names):
                known = {**own.__globals__, **_KERNELS}
                bound = FunctionType(own.__code__, known, own.__name__, own.__defaults__, own.__closure__)
                bound.__kwdefaults__ = own.__kwdefaults__
                vars(module)[name] = MethodType(bound, module)  # past nn.Module's look


def _delta_rule(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    return DeltaRule.apply(query, key, value, g, beta), None  # type: ignore[no-untyped-call]


def _selective_scan(*args: Any, return_last_state: bool = False, **named: Any) -> Any:
    more = [named[name] for name in ("D", "z", "delta_bias") if named.get(name) is not None]
    out = SelectiveScan.apply(*args, *more)  # type: ignore[no-untyped-call]
    return (out, None) if return_last_state else out


_KERNELS: Mapping[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba_selective_scan": _selective_scan,
}
"""What stands for the functions of transformers that write scans out, by their names."""


def _without_values(values: torch.Tensor) -> None:
    if values.device.type != "meta":
        raise ValueError("a scan of a model of a configuration has no values: it is there to be counted")
