"""Schedules as text: a form that reads back, and a grid of ranks and steps with cells marked.

The text form is lines: ``schedule NAME``, ``microbatches N`` (``slices N`` where sequences are sliced), one
``stage`` line each with its ranks, one ``edge`` line each, then one ``rank`` line each with its actions in
columns. Blank lines and what follows ``#`` are skipped. Leaves out times and costs.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from costmodel.errors import InvalidInput
from simulator.actions import Action, parse_action
from simulator.schedule import Schedule, StageEdge, StageGraph, check_multiples

_LINES = {
    "schedule": re.compile(r"schedule (\S+)"),
    "microbatches": re.compile(r"microbatches (\d{1,9})"),
    "slices": re.compile(r"slices (\d{1,9})"),
    "stage": re.compile(r"stage (\d{1,9}) on ((?:\d{1,9} ?)+)(?:, (\d{1,9}) an action)?(, forward only)?"),
    "edge": re.compile(r"edge (\d{1,9}) > (\d{1,9})( without gradient)?"),
    "rank": re.compile(r"rank (\d{1,9}):(.*)"),
}


def schedule_to_text(schedule: Schedule) -> str:
    """Write a schedule with its stage graph; `schedule_from_text` reads it back."""
    graph = schedule.graph
    lines = [f"schedule {schedule.name}", f"microbatches {schedule.num_microbatches}"]
    if schedule.num_slices > 1:
        lines.append(f"slices {schedule.num_slices}")
    for stage, ranks in enumerate(graph.ranks):
        many = f", {graph.multiples[stage]} an action" if graph.multiples[stage] > 1 else ""
        once = "" if graph.backward[stage] else ", forward only"
        lines.append(f"stage {stage} on {' '.join(map(str, ranks))}{many}{once}")
    lines += [f"edge {e.source} > {e.target}{'' if e.gradient else ' without gradient'}" for e in graph.edges]
    rows = [list(map(str, order)) for order in schedule.orders]
    width = max((len(cell) for row in rows for cell in row), default=0)
    margin = len(str(len(rows)))
    for rank, row in enumerate(rows):
        lines.append(f"rank {rank:>{margin}}: {' '.join(cell.ljust(width) for cell in row)}".rstrip())
    return "\n".join(lines) + "\n"


def schedule_from_text(text: str) -> Schedule:
    """Read a schedule back.

    Raises
    ------
    InvalidInput
        For a line of no known form, a part that is missing or occurs twice, or ranks and stages out of order.
    """
    found: dict[str, list[tuple[str, ...]]] = {word: [] for word in _LINES}
    for number, word, fields in _read_lines(text):
        if word in ("stage", "rank") and int(fields[0]) != len(found[word]):
            raise InvalidInput(
                f"line {number}: {word} {fields[0]} where {word} {len(found[word])} is next; count from 0"
            )
        found[word].append(fields)
    for word, least, most in (("schedule", 1, 1), ("microbatches", 1, 1), ("slices", 0, 1), ("stage", 1, None)):
        if len(found[word]) < least or (most is not None and len(found[word]) > most):
            raise InvalidInput(f"{len(found[word])} lines start with {word!r}; {least} is needed")
    graph = _graph(found["stage"], found["edge"])
    num_microbatches = int(found["microbatches"][0][0])
    check_multiples(graph, num_microbatches)
    if len(found["rank"]) != graph.num_ranks:
        raise InvalidInput(f"{len(found['rank'])} lines of ranks; the stages use {graph.num_ranks}")
    orders = tuple(tuple(map(parse_action, fields[1].split())) for fields in found["rank"])
    num_slices = int(found["slices"][0][0]) if found["slices"] else 1
    return Schedule(found["schedule"][0][0], graph, num_microbatches, orders, num_slices)


def _read_lines(text: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for number, line in enumerate(text.splitlines(), 1):
        content = re.sub(r"(?:^|\s)#.*", "", line).strip()
        if not content:
            continue
        word = content.split()[0]
        match = _LINES[word].fullmatch(re.sub(r"\s+", " ", content)) if word in _LINES else None
        if not match:
            raise InvalidInput(
                f"line {number}: {content[:60]!r} is none of: {', '.join(_LINES)} ...; see schedule_to_text"
            )
        yield number, word, tuple(part or "" for part in match.groups())


def _graph(stages: Sequence[tuple[str, ...]], edges: Sequence[tuple[str, ...]]) -> StageGraph:
    ranks = tuple(tuple(map(int, fields[1].split())) for fields in stages)
    for source, target, _ in edges:
        if max(int(source), int(target)) >= len(stages) or source == target:
            raise InvalidInput(f"edge {source} > {target}: stages are numbered 0 to {len(stages) - 1}")
    graph = StageGraph(
        ranks,
        tuple(StageEdge(int(source), int(target), not without) for source, target, without in edges),
        tuple(int(fields[2] or 1) for fields in stages),
        tuple(not fields[3] for fields in stages),
    )
    if len(graph.order) < graph.num_stages:
        raise InvalidInput("the edges form a cycle; a stage graph has none, so drop one edge")
    return graph


AROUND = 4
"""Steps and ranks that a grid shows on each side of the marked ones."""


def marked_grid(
    orders: Sequence[Sequence[Action]],
    marks: Collection[tuple[int, int]],
    missing: Action | None = None,
) -> str:
    """Draw ranks against steps (positions in the orders) with cells in brackets.

    Parameters
    ----------
    orders : sequence of sequence of Action
    marks : collection of (int, int)
        (rank, position) of the cells to mark; a position behind a rank's last action is drawn as ``[?]``.
    missing : Action, optional
        What should be in such a cell.
    """
    ranks = range(max(0, min(m[0] for m in marks) - AROUND), min(len(orders), max(m[0] for m in marks) + AROUND + 1))
    first, last = max(0, min(m[1] for m in marks) - AROUND), max(m[1] for m in marks) + AROUND
    last = min(last, max(max(m[1] for m in marks), *(len(orders[rank]) - 1 for rank in ranks)))
    rows = [["step", *map(str, range(first, last + 1))]]
    for rank in ranks:
        order = orders[rank]
        cells = [str(order[i]) if i < len(order) else "" for i in range(first, last + 1)]
        for marked_rank, position in marks:
            if marked_rank == rank:
                inside = cells[position - first] or (f"{missing}?" if missing else "?")
                cells[position - first] = f"[{inside}]"
        rows.append([f"rank {rank}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
