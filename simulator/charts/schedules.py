"""Charts that put schedules side by side: one curve or one point each.

Takes figures that others computed (`simulator.comparison`). Leaves out what happens when: that is the Gantt picture.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from simulator.charts.style import FONT_SIZE, LINES, legend_beside, shade

CURVES_INCHES = 3.0
MARKERS = "osD^v<>Pphd*X8"


def schedule_curves(ax: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> Axes:
    """Draw a curve of (x, y) points for each schedule; one without points is left out.

    Parameters
    ----------
    ax : Axes
    curves : mapping of str to sequence of (float, float)
    x_label, y_label : str
    """
    drawn = {name: points for name, points in curves.items() if points}
    handles = []
    for index, (name, points) in enumerate(drawn.items()):
        style: dict[str, Any] = {
            "color": shade(index % 7, 7),
            "linestyle": LINES[index % len(LINES)],
            "marker": MARKERS[index % len(MARKERS)],
            "markersize": 4,
            "linewidth": 1.1,
        }
        ax.plot([x for x, _ in points], [y for _, y in points], **style)
        handles.append(Line2D([], [], label=name, **style))
    ax.set_xlabel(x_label, fontsize=FONT_SIZE)
    ax.set_ylabel(y_label, fontsize=FONT_SIZE)
    ax.tick_params(labelsize=FONT_SIZE)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    legend_beside(ax, handles)
    return ax
