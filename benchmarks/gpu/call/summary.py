"""What a call prints at its end: what fits a screen, the errors last but one, the advice last.

Standard library alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def summary(plan: str, rows: Sequence[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]], end: str) -> str:
    """Return the lines; `end` closes the one that counts."""
    errors = [row for row in rows if "error" in row]
    bad = [step for step in steps if step["state"] not in ("ok", "done")]
    lines = [
        *(_figures(row) for row in rows if "error" not in row),
        *(f"ERROR {row['question']} {row.get('model', '')}: {row['error']}"[:300] for row in errors),
        *(f"STEP {step['step']}: {step['state']}" for step in bad),
        f"{len(rows) - len(errors)} rows, {len(errors)} errors, {len(bad)} steps not clean, {end}",
    ]
    if plan == "smoke" and (errors or bad):
        lines.append("SMOKE NOT CLEAN: give the machine back, mend, then main")
    elif plan == "smoke":
        lines.append("SMOKE CLEAN: run main at once, while the machine is warm (30 s)")
    return "\n".join(lines)


def _figures(row: Mapping[str, Any]) -> str:
    """Return a row's short figures on a line."""
    short = {k: v for k, v in row["row"].items() if not isinstance(v, dict | list) or len(str(v)) < 90}
    values = "  ".join(f"{key} {value}" for key, value in short.items())
    return f"{row['question']:10} {row['seconds']:6.1f} s  {values}"[:400]
