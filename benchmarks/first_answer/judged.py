"""What the rows of `benchmarks.first_answer` come to: in how many cases each promise holds, and which cases break it.

A case without the rows that a promise speaks of is not counted. Leaves out how rows are made.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

NEAR, FLAT, AT_TWO = 1.10, 1.005, 1.02
"""Times the best at the longest limit up to which a first plan is near; up to which a step is no longer than another;
the same where a fixed command is held against an answer after two seconds."""
LATE_S = 2.0
"""By how much a command may be late beside busy processes."""
MANY = 1024
"""Devices from which a first plan may take twice as long."""
Row = dict[str, Any]
Breach = Callable[[Sequence[Row]], str | None]


def allowed_cpu_s(devices: int) -> float:
    """Return the CPU seconds within which a first plan is promised."""
    return 2.0 if devices >= MANY else 1.0


def summary(found: Sequence[Row]) -> tuple[list[str], int]:
    """Return the lines of a table, with the cases that break each promise, and how many breaches there are."""
    lines, broken = [], 0
    for name, judged in [*_of_quiet(found), *_of_busy(found)]:
        if judged:
            breaches = [f"    {case}: {why}" for case, why in judged if why]
            lines += [f"{len(judged) - len(breaches):3} of {len(judged):2}  {name}", *breaches]
            broken += len(breaches)
    return lines, broken


def _of_quiet(found: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Yield each promise of a quiet machine, with the cases that it speaks of and how they break it."""
    for state, cold in (("kernels as they are", False), ("cold", True)):
        asked = [row for row in found if not row["busy"] and row["cold"] == cold]
        for name, breach in PROMISES:
            yield f"{name} ({state})", list(_judged(asked, breach))


def _of_busy(found: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Yield the promises of rows beside busy processes, in the same way."""
    quiet = {(row["case"], row["limit_s"], row["cold"]): row for row in found if not row["busy"]}
    beside = [(row, quiet.get((row["case"], row["limit_s"], row["cold"]))) for row in found if row["busy"]]
    yield "beside busy processes within 1.10 of the quiet answer", [_beside(*each, late=False) for each in beside]
    yield "beside busy processes at most 2 s late", [_beside(*each, late=True) for each in beside]


def _judged(found: Sequence[Row], breach: Breach) -> Iterator[tuple[str, str | None]]:
    """Yield each case that a promise speaks of, with how it breaks it; None where it holds."""
    for case in dict.fromkeys(row["case"] for row in found):
        said = breach(sorted((row for row in found if row["case"] == case), key=lambda row: row["limit_s"]))
        if said is not None:
            yield case, said or None


def _first_plan_is_late(rows: Sequence[Row]) -> str | None:
    allowed_s = allowed_cpu_s(rows[0]["devices"])
    if any(row["first_plan_cpu_s"] is None for row in rows):
        return "no plan at limit " + ", ".join(f"{row['limit_s']:g}" for row in rows if row["first_plan_cpu_s"] is None)
    latest_s = max(row["first_plan_cpu_s"] for row in rows)
    return f"{latest_s:.2f} CPU s, of {allowed_s:g}" if latest_s > allowed_s else ""


def _is_far(key: str) -> Breach:
    """Return the promise that a plan of the first second is near the best one of the longest limit."""

    def breach(rows: Sequence[Row]) -> str | None:
        best_ns, steps = rows[-1].get("best_step_time_ns"), [row[key] for row in rows]
        if not best_ns or len(rows) == 1:
            return None
        if None in steps:
            return "no plan"
        ratio = max(steps) / best_ns
        return f"{ratio:.3f} times the {best_ns / 1e6:.2f} ms at limit {rows[-1]['limit_s']:g}" if ratio > NEAR else ""

    return breach


def _rises(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row.get("best_step_time_ns")]
    if len(rows) == 1:
        return None
    if len(known) < len(rows):
        return "no plan at limit " + ", ".join(f"{row['limit_s']:g}" for row in rows if row not in known)
    said, best_ns = [], known[0]["best_step_time_ns"]
    for row in known[1:]:
        step_ns = row["best_step_time_ns"]
        if step_ns > best_ns * FLAT:
            said.append(f"+{step_ns / best_ns - 1:.2%} at limit {row['limit_s']:g}")
        best_ns = min(best_ns, step_ns)
    return ", ".join(said)


def _is_beaten(rows: Sequence[Row]) -> str | None:
    asked = [row for row in rows if row["fixed"]]
    if not asked:
        return None
    said = []
    for row in asked:
        best_ns, flags, step_ns = row.get("best_step_time_ns"), *_fastest(row)
        if step_ns is None:
            continue
        least = AT_TWO if row["limit_s"] <= LATE_S else FLAT
        if best_ns is None or step_ns * least < best_ns:
            by = f"{1 - step_ns / best_ns:.2%} less" if best_ns else "no plan beside it"
            said.append(f"limit {row['limit_s']:g}: {step_ns / 1e6:.2f} ms, {by}, by {flags}")
    return "; ".join(said)


def _fastest(row: Row) -> tuple[str, int | None]:
    """Return the fastest fixed command of a row, and its step."""
    found = {flags: ns for flags, ns in row["fixed"].items() if ns}
    best = min(found, key=found.__getitem__, default="")
    return best, found.get(best)


def _beside(row: Row, quiet: Row | None, *, late: bool) -> tuple[str, str | None]:
    """Return a case beside busy processes, with what it breaks."""
    case, limit_s = f"{row['case']}, limit {row['limit_s']:g}", row["limit_s"]
    if late:
        return case, f"{row['wall_s']:.1f} s" if row["wall_s"] > limit_s + LATE_S else None
    own_ns, quiet_ns = row.get("best_step_time_ns"), quiet.get("best_step_time_ns") if quiet else None
    if not quiet_ns:
        return case, "there is no quiet answer to hold it against"
    if not own_ns:
        return case, "no plan"
    return case, f"{own_ns / quiet_ns:.3f} times" if own_ns > quiet_ns * NEAR else None


PROMISES: tuple[tuple[str, Breach], ...] = (
    ("the first plan within 1 CPU s, 2 on 1,024 devices", _first_plan_is_late),
    ("the first plan within 1.10 of the best at the longest limit", _is_far("first_plan_ns")),
    ("the best plan of those CPU seconds within 1.10 of it", _is_far("in_time_ns")),
    ("the best step never rises with the limit by more than 0.5 %", _rises),
    ("no fixed command is faster by more than 0.5 %, 2 % at 2 s", _is_beaten),
)
"""Shows 1, and what part of it also holds without compiled kernels."""
