"""Whether a model recomputes parts of itself (`torch.utils.checkpoint`) while it is captured.

The captured program keeps what a checkpoint would compute again: recompute is the plan's to decide. Leaves out
recomputing that does not go through torch's checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint

REMARK = (
    "the model's own gradient checkpointing is left out: saved bytes and times are those without it; what is "
    "recomputed is the plan's choice"
)

_REENTRANT = "CheckpointFunction"
_WITHOUT_REENTRANCE = "_checkpoint_without_reentrant_generator"


class _Noted:
    """One of the two roads behind `torch.utils.checkpoint.checkpoint`, called or by its `apply`; notes each call."""

    def __init__(self, original: Any, seen: list[str]) -> None:
        self.original = original
        self.seen = seen

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(REMARK)
        return self.original(function, *args, **kwargs)

    def apply(self, function: Any, *args: Any) -> Any:
        self.seen.append(REMARK)
        return self.original.apply(function, *args)


@contextmanager
def noting_checkpoints() -> Iterator[list[str]]:
    """Within the block each checkpoint that runs adds a remark to the list."""
    roads = {name: getattr(checkpoint, name) for name in (_REENTRANT, _WITHOUT_REENTRANCE)}
    seen: list[str] = []
    for name, original in roads.items():
        setattr(checkpoint, name, _Noted(original, seen))
    try:
        yield seen
    finally:
        for name, original in roads.items():
            setattr(checkpoint, name, original)
