"""Rows of what each operator takes or holds, one entry an operator.

Leaves out how they come about (`costmodel.stages.strategies.amounts`).
"""

from collections.abc import Sequence
from typing import NamedTuple


class ActionAmounts(NamedTuple):
    """What each operator takes of one action, ns: F, I and W, adding up gradients; of the host to dispatch F and B."""

    forward: Sequence[int]
    backward: Sequence[int]
    added: Sequence[int]
    dispatched: Sequence[int]
    dispatched_backward: Sequence[int]


class HeldAmounts(NamedTuple):
    """What each operator holds on one rank under one division and recompute, bytes.

    Attributes
    ----------
    again : sequence of bool
        Whether its forward runs again.
    kept : sequence of int
        Of one micro-batch, from F until the backward.
    weights, trained : pair of sequence of int
        Dense parameters and experts', and those of them that get a gradient, before ZeRO divides any.
    remade_peak, largest_unit, workspace : int
        The most that a recompute makes again at once, the weights of the largest block, and what a micro-batch works
        with beyond what is kept.
    """

    again: Sequence[bool]
    kept: Sequence[int]
    weights: tuple[Sequence[int], Sequence[int]]
    trained: tuple[Sequence[int], Sequence[int]]
    remade_peak: int
    largest_unit: int
    workspace: int
