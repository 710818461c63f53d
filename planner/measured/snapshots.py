"""What ranks held by torch's memory snapshots, and what their plan has there. Leaves out how a snapshot is read."""

from collections.abc import Sequence

from costmodel.errors import DoesNotMatch, UsageError
from costmodel.importers.memory_snapshot import read_memory_snapshot
from planner.plan import Plan
from planner.report.summary.text import Table, percent, size

STATES = ("parameters", "gradients", "gradient_copies", "master_weights", "optimizer")
"""Terms of a stage that stay between steps."""
COLUMNS = (
    "rank",
    "planned peak",
    "held",
    "prediction error",
    "planned at most",
    "reserved",
    "planned states",
    "held after",
)


def held_rows(plan: Plan, given: Sequence[str]) -> list[dict[str, int]]:
    """Return a row a snapshot, each given as ``RANK=FILE``.

    Raises
    ------
    UsageError, InvalidInput, DoesNotMatch
        When that is not what is given, a file is no snapshot, or the plan has no such rank.
    """
    snapshots = {}
    for number, _, path in (text.partition("=") for text in given):
        if not (number.isascii() and number.isdecimal() and path):
            raise UsageError(f"--memory-snapshot {number!r}: give RANK=FILE, as 0=rank0.json")
        snapshots[int(number)] = read_memory_snapshot(path)
    found = plan.prediction
    for rank in snapshots:
        if rank >= len(found.peak_memory_bytes):
            raise DoesNotMatch(
                f"a snapshot is of rank {rank}; the plan has ranks 0 to {len(found.peak_memory_bytes) - 1}"
            )
    return [
        {
            "rank": rank,
            "planned_peak_bytes": found.peak_memory_bytes[rank],
            "peak_bytes": snapshot.peak_bytes,
            "planned_upper_bytes": found.peak_memory_upper_bytes[rank],
            "reserved_bytes": snapshot.reserved_bytes,
            "planned_states_bytes": sum(
                size
                for stage in plan.stages
                for name, size in (stage.cost.memory_terms if rank in stage.ranks else ())
                if name in STATES
            ),
            "end_bytes": snapshot.end_bytes,
        }
        for rank, snapshot in sorted(snapshots.items())
    ]


def held_table(rows: list[dict[str, int]]) -> Table:
    """Return the rows as people read them."""
    return Table(
        COLUMNS,
        [
            (
                str(row["rank"]),
                size(row["planned_peak_bytes"]),
                size(row["peak_bytes"]),
                percent(row["planned_peak_bytes"] / max(1, row["peak_bytes"]) - 1),
                *(size(row[name]) for name in ("planned_upper_bytes", "reserved_bytes")),
                *(size(row[name]) for name in ("planned_states_bytes", "end_bytes")),
            )
            for row in rows
        ],
    )
