"""torch's ``compute_only`` CSV of a pipeline schedule, both ways.

One row a rank, one cell an action (``0F0``, ``1B3``, ``2I1``, ``2W1``) or an overlapped pair of two
(``(2F5;3B1)OVERLAP_F_B``), an empty cell an idle step: what
`torch.distributed.pipelining` writes with ``_dump_csv`` and reads with ``_load_csv``. The format knows chains of
stages alone, each on one rank; a schedule with more (skips, replicas, slices, several micro-batches an action,
stages without backward, recompute) is refused. SEND, RECV, REDUCE and OPT are left out: torch adds its own.
The reader is stricter than torch's, which takes duplicates and ``0F0garbage``.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from costmodel.errors import InvalidInput, ReadableButWrong, UsageError
from costmodel.files import check_regular
from simulator.actions import COMPUTE, Action, Kind, pair_text
from simulator.schedule import Schedule, StageEdge, StageGraph
from simulator.validation import validate_schedule

_CELL = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_PAIR = re.compile(r"\((\d+F\d+);(\d+B\d+)\)OVERLAP_F_B")


def torch_csv(schedule: Schedule) -> str:
    """Return the CSV of a schedule for torch.

    Raises
    ------
    UsageError
        When the schedule has what the format cannot say.
    """
    beyond = next(_beyond_the_format(schedule), None)
    if beyond:
        raise UsageError(
            f"{beyond}, which torch's compute_only CSV cannot say; plan with --target torchtitan, or run it with the "
            "executor"
        )
    rows = [_cells(order, schedule.pairs) for order in schedule.orders]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cells(order: Sequence[Action], pairs: Mapping[Action, Action]) -> list[str]:
    beside = set(pairs.values())
    own = [action for action in order if action.kind in COMPUTE and action not in beside]
    return [pair_text(action, pairs[action]) if action in pairs else str(action) for action in own]


def _beyond_the_format(schedule: Schedule) -> Iterator[str]:
    graph = schedule.graph
    for stage, ranks in enumerate(graph.ranks):
        if len(ranks) > 1:
            yield f"stage {stage} runs on the ranks {ranks}"
        if graph.multiples[stage] > 1:
            yield f"stage {stage} takes {graph.multiples[stage]} micro-batches in one action"
        if not graph.backward[stage]:
            yield f"stage {stage} has no backward"
    edges = {(edge.source, edge.target): edge.gradient for edge in graph.edges}
    for stage in range(1, graph.num_stages):
        if not edges.pop((stage - 1, stage), False):
            yield f"stage {stage} takes nothing, or sends no gradient, to stage {stage - 1}"
    if edges:
        source, target = min(edges)
        yield f"stage {source} feeds stage {target}, which is not the next"
    if schedule.num_slices > 1:
        yield f"sequences are cut into {schedule.num_slices} slices"
    if any(action.kind is Kind.R for order in schedule.orders for action in order):
        yield "the orders hold recomputes of their own"


def read_torch_csv(path: str | Path) -> Schedule:
    """Read a schedule that torch wrote, or `torch_csv` gave.

    Raises
    ------
    InvalidInput
        For a file that is no such CSV: names row, column, what was found and what is allowed.
    ReadableButWrong
        For a schedule that is not legal: the first problem, with its place on the grid.
    """
    try:
        check_regular(Path(path))
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}); give a CSV that torch's _dump_csv wrote") from None
    return schedule_from_torch_csv(text, str(path))


def schedule_from_torch_csv(text: str, name: str = "torch-csv") -> Schedule:
    """Read the text of such a file; errors have its `name`. Raises as `read_torch_csv` does."""
    cells = [tuple(_row(row, index, name)) for index, row in enumerate(csv.reader(io.StringIO(text)))]
    orders = tuple(tuple(action for cell in row for action in cell) for row in cells)
    actions = [action for order in orders for action in order]
    if not actions:
        raise InvalidInput(f"{name}: no action at all; a row a rank with cells such as 0F0 is needed")
    num_microbatches = 1 + max(action.microbatch for action in actions)
    if num_microbatches > len(actions):
        raise InvalidInput(f"{name}: micro-batch {num_microbatches - 1} in {len(actions)} actions; number them from 0")
    paired = frozenset(cell[0] for row in cells for cell in row if len(cell) > 1)
    schedule = Schedule("torch-csv", _chain(orders, name), num_microbatches, orders, paired=paired)
    try:
        problems = validate_schedule(schedule)
    except InvalidInput as error:  # pairs that are none
        raise InvalidInput(f"{name}: {error}") from None
    if problems:
        raise ReadableButWrong(f"{name}: {len(problems)} problems, the first one is {problems[0]}")
    return schedule


def _row(row: list[str], index: int, name: str) -> Iterator[tuple[Action, ...]]:
    for column, cell in enumerate(row):
        match = _PAIR.fullmatch(cell.strip())
        texts = match.groups() if match else (cell.strip(),) if cell.strip() else ()
        found = tuple(map(_CELL.fullmatch, texts))
        if not all(found):
            raise InvalidInput(
                f"{name}: row {index + 1}, column {column + 1}: {cell[:40]!r}; a cell is <stage><F, B, I or W>"
                "<micro-batch>, as in 0F0, an overlapped pair, as in (2F5;3B1)OVERLAP_F_B, or empty (only compute_only "
                "files are read)"
            )
        if found:
            yield tuple(Action(Kind(each[2]), int(each[1]), int(each[3])) for each in found if each)


def _chain(orders: tuple[tuple[Action, ...], ...], name: str) -> StageGraph:
    """Return the chain of the stages that are there, each on the rank that has most of it."""
    homes: dict[int, Counter[int]] = {}
    for rank, order in enumerate(orders):
        for action in order:
            homes.setdefault(action.stage, Counter())[rank] += 1
    ranks = {stage: home.most_common(1)[0][0] for stage, home in homes.items()}
    for stage in range(len(ranks)):
        if stage not in ranks:
            raise InvalidInput(f"{name}: stage {stage} is nowhere, and {max(ranks)} is; number the stages from 0")
    idle = [rank for rank in range(len(orders)) if rank not in ranks.values()]
    if idle:
        raise InvalidInput(f"{name}: row {idle[0] + 1} has no stage of its own; each rank runs one at least")
    edges = tuple(StageEdge(stage, stage + 1) for stage in range(len(ranks) - 1))
    return StageGraph(tuple((ranks[stage],) for stage in range(len(ranks))), edges)
