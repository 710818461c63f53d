"""The order of a rank that runs one stage: forwards, backwards and weight gradients by count.

Models no time: with one stage a rank the schedules of this catalogue are fixed by how many forwards
precede the first backward and by how many input gradients precede the first weight gradient.
"""

from collections.abc import Sequence

from simulator.actions import Action, Kind, numbered


def forwards(stage: int, microbatches: Sequence[int]) -> tuple[Action, ...]:
    """Return the forwards alone: the order of a stage that needs no gradient."""
    return tuple(numbered(Kind.F, stage, microbatches))


def one_forward_one_backward(stage: int, microbatches: Sequence[int], in_flight: int) -> tuple[Action, ...]:
    """Return `in_flight` - 1 forwards, then forward and backward in turn, then the backwards left over."""
    ahead, back = (numbered(kind, stage, microbatches) for kind in (Kind.F, Kind.B))
    return tuple(in_pairs(ahead, back, min(in_flight - 1, len(microbatches))))


def in_pairs(ahead: list[Action], back: list[Action], warmup: int) -> list[Action]:
    """Return a number of forwards, then forward and backward in turn, then the remaining backwards."""
    steady = ahead[warmup:] * 2
    steady[::2], steady[1::2] = ahead[warmup:], back[: len(ahead) - warmup]
    return ahead[:warmup] + steady + back[len(ahead) - warmup :]
