"""A stage graph as a small SVG: a box a stage, in layers from left to right; what it holds is shown when it is touched.

Boxes keep their size and wide graphs scroll. Leaves out times.
"""

from itertools import pairwise

from costmodel.stages.config import CONFIG
from planner.plan import Plan
from planner.report.html.elements import Markup, tag
from planner.report.summary.text import size
from simulator.charts.rows import called
from simulator.charts.stage_graph import stage_places
from simulator.schedule import stage_graph

MOST_NAMED = 12
"""Layers up to which boxes have room for names."""
WIDE, NARROW = (112, 140, 40, 54), (26, 42, 24, 34)
"""Width of a box, from one to the next, height of a box, from one to the next."""
LETTERS = 17


def stages(plan: Plan) -> Markup:
    """Return the picture."""
    graph = stage_graph(plan.costs())
    place, paths = stage_places(graph)
    layers, tallest = 1 + max(x for x, _ in place.values()), 1 + 2 * max(y for _, y in place.values())
    wide = layers <= MOST_NAMED
    box, pitch, height, rise = WIDE if wide else NARROW
    where = {node: (4 + pitch * x, 4 + rise * ((tallest - 1) / 2 - y)) for node, (x, y) in place.items()}
    edges = []
    for number, edge in enumerate(graph.edges):
        tip = f"stage {edge.source} to {edge.target}\n{size(plan.edges[number].size_bytes)} an action"
        path = _through([where[node] for node in paths[number]], box, height)
        edges.append(tag("path", d=path, class_="edge" if edge.gradient else "edge dashed", data_tip=tip))
    boxes = [_box(plan, stage, where[stage, -1], box, height, named=wide) for stage in range(graph.num_stages)]
    extent = (round(8 + pitch * (layers - 1) + box), round(8 + rise * (tallest - 1) + height))
    picture = tag("svg", *edges, *boxes, width=extent[0], height=extent[1], class_="stages", role="img",
                  aria_label="stage graph")  # fmt: skip
    return tag("div", picture, class_="wide", tabindex=0)


def _through(ends: list[tuple[float, float]], box: int, height: int) -> str:
    """Return a smooth line through the middles of the places that it passes."""
    middle = height / 2
    (x, y), path = ends[0], ""
    path = f"M{x + box:g} {y + middle:g}"
    for (x0, y0), (x1, y1) in pairwise(ends):
        half = (x0 + box + x1) / 2
        path += f"C{half:g} {y0 + middle:g} {half:g} {y1 + middle:g} {x1:g} {y1 + middle:g}"
        path += f"H{x1 + box:g}" if (x1, y1) != ends[-1] else ""
    return path


def _box(plan: Plan, number: int, at: tuple[float, float], width: int, height: int, *, named: bool) -> Markup:
    stage, (x, y) = plan.stages[number], at
    config = {name: value for name, value in CONFIG.write(stage.config).items() if value not in (0, 1, False, "none")}
    said = ", ".join(f"{name} {value}" for name, value in config.items())
    tip = [f"stage {number} on {called(stage.ranks)}", stage.name, f"{len(stage.operators)} operators", said]
    parts = [tag("rect", x=f"{x:g}", y=f"{y:g}", width=width, height=height, rx=5)]
    middle = x + width / 2
    if named:
        title = f"{number}: {called(stage.ranks)}"
        parts.append(tag("text", title, x=f"{middle:g}", y=f"{y + 14:g}", text_anchor="middle", class_="strong"))
        parts.append(tag("text", _short(stage.name), x=f"{middle:g}", y=f"{y + 28:g}", text_anchor="middle"))
    else:
        parts.append(tag("text", str(number), x=f"{middle:g}", y=f"{y + height / 2:g}", text_anchor="middle"))
    kind = "stage" if stage.cost.backward else "stage frozen"
    return tag("g", *parts, class_=kind, data_tip="\n".join(filter(None, tip)))


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"
