"""Whole layers: cuts as people make them by hand, equally many of a model's repeated blocks to each stage.

Blocks are those of `costmodel.stages.strategies.blocks`. What comes before the first belongs to the first stage, what
follows a block to that block's. Leaves out models whose stages do not follow the order of their operators.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from costmodel.errors import NoPlanFits, UsageError
from costmodel.model.graph import OperatorGraph
from costmodel.stages.strategies.blocks import block_names, block_spans
from planner.graph.layout import part_letters

EQUAL = "equal"
"""Layers of stages as trainers cut them (`trainer_layers`)."""


def layers_of(text: str) -> tuple[int, ...]:
    """Return the layers of each stage that words like ``8,8,7,9`` tell; none for `EQUAL`.

    Raises
    ------
    UsageError
        When they are no whole numbers of layers.
    """
    if text == EQUAL:
        return ()
    counts = text.replace("/", ",").split(",")
    if not all(re.fullmatch("[1-9][0-9]{0,5}", count.strip()) for count in counts):
        raise UsageError(f"layers are {text!r}; give {EQUAL}, or whole numbers of layers, one a stage, such as 8,8,7,9")
    return tuple(map(int, counts))


def trainer_layers(graph: OperatorGraph, num_stages: int, counts: Sequence[int] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the operators of each stage as trainers cut a model: `counts` layers each, or equally many.

    Where layers do not divide, what comes before and behind them counts as one each, and stages are as even as may be.

    Raises
    ------
    UsageError
        When the model has another number of layers than the stages together.
    NoPlanFits
        For more stages than such pieces.
    """
    if not counts:
        return equal_layers(graph, num_stages) or _nearly_equal(graph, num_stages)
    starts = layer_starts(graph)
    if sum(counts) != len(starts) or len(counts) != num_stages:
        raise UsageError(
            f"layers of {num_stages} stages are given as {len(counts)} numbers whose sum is {sum(counts)}, and "
            f"{graph.name} has {len(starts)} layers; give one number a stage, {len(starts)} in all"
        )
    ends = (0, *(starts[count] for count in list(accumulate(counts))[:-1]), len(graph.operators))
    return tuple(tuple(range(start, stop)) for start, stop in pairwise(ends))


def _nearly_equal(graph: OperatorGraph, num_stages: int) -> tuple[tuple[int, ...], ...]:
    spans = block_spans(block_names(graph.operators))
    starts = sorted({0, *(span.start for span in spans), spans[-1].stop} - {len(graph.operators)}) if spans else [0]
    if len(starts) < num_stages:
        raise NoPlanFits(f"{num_stages} stages, and {graph.name} has {len(starts)} layers and ends; take fewer stages")
    bounds = [starts[i * len(starts) // num_stages] for i in range(num_stages)]
    return tuple(tuple(range(start, stop)) for start, stop in pairwise((*bounds, len(graph.operators))))


def layer_starts(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the position at which each block begins; the first is 0."""
    starts = [span.start for span in block_spans(block_names(graph.operators))]
    return (0, *starts[1:])


def first_layers(graph: OperatorGraph, operators: Iterable[int], count: int) -> tuple[str, ...]:
    """Return the names of those operators that are in the first `count` blocks of a stage's, a part of one counts."""
    members = [i for i in sorted(operators) if graph.blocks[i]]
    wanted = set(list(dict.fromkeys(graph.blocks[i] for i in members))[:count])
    return tuple(graph.operators[i].name for i in members if graph.blocks[i] in wanted)


def equal_layers(
    graph: OperatorGraph, num_stages: int, embedding: int = 0, loss: int = 0
) -> tuple[tuple[int, ...], ...] | None:
    """Return the operators of each stage, equally many blocks each, or None where blocks do not divide.

    `embedding` and `loss` are blocks that count with the first and the last stage in addition to their own layers.
    """
    starts = layer_starts(graph)
    each, left = divmod(len(starts) + embedding + loss, num_stages)
    if left or each <= max(embedding, loss):
        return None
    counts = [number * each - embedding for number in range(1, num_stages)]
    ends = (0, *(starts[count] for count in counts), len(graph.operators))
    return tuple(tuple(range(start, stop)) for start, stop in pairwise(ends))


def part_pairs(graph: OperatorGraph, *, ends: bool) -> Iterator[tuple[int, int]]:
    """Yield pairs of operators of one part; with `ends`, of all before the first layer, and of all behind the last."""
    letters = part_letters(graph.parts) if ends else {}
    first: dict[str, int] = {}
    for position, part in enumerate(graph.parts):
        group = {"E": "E", "m": "L", "L": "L"}.get(letters.get(part, ""), part)
        other = first.setdefault(group, position)
        if part and other != position:
            yield other, position


def why_undivided(graph: OperatorGraph, stage_of: Sequence[int], tensor: Sequence[int]) -> str:
    """Return why the model's own modules do not divide by the stages' tensor degrees; nothing where they do.

    Parameters
    ----------
    stage_of : sequence of int
        Of each operator.
    tensor : sequence of int
        Of each stage.
    """
    divided = {stage for stage, degree in enumerate(tensor) if degree > 1}
    if not divided:
        return ""
    home: dict[str, int] = {}
    for block, stage in zip(graph.blocks, stage_of, strict=True):
        other = home.setdefault(block, stage)
        if block and other != stage and divided & {other, stage}:
            return f"tensor = {max(tensor[other], tensor[stage])} of stages between which {block!r} is cut"
    columns = {stage for o, stage in zip(graph.operators, stage_of, strict=True) if o.work and o.work.split == "column"}
    lacking = min(divided - columns, default=None)
    return "" if lacking is None else f"tensor = {tensor[lacking]} of stage {lacking}, which has no layers that divide"
