"""Charts that put schedules side by side: one curve or one point each.

Takes figures that others computed (`simulator.comparison`). Leaves out what happens when: that is the Gantt picture.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from simulator.charts.style import LINES, frame, legend_beside, shade

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
    for index, (name, points) in enumerate(drawn.items()):
        ax.plot(
            [x for x, _ in points], [y for _, y in points], label=name, color=shade(index % 7, 7),
            linestyle=LINES[index % len(LINES)], marker=MARKERS[index % len(MARKERS)], markersize=4, linewidth=1.1,
        )  # fmt: skip
    legend_beside(frame(ax, x_label, y_label))
    return ax
