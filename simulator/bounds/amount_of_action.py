"""What one action takes of a stage's amount (a time or bytes), in plain Python.

A list holds one value an action, or one a slice of each action. A slice of an action with one value takes its
share, an n-th each as integers by largest remainder in order of slice. The engine keeps the same rule for
whole tables (`simulator.engine.amounts`).
"""

from costmodel.stages.costs import Amount, at
from simulator.actions import Action


def amount_of(amount: Amount, action: Action, multiple: int, num_microbatches: int, num_slices: int = 1) -> int:
    """Return an action's part of an amount.

    Parameters
    ----------
    amount : int or tuple of int
    action : Action
        A compute action; without a slice index it is whole.
    multiple : int
        Micro-batches that one action of the stage works on.
    num_microbatches, num_slices : int
        Of the step, and of each action.
    """
    index = action.microbatch // multiple
    if not isinstance(amount, int) and len(amount) * multiple > num_microbatches:
        own = amount[index * num_slices : (index + 1) * num_slices]
        return sum(own) if action.slice_index < 0 else own[action.slice_index]
    value = at(amount, index)
    if num_slices == 1 or action.slice_index < 0:
        return value
    share, larger = divmod(value, num_slices)
    return share + (action.slice_index < larger)
