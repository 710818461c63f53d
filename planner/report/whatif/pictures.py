"""Pictures of changes: curves of a sweep, where device time goes, a tornado, the spread of scenarios.

Draws what others computed; an `ax` in, the same `ax` out. Leaves out timelines (`planner.report.comparison.pictures`).
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.report.whatif.outcome import Consequence
from planner.report.whatif.scenarios import QUANTILES, StepSpread
from planner.report.whatif.tornado import Bar
from simulator.charts import new_figure
from simulator.charts.style import EDGE, FILLS, LINES, frame, legend_beside, milliseconds, swatch

CURVE_INCHES, BAR_INCHES, FRAME_INCHES = 2.6, 0.24, 0.9
PARTS = (FILLS[1], *FILLS[:1:-1])
"""Looks of what device time goes into, the largest plain."""
MOST_BARS, MOST_PARTS, NUM_BINS = 24, len(PARTS) - 1, 30


def changes_figure(
    swept: Sequence[Consequence],
    best: Sequence[Consequence],
    bars: Sequence[Bar],
    base_ns: int,
    spread: StepSpread | None,
) -> Figure:
    """Return a figure of what there is: a sweep (`best`: as planned anew), a tornado, scenarios."""
    bars = bars[:MOST_BARS]
    heights = [CURVE_INCHES, CURVE_INCHES] if swept else []
    heights += [FRAME_INCHES + BAR_INCHES * len(bars)] if bars else []
    heights += [CURVE_INCHES] if spread else []
    figure, axes = new_figure(heights)
    panels = iter(axes)
    if swept:
        curve(next(panels), swept, best)
        shares(next(panels), swept)
    if bars:
        tornado_picture(next(panels), bars, base_ns)
    if spread:
        histogram(next(panels), spread)
    return figure


def curve(ax: Axes, swept: Sequence[Consequence], best: Sequence[Consequence]) -> Axes:
    """Draw samples a second against the swept value; for devices with what would be in proportion to them."""
    places, last = range(len(swept)), swept[0].changes[-1]
    if last.kind == "devices":
        first = swept[0]
        ideal = [first.samples_per_s * each.num_devices / first.num_devices for each in swept]
        ax.plot(places, ideal, linestyle=":", color=EDGE, linewidth=1, label="in proportion")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    rates = [each.samples_per_s for each in swept]
    called = "planned anew" if last.kind == "devices" else "the plan as it is"
    ax.plot(places, rates, marker="o", markersize=4, color=FILLS[6][0], linewidth=1.3, label=called)
    if best:
        rates = [each.samples_per_s for each in best]
        ax.plot(places, rates, marker="s", markersize=4, color=EDGE, linewidth=1, label="planned anew")
    ax.set_xticks(list(places), [each.changes[-1].text for each in swept])
    frame(ax, last.key, "samples a second")
    legend_beside(ax)
    return ax


def shares(ax: Axes, swept: Sequence[Consequence]) -> Axes:
    """Draw the device time that a sample costs, by what it goes into."""
    sums: dict[str, float] = {}
    for each in swept:
        for name, ns in each.device_ns.items():
            sums[name] = sums.get(name, 0.0) + ns
    names = sorted(sums, key=lambda name: -sums[name])
    shown, bottoms, handles, places = names[:MOST_PARTS], [0.0] * len(swept), [], range(len(swept))
    rows = {name: [each.device_ns.get(name, 0.0) for each in swept] for name in shown}
    if len(names) > MOST_PARTS:
        rows["other causes"] = [sum(each.device_ns.get(name, 0.0) for name in names[MOST_PARTS:]) for each in swept]
    for (name, values), (fill, hatch) in zip(rows.items(), PARTS, strict=False):
        heights = [ns / 1e6 for ns in values]
        ax.bar(places, heights, 0.6, bottoms, facecolor=fill, hatch=hatch, edgecolor=EDGE, linewidth=0.5)
        bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
        handles.append(swatch(name, fill, hatch))
    ax.set_xticks(list(places), [each.changes[-1].text for each in swept])
    frame(ax, swept[0].changes[-1].key, "device time a sample (ms)")
    legend_beside(ax, handles[::-1])
    return ax


def tornado_picture(ax: Axes, bars: Sequence[Bar], base_ns: int) -> Axes:
    """Draw how far each input moves the step, the one that moves it most on top."""
    for place, bar in enumerate(bars):
        for ns, (fill, hatch) in ((bar.smaller_ns, FILLS[2]), (bar.larger_ns, FILLS[4])):
            more = (ns - base_ns) / 1e6
            ax.barh(place, more, 0.7, base_ns / 1e6, facecolor=fill, hatch=hatch, edgecolor=EDGE, linewidth=0.5)
    ax.axvline(base_ns / 1e6, color=EDGE, linewidth=0.8)
    ax.set_yticks(range(len(bars)), [bar.key for bar in bars])
    ax.invert_yaxis()
    frame(ax, "step time (ms)")
    legend_beside(ax, [swatch("smaller", *FILLS[2]), swatch("larger", *FILLS[4])], "value")
    return ax


def histogram(ax: Axes, spread: StepSpread) -> Axes:
    """Draw how many scenarios take how long."""
    ax.hist([ns / 1e6 for ns in spread.steps_ns], NUM_BINS, color=FILLS[6][0], edgecolor=EDGE, linewidth=0.4)
    marks = {"planned": spread.planned_ns, **{f"p{q}": spread.quantile_ns(q) for q in QUANTILES}}
    for (name, ns), style in zip(marks.items(), LINES, strict=True):
        ax.axvline(ns / 1e6, color="black", linestyle=style, linewidth=1, label=f"{name} {milliseconds(ns)}")
    frame(ax, "step time (ms)", "scenarios")
    legend_beside(ax)
    return ax
