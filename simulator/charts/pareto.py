"""Step time against the highest memory of a rank: plans as numbers, other strategies as dots, the limit across.

Draws what it is given; which points nothing beats in both is the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from costmodel.printing import unit_of
from simulator.charts.measures import time_called
from simulator.charts.style import EDGE, FONT_SIZE, frame


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A plan (`number` from 1), or another strategy (0).

    Attributes
    ----------
    step_ns, peak_bytes : int
        The step's time, or that of one of its samples.
    text : str
        What it is.
    number : int
    fits : bool
    """

    step_ns: int
    peak_bytes: int
    text: str
    number: int = 0
    fits: bool = True


def not_beaten(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that fit and that no other beats in time and in memory, the quickest first."""
    front: list[ParetoPoint] = []
    for point in sorted((p for p in points if p.fits), key=lambda p: (p.step_ns, p.peak_bytes)):
        if not front or point.peak_bytes < front[-1].peak_bytes:
            front.append(point)
    return front


def pareto(
    ax: Axes, points: Sequence[ParetoPoint], *, limit_bytes: int = 0, stairs: bool = True, by_sample: bool = False
) -> Axes:
    """Draw the points, the stairs of those that nothing beats, and the limit (0: none)."""
    unit, size = unit_of(max((p.peak_bytes for p in points), default=1))
    front = not_beaten(points) if stairs else []
    ax.step([p.step_ns / 1e6 for p in front], [p.peak_bytes / size for p in front], where="post", color="#4f86b8",
            linestyle="--", linewidth=1.0, zorder=1)  # fmt: skip
    for point in points:
        place = (point.step_ns / 1e6, point.peak_bytes / size)
        if point.number:
            ax.plot(*place, "o", markersize=11, color="#1f5f99")
            ax.annotate(str(point.number), place, ha="center", va="center_baseline", color="white", fontsize=FONT_SIZE)
            ax.annotate(point.text, place, (9, 0), textcoords="offset points", va="center", fontsize=FONT_SIZE)
        else:
            ax.plot(*place, "o", markersize=4, markerfacecolor="#7f7f7f" if point.fits else "white", color=EDGE)
    if limit_bytes:
        ax.axhline(limit_bytes / size, color="black", linewidth=1.6)
        ax.annotate(f"limit {limit_bytes / size:.4g} {unit}", (0, limit_bytes / size), (3, 3), fontsize=FONT_SIZE,
                    xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    ax.margins(0.15, 0.2)
    time = time_called(by_sample)
    title = f"{time} and memory: plans as numbers, other strategies of their ladders as dots"
    return frame(ax, f"{time} (ms)", f"highest memory of a rank ({unit})", title)
