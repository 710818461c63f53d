"""Rows of a picture: ranks that do the same at the same time share one, so that 1,024 ranks stay readable.

Replicas differ only in which micro-batches they work on, so that is not compared; the row shows its first rank. Leaves
out what a row looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.timeline import Timeline

ROW_INCHES = 0.36
MOST_FULL = 40
"""Rows that get their full height and a name; more share the room of these."""


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """Ranks that are alike: the first rank of the timeline among them, and the ranks of the plan that it shows."""

    lead: int
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """What is written at its side."""
        return called(self.ranks)


def rows_of(timeline: Timeline, ranks: Sequence[Sequence[int]] = ()) -> list[DrawnRow]:
    """Return the rows: ranks with the same actions, stages aside, in the same order at the same times share one.

    Memory that differs parts ranks too. Where each rank of the timeline represents several (a plan's blocks), `ranks`
    are these; by default itself.
    """
    rows: dict[object, list[int]] = {}
    for rank, spans in enumerate(timeline.spans_by_rank):
        row = tuple((span.action.kind, span.stream, span.start_ns, span.end_ns) for span in spans)
        rows.setdefault((row, timeline.memory[rank] if timeline.memory else ()), []).append(rank)
    return [
        DrawnRow(row[0], tuple(sorted(rank for lead in row for rank in (ranks[lead] if ranks else (lead,)))))
        for row in rows.values()
    ]


def called(ranks: Sequence[int]) -> str:
    """Return the name of a row: ``rank 3``, ``ranks 0-7``, ``ranks 0-3, 8-11``, or their number beyond that."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(runs) > 2:
        return f"rank {ranks[0]} and {len(ranks) - 1} more"
    return f"ranks {', '.join(f'{a}-{b}' if b > a else str(a) for a, b in runs)}"


def rows_inches(num_rows: int, least: int) -> float:
    """Return the height of a number of rows, at least that of `least`."""
    return ROW_INCHES * min(max(num_rows, least), MOST_FULL)


def named(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the places and names of rows that are written at their side: all of few, some of many."""
    step = -(-len(names) // MOST_FULL) or 1
    places = list(range(0, len(names), step))
    return places, [names[place] for place in places]
