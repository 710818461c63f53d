"""Blocks of a model: the operators of one of a list of layers that repeat, the unit of recompute and unsharding.

A module path names its block up to its first number (``model.layers.3.mlp`` is of ``model.layers.3``); operators
beside the layers are in no block. In a model without numbered modules all operators make one block. A block whose
operators do not follow each other counts as several.
"""

from collections.abc import Sequence
from itertools import groupby

from costmodel.graph import Operator


def block_names(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the block of each operator; empty for those in none."""
    names = tuple(_block(operator.module) for operator in operators)
    return names if any(names) else ("all",) * len(names)


def _block(module: str) -> str:
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def block_spans(names: Sequence[str]) -> tuple[range, ...]:
    """Return the positions of each block."""
    spans = []
    for name, row in groupby(range(len(names)), key=names.__getitem__):
        members = tuple(row)
        if name:
            spans.append(range(members[0], members[-1] + 1))
    return tuple(spans)


def inside(span: range, operators: Sequence[int]) -> Sequence[int]:
    """Return the operators of a block that are among `operators` (rising)."""
    if operators[-1] - operators[0] + 1 == len(operators):
        return range(max(span.start, operators[0]), min(span.stop, operators[-1] + 1))
    return [i for i in operators if i in span]
