"""Runs a plan on torch.distributed: ``from executor import Pipeline``, or ``torchrun -m executor PLAN --model M``.

Thin: the plan says the order, torch does the work. `Pipeline` is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> object:
    if name == "Pipeline":
        from executor.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module 'executor' has no attribute {name!r}")
