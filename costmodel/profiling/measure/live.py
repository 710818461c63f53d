"""Bytes of the tensors alive on a CPU, at their highest: what torch's allocator counts on a GPU.

Leaves out what kernels allocate inside themselves, and tensors that were there before.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that an operator makes until nothing refers to it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator; what it returns and did not take is new."""
        for storage in _storages((args, kwargs)):
            self._follow(storage, 0)
        found = func(*args, **(kwargs or {}))
        for storage in _storages(found):
            self._follow(storage, storage.nbytes())
        return found

    def _follow(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        key = storage._cdata
        if key in self._known:
            return

        def forget(_: object) -> None:
            self.now -= size_bytes
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, forget)
        self.now += size_bytes
        self.peak = max(self.peak, self.now)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
