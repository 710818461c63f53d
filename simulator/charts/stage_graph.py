"""A picture of the stage graph: stages as boxes in layers from left to right, with their ranks and edges.

A stage's layer is the longest path to it, so stages above each other may run at the same time. Long
edges are led around the boxes between. Leaves out times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from simulator.charts.rows import called
from simulator.charts.style import AXIS_SHARE, EDGE, FONT_SIZE
from simulator.schedule import StageEdge, StageGraph

BOX_WIDTH, BOX_HEIGHT = 0.62, 0.74
LAYER_INCHES = 1.0
LINE_POINTS = 11
SWEEPS = 8
FEWEST_LAYERS = 4
"""A graph of fewer layers leaves room on the right, so that pictures of several compare in depth."""

FEWEST_LETTERS = 9
"""Boxes less wide than this have their stage's number alone."""

Node = tuple[int, int]
"""(stage, -1), or (number of an edge, layer) for the place where a long edge passes a layer."""


@dataclass(frozen=True, slots=True)
class _Layers:
    """Nodes of each layer from top to bottom, and those of each edge from its source to its target."""

    rows: list[list[Node]]
    paths: list[list[Node]]


def stage_graph_height(graph: StageGraph) -> float:
    """Return a good height in inches for the picture."""
    return 0.3 + LAYER_INCHES * max(map(len, _layers(graph).rows))


def stage_graph_picture(
    ax: Axes,
    graph: StageGraph,
    *,
    captions: Sequence[str] = (),
    edge_labels: Mapping[tuple[int, int], str] | None = None,
    title: str = "",
    ranks: Sequence[Sequence[int]] = (),
) -> Axes:
    """Draw a stage graph.

    Parameters
    ----------
    ax : Axes
    graph : StageGraph
    captions : sequence of str
        Text for each stage, under its ranks; lines that are too long lose their beginning.
    edge_labels : mapping of (int, int) to str, optional
        Text on edges, e.g. their bytes.
    title : str
    ranks : sequence of sequence of int
        Ranks of each stage, where the graph's represent several each.
    """
    place, paths = stage_places(graph)
    layers = 1 + max(round(x) for x, _ in place.values())
    ax.set_xlim(*_width(layers))
    for edge, path in zip(graph.edges, paths, strict=True):
        _arrow(ax, edge, [place[node] for node in path], (edge_labels or {}).get((edge.source, edge.target), ""))
    for stage in range(graph.num_stages):
        where = called(ranks[stage] if ranks else graph.ranks[stage])
        _box(ax, place[stage, -1], graph, stage, [where, *captions[stage : stage + 1]])
    tallest = 1 + 2 * max(y for _, y in place.values())
    ax.set_ylim(-tallest / 2, tallest / 2)
    ax.set_axis_off()
    if title:
        ax.set_title(title, fontsize=FONT_SIZE + 1, loc="left")
    return ax


def stage_places(graph: StageGraph) -> tuple[dict[Node, tuple[float, float]], list[list[Node]]]:
    """Return where each node lies, its layer and its height above the middle in boxes, and the nodes of each edge.

    Nodes are (stage, -1), and (number of an edge, layer) where a long edge passes a layer.
    """
    layers = _layers(graph)
    _untangle(layers)
    place = {n: (float(x), (len(row) - 1) / 2 - y) for x, row in enumerate(layers.rows) for y, n in enumerate(row)}
    return place, layers.paths


def _layers(graph: StageGraph) -> _Layers:
    layer = [0] * graph.num_stages
    for stage in graph.order:
        layer[stage] = 1 + max((layer[p] for p in graph.predecessors[stage]), default=-1)
    rows: list[list[Node]] = [[] for _ in range(max(layer) + 1)]
    for stage in range(graph.num_stages):
        rows[layer[stage]].append((stage, -1))
    paths = []
    for number, edge in enumerate(graph.edges):
        passed: list[Node] = [(number, x) for x in range(layer[edge.source] + 1, layer[edge.target])]
        for node in passed:
            rows[node[1]].append(node)
        paths.append([(edge.source, -1), *passed, (edge.target, -1)])
    return _Layers(rows, paths)


def _untangle(layers: _Layers) -> None:
    """Order each layer by the mean height of its neighbours, sweeping forth and back."""
    links = [link for path in layers.paths for link in pairwise(path)]
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        height = {node: y - (len(row) - 1) / 2 for row in layers.rows for y, node in enumerate(row)}
        for row in layers.rows if forth else reversed(layers.rows):
            means = {}
            for node in row:
                near = [a if forth else b for a, b in links if (b if forth else a) == node]
                means[node] = sum(height[other] for other in near) / len(near) if near else height[node]
            row.sort(key=lambda node: (means[node], node))
            height.update({node: y - (len(row) - 1) / 2 for y, node in enumerate(row)})


def _box(ax: Axes, centre: tuple[float, float], graph: StageGraph, stage: int, text: Sequence[str]) -> None:
    x, y = centre
    ax.add_patch(
        FancyBboxPatch(
            (x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2), BOX_WIDTH, BOX_HEIGHT, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor="#cfe3f5" if graph.backward[stage] else "#ececec", edgecolor=EDGE, linewidth=1.0, zorder=3,
        )
    )  # fmt: skip
    most = _letters(ax)
    multiple = graph.multiples[stage]
    at_once = [f"{multiple} at once"] if multiple > 1 else []
    lines = [f"stage {stage}", *"\n".join(text).splitlines(), *at_once]
    if most < FEWEST_LETTERS:
        lines = [str(stage)] if most >= len(str(stage)) else []
    for number, line in enumerate(lines):
        shown = line if len(line) <= most else f"…{line[1 - most :]}"
        ax.annotate(
            shown, (x, y), (0, LINE_POINTS * ((len(lines) - 1) / 2 - number)), textcoords="offset points", ha="center",
            va="center", fontsize=FONT_SIZE - (number > 0), weight="normal" if number else "bold", zorder=4,
        )  # fmt: skip


def _width(num_layers: int) -> tuple[float, float]:
    return -0.55, max(FEWEST_LAYERS, num_layers) - 0.45


def _letters(ax: Axes) -> int:
    """Return about how many letters a box is wide."""
    figure = ax.get_figure(root=True)
    left, right = ax.get_xlim()
    points = 72 * AXIS_SHARE * (figure.get_figwidth() if figure else 10.0) * BOX_WIDTH / (right - left)
    return int(points / (0.55 * FONT_SIZE))


def _arrow(ax: Axes, edge: StageEdge, places: Sequence[tuple[float, float]], label: str) -> None:
    """Draw an edge as a smooth curve through the places where it passes layers; dashed without gradient."""
    points = [(x + side * BOX_WIDTH / 2, y) for x, y in places for side in (-1, 1)][1:-1]
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        vertices += [(middle, y0), (middle, y1), (x1, y1)]
        codes += [Path.CURVE4] * 3
    ax.add_patch(
        FancyArrowPatch(
            path=Path(vertices, codes), arrowstyle="-|>", mutation_scale=9, color=EDGE, linewidth=1.0, zorder=2,
            linestyle="-" if edge.gradient else "--", shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip
    if label and _letters(ax) >= FEWEST_LETTERS:
        (x0, y0), (x1, y1) = points[0], points[1]
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        place = ((x0 + x1) / 2, (y0 + y1) / 2)
        ax.text(*place, label, ha="center", va="center", fontsize=FONT_SIZE - 1.5, bbox=box)
