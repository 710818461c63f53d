"""Charts of what a timeline adds up to: memory over time, idle time by cause, plans side by side.

Takes figures that others computed. Leaves out when things happen (`simulator.charts.timeline`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from costmodel.printing import unit_of
from simulator.charts.rows import MOST_FULL, named, rows_of
from simulator.charts.style import (
    EDGE,
    FILLS,
    FONT_SIZE,
    LINES,
    frame,
    legend_beside,
    milliseconds,
    shade,
    swatch,
    time_axis,
)
from simulator.timeline import Timeline

MOST_CURVES = 6
BAR_INCHES = 0.3
FAR = 4
"""Multiple of the highest peak above which a limit is written in words and not drawn."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One plan of a comparison; 0 where a figure is not known."""

    name: str
    step_time_ns: int
    bubble_ratio: float
    lower_bound_ns: int = 0
    measured_ns: int = 0


def memory(
    ax: Axes,
    timeline: Timeline,
    *,
    limit_bytes: int = 0,
    share_bytes: int = 0,
    title: str = "memory",
    ranks: Sequence[Sequence[int]] = (),
    end_ns: int = 0,
) -> Axes:
    """Draw each rank's memory over time.

    `limit_bytes` is drawn as a line across (0: none); with `share_bytes` the unit is activation shares of
    that many bytes. `ranks` are those that each rank of the timeline represents, and `end_ns` the end of the time
    axis, as `gantt` takes them.
    """
    highest = max(timeline.peak_memory_bytes, default=0)
    drawn = 0 < limit_bytes <= FAR * highest
    peak = max(highest, limit_bytes if drawn else 0, 1)
    unit, size = ("activation shares", share_bytes) if share_bytes else unit_of(peak)
    end = max(end_ns, *(span.end_ns for span in timeline.spans), 1)
    for rank, curve in _curves(timeline, ranks).items():
        points = timeline.memory[rank]
        times = [time / 1e6 for time, _ in points] + [end / 1e6]
        values = [held / size for _, held in (*points, points[-1])]
        ax.step(times, values, where="post", **curve)
    far = ""
    if limit_bytes and not drawn:
        far_unit, whole = unit_of(limit_bytes)
        far = f", far below the limit of {limit_bytes / whole:.4g} {far_unit}"
    time_axis(ax, end, unit, f"{title}: peak {highest / size:.4g} {unit}{far}")
    if drawn:
        ax.axhline(limit_bytes / size, color="black", linewidth=1.6)
        ax.annotate(
            f"limit {limit_bytes / size:.4g} {unit}", (0, limit_bytes / size), (3, -3), textcoords="offset points",
            va="top", fontsize=FONT_SIZE,
        )  # fmt: skip
    ax.set_ylim(0, 1.08 * peak / size)
    legend_beside(ax)
    return ax


def _curves(timeline: Timeline, ranks: Sequence[Sequence[int]]) -> dict[int, dict[str, Any]]:
    """Return the style of each curve, one for all ranks that are alike; only the highest and the lowest are strong."""
    peaks = timeline.peak_memory_bytes
    rows = {row.lead: row for row in rows_of(timeline, ranks) if timeline.memory[row.lead]}
    if len(rows) <= MOST_CURVES:
        return {
            rank: {
                "linestyle": LINES[i % len(LINES)], "color": shade(i, len(rows)), "linewidth": 1.1,
                "label": row.name,
            }
            for i, (rank, row) in enumerate(rows.items())
        }  # fmt: skip
    curves: dict[int, dict[str, Any]] = {rank: {"color": "#c4c4c4", "linewidth": 0.6, "zorder": 1} for rank in rows}
    highest, lowest = max(rows, key=lambda r: peaks[r]), min(rows, key=lambda r: peaks[r])
    others = [rank for rank in rows if rank not in (highest, lowest)]
    curves[others[0]]["label"] = f"the other {sum(len(rows[rank].ranks) for rank in others)} ranks"
    curves[lowest] = {"color": "#4f86b8", "linestyle": "--", "label": f"{rows[lowest].name} (lowest peak)"}
    curves[highest] = {"color": "black", "label": f"{rows[highest].name} (highest peak)"}
    return curves


def bubbles_height(num_rows: int) -> float:
    """Return a good height in inches for idle time of a number of rows."""
    return 1.0 + BAR_INCHES * min(max(num_rows, 3), MOST_FULL)


def bubbles(ax: Axes, causes: Mapping[str, Mapping[str, int]], *, title: str = "idle time by cause") -> Axes:
    """Draw idle time as one stacked bar a row.

    Parameters
    ----------
    ax : Axes
    causes : mapping of str to mapping of str to int
        For each row (a plan, a schedule, a rank) the ns of each cause. Beyond as many causes as there
        are styles the smallest are drawn as one.
    title : str
    """
    totals: dict[str, int] = {}
    for row in causes.values():
        for cause, time_ns in row.items():
            totals[cause] = totals.get(cause, 0) + time_ns
    names = [name for name in sorted(totals, key=lambda n: (-totals[n], n)) if totals[name]]
    parts = [[name] for name in names]
    if len(names) > len(FILLS):
        parts = [[name] for name in names[: len(FILLS) - 1]] + [names[len(FILLS) - 1 :]]
    lefts = [0.0] * len(causes)
    handles = []
    for (fill, hatch), part in zip(FILLS, parts, strict=False):
        widths = [sum(row.get(name, 0) for name in part) / 1e6 for row in causes.values()]
        ax.barh(range(len(causes)), widths, left=lefts, height=0.62, color=fill, hatch=hatch, edgecolor=EDGE,
                linewidth=0.5)  # fmt: skip
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        label = part[0] if len(part) == 1 else f"{len(part)} smaller causes"
        handles.append(swatch(label, fill, hatch))
    _rows(ax, list(causes), "idle time (ms)", title)
    ax.set_xlim(0, 1.14 * max((*lefts, 1e-6)))
    for position, total in enumerate(lefts if len(lefts) <= MOST_FULL else ()):
        ax.annotate(
            f"{total:.4g}", (total, position), (3, 0), textcoords="offset points", va="center", fontsize=FONT_SIZE
        )
    legend_beside(ax, handles)
    return ax


def time_called(by_sample: bool) -> str:
    """Return what pictures call the time that is compared."""
    return "time of a sample" if by_sample else "step time"


def comparison(ax: Axes, rows: Sequence[ComparedRow], *, title: str = "", by_sample: bool = False) -> Axes:
    """Draw plans or schedules side by side: step time with its idle share, the lower bound, what was measured.

    With `by_sample` the rows' times are of one sample.
    """
    for index, row in enumerate(rows):
        step, idle = row.step_time_ns / 1e6, row.step_time_ns / 1e6 * row.bubble_ratio
        ax.barh(index, step - idle, height=0.62, color="#7f9fbf", edgecolor=EDGE, linewidth=0.5)
        ax.barh(index, idle, left=step - idle, height=0.62, color="white", hatch="////", edgecolor=EDGE, linewidth=0.5)
        if row.lower_bound_ns:
            ax.plot([row.lower_bound_ns / 1e6] * 2, [index - 0.42, index + 0.42], color="black", linewidth=2)
        if row.measured_ns:
            ax.plot(row.measured_ns / 1e6, index, marker="D", color="white", markeredgecolor="black", markersize=6)
        end = max(step, row.measured_ns / 1e6)
        text = f"{milliseconds(row.step_time_ns)}, bubble {row.bubble_ratio:.1%}"
        text += f"; measured {milliseconds(row.measured_ns)}" if row.measured_ns else ""
        ax.annotate(text, (end, index), (8, 0), textcoords="offset points", va="center", fontsize=FONT_SIZE)
    longest = max((max(row.step_time_ns, row.measured_ns) for row in rows), default=1)
    time_axis(ax, int((1.6 if any(row.measured_ns for row in rows) else 1.3) * longest))
    time = time_called(by_sample)
    _rows(ax, [row.name for row in rows], f"{time} (ms)", title or time)
    _comparison_legend(ax, rows)
    return ax


def _comparison_legend(ax: Axes, rows: Sequence[ComparedRow]) -> None:
    handles: list[Patch | Line2D] = [
        swatch("busy (mean over ranks)", "#7f9fbf"),
        swatch("idle (bubble)", "white", "////"),
    ]
    if any(row.lower_bound_ns for row in rows):
        handles.append(Line2D([], [], color="black", linewidth=2, label="lower bound"))
    if any(row.measured_ns for row in rows):
        handles.append(
            Line2D([], [], linestyle="", marker="D", color="white", markeredgecolor="black", label="measured")
        )
    legend_beside(ax, handles)


def _rows(ax: Axes, names: Sequence[str], x_label: str, title: str) -> None:
    ax.set_yticks(*named(names))
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    frame(ax, x_label, title=title)
