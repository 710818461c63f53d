"""How charts look: shades and hatches that stay apart in greyscale, units, figures and files.

Every kind of action and every cause of idle time has a shade and a hatch of its own, so that a page
printed in grey can be read. Figures are made without pyplot's global state; the same content gives the
same bytes. Leaves out what is drawn.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.text import Text

from costmodel.errors import UsageError
from costmodel.outputs import place
from simulator.actions import Kind

FONT_SIZE = 8.0
EDGE = "#333333"
AXIS_SHARE = 0.78
"""Part of a figure's width that its axis takes next to a legend, about."""
HATCH_LINE_WIDTH = 0.6
FORMATS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Suffixes that can be written, each with the metadata that would change from run to run."""


@dataclass(frozen=True, slots=True)
class Style:
    """Fill, hatch, colour of text on it, and what the legend calls it."""

    fill: str
    hatch: str
    text: str
    name: str

    def patch(self) -> Patch:
        """Return the legend's sample."""
        return swatch(self.name, self.fill, self.hatch)


STYLES = {
    Kind.F: Style("#cfe3f5", "", "black", "F forward"),
    Kind.B: Style("#3f7fb5", "", "white", "B backward"),
    Kind.I: Style("#6fa8d6", "", "black", "I input gradient"),
    Kind.W: Style("#f2c98b", "////", "black", "W weight gradient"),
    Kind.R: Style("#e8eef3", "....", "black", "R recompute"),
    Kind.REDUCE: Style("#ffffff", "xxxx", "black", "gradient reduction"),
    Kind.OPT: Style("#2b2b2b", "", "white", "optimizer"),
    Kind.OFFLOAD: Style("#8f7ab8", "", "white", "to the host"),
    Kind.RELOAD: Style("#d9cdec", "....", "black", "back from the host"),
    Kind.SEND_F: Style("#9a9a9a", "||||", "black", "send"),
    Kind.SEND_B: Style("#9a9a9a", "||||", "black", "send"),
    Kind.RECV_F: Style("#dcdcdc", "\\\\\\\\", "black", "receive"),
    Kind.RECV_B: Style("#dcdcdc", "\\\\\\\\", "black", "receive"),
}
"""Styles of the kinds that are on a timeline."""

OTHER = Style("#c6b7dd", "++", "black", "other")

FILLS = (("#2b2b2b", ""), ("#d9d9d9", ""), ("#8fb8de", "////"), ("#7f7f7f", ""), ("#f2c98b", "...."),
         ("#ffffff", "xxxx"), ("#4f86b8", "\\\\\\\\"), ("#efefef", "++"))  # fmt: skip
"""Fill and hatch of the parts of a stacked bar, in order."""

LINES = ("-", "--", "-.", ":")
"""Line styles of curves, by turns; with `shade` they tell ranks apart in grey."""


def style_of(kind: Kind) -> Style:
    """Return the style of a kind of action."""
    return STYLES.get(kind, OTHER)


def styles_of(kinds: Iterable[Kind]) -> list[Style]:
    """Return the styles of the kinds that are there, each once."""
    present = set(kinds)
    found = {style.name: style for kind, style in STYLES.items() if kind in present}
    return [*found.values(), *([OTHER] if present - set(STYLES) else [])]


def darker(colour: str, share: float) -> str:
    """Return a colour blended with black."""
    red, green, blue = to_rgb(colour)
    return to_hex((red * (1 - share), green * (1 - share), blue * (1 - share)))


def shade(index: int, count: int) -> str:
    """Return the colour of the `index`-th of `count` curves, dark to middle grey-blue."""
    part = index / max(1, count - 1)
    return to_hex((0.05 + 0.50 * part, 0.10 + 0.52 * part, 0.25 + 0.50 * part))


def new_figure(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels one below the other.

    Parameters
    ----------
    heights : sequence of float
        Height of each panel in inches.
    """
    figure = Figure(figsize=(10.0, sum(heights)), dpi=130, layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=list(heights))
    return figure, [row[0] for row in axes]


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF by its suffix; the same figure gives the same bytes.

    Raises
    ------
    UsageError
        On another suffix.
    """
    place(path, _content(figure, check_suffix(path)))


def check_suffix(path: str | Path) -> str:
    """Return the suffix of a chart's file; a command that takes long asks before it begins.

    Raises
    ------
    UsageError
        On one that is not written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(f"{path}: a chart is written as {', '.join(FORMATS)}; choose one of these suffixes")
    return suffix


def _content(figure: Figure, suffix: str) -> bytes:
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)  # a name with dollars is no formula
    _settle(figure)
    buffer = io.BytesIO()
    look: dict[Any, Any] = {"svg.hashsalt": "penstock", "hatch.linewidth": HATCH_LINE_WIDTH}
    with mpl.rc_context(look):
        figure.savefig(buffer, format=suffix[1:], metadata=FORMATS[suffix])
    return buffer.getvalue()


def _settle(figure: Figure) -> None:
    """Lay the panels out once and round where they lie: the solver's last bits change from one time to the next."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")
        for ax in figure.axes:
            left, bottom, width, height = (round(part, 5) for part in ax.get_position().bounds)
            ax.set_position((left, bottom, width, height))


def frame(ax: Axes, x_label: str, y_label: str = "", title: str = "") -> Axes:
    """Write labels and title in the charts' letters, and leave out the frame's upper and right side."""
    ax.set_xlabel(x_label, fontsize=FONT_SIZE)
    ax.set_ylabel(y_label, fontsize=FONT_SIZE)
    ax.set_title(title, fontsize=FONT_SIZE + 1, loc="left")
    ax.tick_params(labelsize=FONT_SIZE)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def time_axis(ax: Axes, end_ns: int, y_label: str = "", title: str = "") -> None:
    """Make the horizontal axis one of milliseconds from 0 to `end_ns` (drawn values are ms)."""
    ax.set_xlim(0, max(end_ns, 1) / 1e6)
    frame(ax, "time (ms)", y_label, title)


def legend_beside(ax: Axes, handles: Sequence[Any] | None = None, title: str | None = None) -> None:
    """Put the legend to the right of the data, of all that has a label where none is given."""
    ax.legend(
        handles=ax.get_legend_handles_labels()[0] if handles is None else handles, title=title, loc="upper left",
        bbox_to_anchor=(1.005, 1.0), borderaxespad=0, fontsize=FONT_SIZE, title_fontsize=FONT_SIZE, frameon=False,
        handlelength=2.2, handleheight=1.3,
    )  # fmt: skip


def swatch(label: str, fill: str, hatch: str = "") -> Patch:
    """Return a legend's sample of a filled area."""
    return Patch(facecolor=fill, hatch=hatch, edgecolor=EDGE, linewidth=0.5, label=label)


def milliseconds(time_ns: float) -> str:
    """Return a time for people: three significant digits, at least."""
    value = time_ns / 1e6
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.3g} ms"
