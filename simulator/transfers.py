"""Messages of lowered orders, and the modes in which messages occupy streams."""

import numpy as np

from costmodel.errors import InvalidInput
from simulator.flows import Messages
from simulator.order_arrays import RECV_B, SEND_B, SEND_F, Ints, OrderArrays


def matched(arrays: OrderArrays, messages: Messages) -> tuple[Ints, Ints] | None:
    """Return the SEND and RECV actions of lowered orders and the message of each; None without any.

    Raises
    ------
    InvalidInput
        When a transfer carries no message that is needed.
    """
    actions = np.flatnonzero(arrays.code >= SEND_F)
    if not len(actions):
        return None
    source, target = messages.source, messages.target
    piece = np.maximum(arrays.slice_index[source], arrays.slice_index[target])
    names = zip(
        messages.backward.tolist(), arrays.stage[source].tolist(), arrays.stage[target].tolist(),
        messages.microbatch.tolist(), piece.tolist(), strict=True,
    )  # fmt: skip
    index = {name: i for i, name in enumerate(names)}
    found = []
    for i in actions.tolist():
        action, code = arrays.actions[i], int(arrays.code[i])
        ends = (action.stage, action.peer) if code in (SEND_F, SEND_B) else (action.peer, action.stage)
        message = index.get((code in (SEND_B, RECV_B), *ends, action.microbatch, action.slice_index))
        if message is None:
            raise InvalidInput(f"{action} on rank {arrays.rank[i]} carries nothing that another rank needs; drop it")
        found.append(message)
    return actions, np.array(found)
