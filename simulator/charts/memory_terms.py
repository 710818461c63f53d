"""The memory of one rank over time, by term: what is held all the time in layers, and on top what comes and goes.

Takes what others computed. What comes and goes is activations and messages together: a timeline has their sum.
"""

from collections.abc import Mapping

from matplotlib.axes import Axes

from costmodel.printing import unit_of
from simulator.charts.style import EDGE, FILLS, legend_beside, time_axis
from simulator.timeline import Timeline

MOVING = "activations and messages"


def memory_by_term(
    ax: Axes, timeline: Timeline, rank: int, terms: Mapping[str, int], *, called: str = "", end_ns: int = 0
) -> Axes:
    """Draw a rank's memory over time in layers.

    Parameters
    ----------
    ax : Axes
    timeline : Timeline
        With the memory of each rank.
    rank : int
    terms : mapping of str to int
        Bytes that it holds all the time; beyond as many terms as there are styles the smallest are drawn as one.
    called : str
        What the rank is called; default its number.
    end_ns : int
        End of the time axis, where that is not the timeline's.
    """
    points = timeline.memory[rank]
    unit, size = unit_of(timeline.peak_memory_bytes[rank])
    end = max(end_ns, *(span.end_ns for span in timeline.spans), 1)
    times = [time_ns / 1e6 for time_ns, _ in points] + [end / 1e6]
    totals = [held for _, held in (*points, points[-1])]
    layers = {**_largest(terms), MOVING: 0}
    below = [0.0] * len(times)
    for (name, held), (fill, hatch) in zip(layers.items(), FILLS, strict=False):
        above = [total / size for total in totals] if name == MOVING else [low + held / size for low in below]
        ax.fill_between(
            times, below, above, step="post", facecolor=fill, hatch=hatch, edgecolor=EDGE, linewidth=0.3,
            label=name.replace("_", " "),
        )  # fmt: skip
        below = above
    time_axis(ax, end, unit, f"memory of {called or f'rank {rank}'} by term")
    ax.set_ylim(0, 1.08 * max(totals) / size)
    legend_beside(ax, ax.get_legend_handles_labels()[0][::-1])
    return ax


def _largest(terms: Mapping[str, int]) -> dict[str, int]:
    """Return the terms that are something, in their order; the smallest of too many as one."""
    found = {name: size for name, size in terms.items() if size}
    most = len(FILLS) - 1
    if len(found) <= most:
        return found
    kept = sorted(found, key=lambda name: -found[name])[: most - 1]
    rest = sum(size for name, size in found.items() if name not in kept)
    return {**{name: size for name, size in found.items() if name in kept}, "other": rest}
