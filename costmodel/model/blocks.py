"""A model by the paths of its modules: blocks, of lists of layers that repeat, and modules outside of blocks.

A part is what trainers divide a model into: a block, or the outermost module that holds no list of blocks
(``layers.3``, ``norm``; ``model.layers.3``, ``model.norm``, ``lm_head``). Leaves out what they hold.
"""

from collections.abc import Sequence
from functools import lru_cache


@lru_cache(1 << 16)
def block_of(module: str) -> str:
    """Return the path of a module's block, up to its first number; empty for none: ``layers.3`` of ``layers.3.mlp``."""
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def list_of(block: str) -> str:
    """Return the path of the list that a block is one of."""
    return block.rpartition(".")[0]


def part_names(
    modules: Sequence[str], predecessors: Sequence[Sequence[int]], losses: Sequence[bool]
) -> tuple[str, ...]:
    """Return the part of each operator; empty for all where no module tells any.

    An operator that lies in no part goes with the last of those that it reads, else with the next one; the loss with
    modules outside of blocks last.

    Parameters
    ----------
    modules : sequence of str
        Module path of each operator, in a topological order.
    predecessors : sequence of sequence of int
        Positions that each operator reads.
    losses : sequence of bool
        Whether each operator is a loss.
    """
    blocks = [block_of(module) for module in modules]
    lists = {list_of(block) for block in blocks if block}
    around = {path[:end] for path in lists for end in range(len(path) + 1) if path[end : end + 1] in (".", "")}
    found: list[str] = []
    beside = ""
    for module, block, reads, is_loss in zip(modules, blocks, predecessors, losses, strict=True):
        own = block or _outermost(module, around)
        if not own:
            read = (found[i] for i in sorted(reads, reverse=True) if found[i])
            own = beside if is_loss and beside else next(read, "")
        elif not block:
            beside = own
        found.append(own)
    for position in reversed(range(len(found) - 1)):
        found[position] = found[position] or found[position + 1]
    return tuple(found)


def _outermost(module: str, around: set[str]) -> str:
    """Return the shortest path to a module that is not around a list of blocks; empty where there is none."""
    names = module.split(".")
    paths = (".".join(names[:end]) for end in range(1, len(names) + 1))
    return next((path for path in paths if path not in around), "")
