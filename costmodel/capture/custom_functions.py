"""Custom autograd functions as opaque operators of the capture.

torch.export traces into their forward and drops their own backward: a straight-through estimator would
silently get other gradients. While a model is exported each call therefore becomes one node that
calls the function itself. What a reentrant checkpoint recomputes is traced as if it were kept: recompute is the
plan's to decide. Leaves out torch's other functions, and functions that no fake tensor can run (hand-written
kernels): those torch.export refuses.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode, track_tensor_tree
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction


class OpaqueFunction(HigherOrderOperator):
    """An autograd function as a node's target; called outside of tracing it is that function."""

    def __init__(self, function: type[torch.autograd.Function], name: str) -> None:
        super().__init__(name)  # type: ignore[no-untyped-call]
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; while a graph is traced, note the call as one node."""
        mode = get_proxy_mode()
        if mode is None:
            return self.function.apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        with disable_proxy_modes_tracing():
            value = _APPLY.__func__(self.function, *args, **kwargs)
        tracer: Any = mode.tracer
        sources, named = pytree.tree_map(tracer.unwrap_proxy, (args, kwargs))
        proxy = tracer.create_proxy("call_function", self, sources, named, name=self.function.__name__)
        return track_tensor_tree(value, proxy, constant=None, tracer=tracer)

    @staticmethod
    def of(function: type[torch.autograd.Function]) -> "OpaqueFunction":
        """Return the one target that represents a function."""
        if function not in _known:
            _known[function] = OpaqueFunction(function, f"{function.__name__}_{len(_known)}")
        return _known[function]


_APPLY = vars(torch.autograd.Function)["apply"]
_known: dict[type[torch.autograd.Function], OpaqueFunction] = {}


@contextmanager
def opaque_custom_functions() -> Iterator[None]:
    """Within the block every custom autograd function that is traced becomes one node."""

    def apply(function: type[torch.autograd.Function], original: Any, args: Any, kwargs: Any) -> Any:
        if get_proxy_mode() is None:
            return original(*args, **kwargs)
        return OpaqueFunction.of(function)(*args, **kwargs)

    with replacing_apply(apply):
        yield


@contextmanager
def inference_without_gradients() -> Iterator[None]:
    """Within the block `torch.inference_mode` is `torch.no_grad`, of which export sees something."""
    kind = torch.inference_mode
    kept = kind.__enter__, kind.__exit__

    def enter(mode: Any) -> None:
        mode.gradients = torch.no_grad() if mode.mode else torch.enable_grad()
        mode.gradients.__enter__()

    def leave(mode: Any, *error: Any) -> None:
        mode.gradients.__exit__(*error)

    kind.__enter__, kind.__exit__ = enter, leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = kept  # type: ignore[method-assign]


@contextmanager
def replacing_apply(replacement: Callable[..., Any]) -> Iterator[None]:
    """Within the block calls of custom autograd functions go to ``replacement(function, original, args, kwargs)``."""

    def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        original = partial(_APPLY.__func__, function)
        if function is CheckpointFunction:
            return _unchecked(*args)
        if function.__module__.partition(".")[0] == "torch":
            return original(*args, **kwargs)
        return replacement(function, original, args, kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]


def _unchecked(run: Callable[..., Any], _: bool, *args: Any) -> Any:
    """Call what a checkpoint wraps; without gradient where none of its inputs has one, as the checkpoint does."""
    flows = any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    with torch.set_grad_enabled(flows and torch.is_grad_enabled()):
        return run(*args)
