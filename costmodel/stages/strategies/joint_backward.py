"""What replicas that divide parameters hold in a whole backward, and in none that is split into I and W.

A whole backward has parameters gathered while gradients are on their way to their sum (`memory_terms`). Apart, an I
sums nothing, and a W gathers nothing: it completes the units one by one, from the stage's end to its begin, each with
its message and its sum. What the last of them has sent is held until the next sum, so in the next I. Leaves out
activations that a W has let go of outside of the unit that it is at.
"""

from costmodel.stages.strategies.division import ceil
from costmodel.stages.strategies.stage_sharding import StageSharding
from costmodel.stages.strategies.states import SCATTERED


def joint_backward_bytes(sharding: StageSharding, buffers: int, unsharded: int, working: int, *, has_loss: bool) -> int:
    """Return what of a stage's buffers only a whole backward has.

    Parameters
    ----------
    sharding : StageSharding
    buffers, unsharded, working : int
        Beside whole backwards: gradients on their way, beyond what works besides; gathered parameters; what works.
    has_loss : bool
        Whether each I comes right behind its F, which has left what is outside of blocks gathered.
    """
    units, copies = sharding.vectors.units.over(sharding.operators), len(sharding.groups.replicas)
    beside = min(sharding.trainable_bytes, units.beside)
    block = min(sharding.trainable_bytes - beside, units.largest)
    begins = not sharding.vectors.names[_first_with_weights(sharding)]
    held = beside if begins or not block else block
    gathers = sharding.config.zero > SCATTERED
    # in the message's buffer, too, until it is copied out of that
    copied = 0 if has_loss else 2 * units.beside
    copied = max(copied, units.beside + 2 * units.largest if units.count else 0) * gathers
    in_input = held + max(0, copied - working - unsharded)
    waits = beside * begins  # what is outside of blocks is summed together, when the last of it is complete
    block_ends = waits + 2 * block + ceil(block, copies) - sharding.vectors.largest_kept(sharding.operators)
    beside_ends = 2 * beside + ceil(beside, copies)
    in_weight = max(block_ends, beside_ends) - working - unsharded * gathers
    own = buffers - sharding.vectors.gathered_bytes(sharding.operators)
    return max(0, own - max(in_input, in_weight))


def _first_with_weights(sharding: StageSharding) -> int:
    """Return the first operator that has weights; the first of all where none has."""
    weights = sharding.vectors.weights
    return next((i for i in sharding.operators if weights.trainable.over((i,))), sharding.operators[0])
