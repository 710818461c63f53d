"""The order of a rank that runs one stage: forwards, backwards and weight gradients by count.

Models no time: with one stage a rank the schedules of this catalogue are fixed by how many forwards
precede the first backward and by how many input gradients precede the first weight gradient.
"""

from collections.abc import Sequence

from simulator.actions import Action, Kind


def forwards(stage: int, microbatches: Sequence[int]) -> tuple[Action, ...]:
    """Return the forwards alone: the order of a stage that needs no gradient."""
    return tuple(Action(Kind.F, stage, k) for k in microbatches)


def one_forward_one_backward(stage: int, microbatches: Sequence[int], in_flight: int) -> tuple[Action, ...]:
    """Return `in_flight` - 1 forwards, then forward and backward in turn, then the backwards left over."""
    warmup = min(in_flight - 1, len(microbatches))
    order = [Action(Kind.F, stage, k) for k in microbatches[:warmup]]
    for later, earlier in zip(microbatches[warmup:], microbatches, strict=False):
        order += [Action(Kind.F, stage, later), Action(Kind.B, stage, earlier)]
    order += [Action(Kind.B, stage, k) for k in microbatches[len(microbatches) - warmup :]]
    return tuple(order)
