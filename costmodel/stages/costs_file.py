"""Costs of stages as a file that people write and change (``penstock-costs``).

Leaves out what costs are (`costmodel.stages.costs`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from costmodel.codec import UNSAID, Json, Positive, record
from costmodel.documents import Document
from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json
from costmodel.forms import JsonForm, listed
from costmodel.stages.costs import PER_ACTION, Costs, EdgeCost, PairCost, StageCost, one_or_list, settled


def _ranks(node: Node) -> tuple[int, ...]:
    ranks = node.integers() if isinstance(node.value, list) else (node.integer(),)
    if not ranks or len(set(ranks)) < len(ranks):
        node.fail("a rank, or a list of distinct ranks (replicas), is needed here")
    return ranks


RANKS = JsonForm[tuple[int, ...]](
    _ranks,
    lambda ranks: ranks[0] if len(ranks) == 1 else list(ranks),
    lambda known: one_or_list(known, uniqueItems=True),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stage runs, and what its actions work on."""

    ranks: Annotated[tuple[int, ...], Json("rank", form=RANKS, says="The rank, or the ranks that replicate it.")] = ()
    microbatch_multiple: Positive = 1


_STAGES: JsonForm[tuple[tuple[_Place, StageCost], ...]] = listed(
    record(_Place, StageCost, late=("microbatch_multiple",), absent=("memory_terms", "joint_bytes"), settle=settled)
)


@dataclass(frozen=True, slots=True)
class _CostsFile:
    """What the stages of a pipeline cost, for simulate --costs."""

    stages: Annotated[tuple[tuple[_Place, StageCost], ...], Json(form=_STAGES, rules={"minItems": 1})]
    edges: Annotated[
        tuple[EdgeCost, ...] | None, Json(form=listed(record(EdgeCost)), says="The chain when left out.")
    ] = None
    pairs: Annotated[tuple[PairCost, ...], UNSAID] = ()


COSTS: Document[_CostsFile] = Document("penstock-costs", 1, record(_CostsFile), ("extra",))


def read_costs(path: str | Path, num_microbatches: int = 0) -> Costs:
    """Read a costs file; with a number of micro-batches lists must have one value an action."""
    root = read_json(path)
    found = COSTS.read_node(root)
    for node in root.child("stages").items() if num_microbatches else ():
        _check_lengths(node.entries(), num_microbatches)
    places, stages = [place for place, _ in found.stages], tuple(stage for _, stage in found.stages)
    chain = tuple(EdgeCost(i, i + 1) for i in range(len(stages) - 1))
    return root.build(
        lambda: Costs(
            stages,
            chain if found.edges is None else found.edges,
            tuple(place.ranks or (i,) for i, place in enumerate(places)),
            tuple(place.microbatch_multiple for place in places),
            found.pairs,
        )
    )


def write_costs(path: str | Path, costs: Costs) -> None:
    """Write a costs file, which people may change, atomically."""
    rows = zip(costs.stages, costs.ranks, costs.multiples, strict=True)
    stages = tuple((_Place(ranks, multiple), stage) for stage, ranks, multiple in rows)
    COSTS.write(path, _CostsFile(stages, costs.edges, costs.pairs))


def _check_lengths(members: dict[str, Node], num_microbatches: int) -> None:
    """Refuse a list that has not one value an action, or as many for each slice of it."""
    multiple = members["microbatch_multiple"].integer(1) if "microbatch_multiple" in members else 1
    num_actions = max(1, num_microbatches // multiple)
    for key in PER_ACTION:
        if key in members and isinstance(members[key].value, list) and len(members[key].items()) % num_actions:
            found = len(members[key].items())
            raise InvalidInput(
                f"{members[key].file}: {members[key].pointer}: found a list of {found} values; {num_actions} are "
                f"needed, one an action ({num_microbatches} micro-batches, {multiple} an action)"
            )
