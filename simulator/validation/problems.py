"""Problems of a schedule: their classes, and how each is shown on the grid of ranks and steps."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from simulator.actions import RECEIVES, SENDS, Action
from simulator.schedule import Schedule

CLASSES = {
    "missing": "an action that the stage graph asks for is not there",
    "duplicated": "an action occurs twice",
    "wrong-rank": "an action is on a rank that is not its stage's, or its stage is not there",
    "backward-before-forward": "B, I or R comes before F of the same micro-batch",
    "weight-before-input": "W comes before I of the same micro-batch",
    "bad-microbatch": "a micro-batch that is not there, or that does not start a group of the stage",
    "bad-slice": "a sequence slice out of range",
    "after-opt": "an action comes after its rank's optimizer step",
    "waits-on-itself": "ranks wait on each other for ever",
    "send-without-receive": "only one end of a transfer is there",
    "link-order": "two ranks disagree on the order of the messages between them",
    "memory": "the order needs more memory than the limit",
}

AROUND = 4
"""Steps and ranks that a grid shows on each side of the marked ones."""


@dataclass(frozen=True, slots=True)
class ScheduleProblem:
    """What is wrong at one place of a schedule.

    Attributes
    ----------
    kind : str
        One of `CLASSES`.
    rank, position : int
        The cell; a missing action's is the one behind the rank's last action.
    message : str
        What was found and what is allowed.
    grid : str
        The ranks and steps around it, with the cell marked.
    """

    kind: str
    rank: int
    position: int
    message: str
    grid: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n{self.grid}"


class Board:
    """A schedule as cells (rank, position, action), on which problems are marked.

    Attributes
    ----------
    schedule : Schedule
    graph : StageGraph
    cells : list of (int, int, Action)
    place : dict
        Position of each (rank, action), the last where it occurs twice.
    present : set of Action
    pieces : list of range or tuple
        For each stage the slice indices of its actions, -1 for whole sequences.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.cells = [(rank, i, a) for rank, order in enumerate(schedule.orders) for i, a in enumerate(order)]
        self.place = {(rank, action): i for rank, i, action in self.cells}
        self.present = {action for _, _, action in self.cells}
        sliced = {a.stage for a in self.present if a.slice_index >= 0 and a.kind not in SENDS | RECEIVES}
        slices = range(schedule.num_slices) if schedule.num_slices > 1 else (-1,)
        self.pieces = [slices if stage in sliced else (-1,) for stage in range(self.graph.num_stages)]

    def problem(
        self,
        kind: str,
        rank: int,
        position: int,
        message: str,
        missing: Action | None = None,
        marks: Collection[tuple[int, int]] = (),
    ) -> ScheduleProblem:
        """Make a problem with its grid; `marks` are its cells where there are several."""
        grid = marked_grid(self.schedule.orders, marks or ((rank, position),), missing)
        return ScheduleProblem(kind, rank, position, f"rank {rank}, step {position}: {message}", grid)

    def lacks(self, rank: int, action: Action, why: str) -> ScheduleProblem:
        """Make a problem of something that is not there."""
        return self.problem("missing", rank, len(self.schedule.orders[rank]), f"{action} is missing; {why}", action)


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
