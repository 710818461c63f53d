"""Memory over time as SVG, under a timeline and on its axis: the highest rank, the lowest, the others grey.

Curves of many steps keep the highest value of each of `MOST_STEPS` slices of the time, so that peaks stay visible. The
limit is drawn where it is near enough to be in the picture. Leaves out what takes the memory.
"""

from collections.abc import Sequence

from costmodel.printing import unit_of
from planner.report.html.elements import Markup, joined, tag
from planner.report.html.gantt import chart, shown
from planner.report.html.scale import TimeScale, round_values
from planner.report.summary.text import size
from simulator.charts.measures import FAR
from simulator.charts.rows import DrawnRow
from simulator.timeline import Timeline

HEIGHT, LEVELS = 150, 10_000
MOST_STEPS = 400


def top_bytes(peaks: Sequence[int], limits: Sequence[int | None]) -> int:
    """Return the top of the common axis of memory."""
    peak = max(peaks, default=1)
    return max(1, peak, *(limit for limit in limits if limit and limit <= FAR * peak))


def memory(
    timeline: Timeline, rows: Sequence[DrawnRow], scale: TimeScale, top: int, limit: int | None, name: str
) -> Markup:
    """Return the curves of the rows, the limit among them."""
    peaks = timeline.peak_memory_bytes
    kept = shown(rows, sum(min(MOST_STEPS, len(timeline.memory[row.lead])) for row in rows))
    highest = max(kept, key=lambda row: peaks[row.lead])
    lowest = min(kept, key=lambda row: peaks[row.lead])
    level = 1.04 * top
    curves = []
    for row in sorted(kept, key=lambda row: (row is highest, row is lowest)):
        role = "high" if row is highest else "low" if row is lowest else "mid"
        path = _path(_steps(timeline.memory[row.lead], scale), scale.end, level)
        curves.append(tag("path", class_=role, d=path, data_row=row.name))
    drawn = limit is not None and limit <= top
    if drawn:
        at = round(LEVELS * (1 - (limit or 0) / level))
        curves.append(tag("path", class_="limit", d=f"M0 {at}H{scale.end}"))
    unit, whole = unit_of(top)
    names = [_label(f"{value:g} {unit}", value * whole / level) for value in round_values(0, top / whole)]
    picture = chart("memory", names, [tag("g", *curves, transform=f"scale(1 {HEIGHT / LEVELS})")], HEIGHT, scale,
                    f"memory over time: {name}", data_level=round(level), data_levels=LEVELS)  # fmt: skip
    return joined(_head(limit, drawn, highest, lowest, peaks), picture)


def _head(limit: int | None, drawn: bool, highest: DrawnRow, lowest: DrawnRow, peaks: Sequence[int]) -> Markup:
    """Return the line above: which curve is which."""
    parts = [tag("span", f"{highest.name} {size(peaks[highest.lead])}", class_="line high")]
    if lowest is not highest:
        parts.append(tag("span", f"{lowest.name} {size(peaks[lowest.lead])}", class_="line low"))
    if drawn:
        parts.append(tag("span", f"limit {size(limit or 0)}", class_="line limit"))
    elif limit:
        parts.append(tag("span", f"limit {size(limit)}, far above"))
    return tag("p", tag("b", "Memory"), *parts, class_="keys")


def _steps(points: Sequence[tuple[int, int]], scale: TimeScale) -> list[tuple[int, int]]:
    """Return (tick, bytes) of a curve, one value a tick, or the highest of each slice."""
    width = max(1, scale.end // MOST_STEPS) if len(points) > MOST_STEPS else 1
    most: dict[int, int] = {}
    last: dict[int, int] = {}
    held = 0
    for time_ns, size_bytes in points:
        slot = scale.at(time_ns) // width * width
        before = most.get(slot, held) if width > 1 else 0
        most[slot], last[slot], held = max(before, size_bytes), size_bytes, size_bytes
    if width == 1:
        return list(last.items())
    behind = {slot + width: size_bytes for slot, size_bytes in last.items() if slot + width not in most}
    return sorted((most | behind).items())


def _path(steps: Sequence[tuple[int, int]], end: int, level: float) -> str:
    heights = [(tick, round(LEVELS * (1 - size_bytes / level))) for tick, size_bytes in steps]
    now, height = heights[0]
    parts = [f"M{now} {height}"]
    for tick, to in heights[1:]:
        if to != height:
            parts.append(f"h{tick - now}v{to - height}")
            now, height = tick, to
    return f"{''.join(parts)}H{end}"


def _label(text: str, share: float) -> Markup:
    y = round(HEIGHT * (1 - share), 1)
    return tag("text", text, x="100%", dx=-6, y=max(6, min(HEIGHT - 6, y)), text_anchor="end")
