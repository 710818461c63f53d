"""The order of Zero Bubble's handcrafted schedules: 1F1B whose weight gradients wait.

A rank keeps `in_flight` micro-batches between F and I, and `kept` between F and W. Weight gradients start
only when the next forward would exceed `kept`, so early ranks do them at once and late ranks put them
off to the end, where they fill the drain. Models no time.
"""

from collections.abc import Sequence

from simulator.actions import Action, Kind


def handcrafted(stage: int, microbatches: Sequence[int], in_flight: int, kept: int) -> tuple[Action, ...]:
    """Return F, I and W of one rank.

    Parameters
    ----------
    in_flight : int
        Micro-batches between F and I at most.
    kept : int
        Micro-batches between F and W at most; not below `in_flight`.
    """
    order: list[Action] = []
    ahead = weights = 0
    for back, microbatch in enumerate(microbatches):
        while ahead < min(back + in_flight, weights + kept, len(microbatches)):
            order.append(Action(Kind.F, stage, microbatches[ahead]))
            ahead += 1
        order.append(Action(Kind.I, stage, microbatch))
        if ahead - weights >= kept or ahead == len(microbatches):
            order.append(Action(Kind.W, stage, microbatches[weights]))
            weights += 1
    order += [Action(Kind.W, stage, k) for k in microbatches[weights:]]
    return tuple(order)
