"""Charts draw what they are given, tell kinds apart in grey, and give the same bytes each time."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from costmodel.errors import UsageError
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from simulator.actions import Action, Kind
from simulator.charts import (
    ComparedRow,
    ParetoPoint,
    bubbles,
    comparison,
    gantt,
    memory,
    memory_by_term,
    new_figure,
    not_beaten,
    pareto,
    predicted_and_measured,
    save_figure,
    stage_graph_picture,
    timeline_figure,
)
from simulator.charts.style import FILLS, STYLES
from simulator.engine import simulate
from simulator.schedule import Schedule, StageEdge, StageGraph, stage_graph
from simulator.timeline import Timeline

COSTS = Costs(
    tuple(StageCost(1_000_000, 1_500_000, 500_000, activation_bytes=2**20, optimizer_ns=200_000) for _ in range(2)),
    (EdgeCost(0, 1, 100_000, 16),),
)
DIAMOND = StageGraph(
    ((0,), (1,), (2, 3), (4,)),
    (StageEdge(0, 1), StageEdge(0, 2), StageEdge(1, 3), StageEdge(2, 3), StageEdge(0, 3, gradient=False)),
    (1, 1, 2, 1),
)


@pytest.fixture(name="timeline")
def small_timeline() -> Timeline:
    kinds = (Kind.F, Kind.I, Kind.W)
    orders = tuple(
        (*tuple(Action(kind, stage, k) for k in range(3) for kind in kinds), Action(Kind.OPT, stage))
        for stage in range(2)
    )
    return simulate(Schedule("split", stage_graph(COSTS), 3, orders), COSTS)


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend_of(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def one_axis() -> Axes:
    return new_figure([3.0])[1][0]


def test_every_chart_takes_an_axis_and_returns_it(timeline: Timeline) -> None:
    calls: list[Callable[[Axes], Axes]] = [
        lambda ax: gantt(ax, timeline),
        lambda ax: memory(ax, timeline, limit_bytes=2**22),
        lambda ax: bubbles(ax, {"a": {"warm-up": 3}}),
        lambda ax: comparison(ax, [ComparedRow("a", 10, 0.5, 9, 11)]),
        lambda ax: stage_graph_picture(ax, DIAMOND),
        lambda ax: predicted_and_measured(ax, timeline, timeline),
    ]
    for call in calls:
        ax = one_axis()
        assert call(ax) is ax


def test_gantt_has_a_row_a_rank_a_bar_an_action_and_the_time_in_milliseconds(timeline: Timeline) -> None:
    ax = gantt(one_axis(), timeline, title="split")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_xlim() == (0, max(s.end_ns for s in timeline.spans) / 1e6)
    bars = sum(len(collection.get_paths()) for collection in ax.collections)
    assert bars == sum(s.stream == "compute" for s in timeline.spans) == 20
    assert sorted(texts(ax)) == ["0"] * 6 + ["1"] * 6 + ["2"] * 6  # F, I and W on two ranks; OPT has no micro-batch
    assert legend_of(ax) == ["F forward", "I input gradient", "W weight gradient", "optimizer"]
    assert ax.get_title(loc="left").startswith("split: step ")


def test_numbers_that_do_not_fit_are_left_out(timeline: Timeline) -> None:
    spans = enumerate(timeline.compute_spans[0] * 60)
    crowded = Timeline(1, tuple(replace(span, start_ns=i, end_ns=i + 1) for i, span in spans))
    assert texts(gantt(one_axis(), crowded)) == []


def test_messages_are_not_drawn(timeline: Timeline) -> None:
    assert "send" not in legend_of(gantt(one_axis(), timeline))


def test_kinds_are_told_apart_by_shade_or_hatch_without_colour() -> None:
    def grey(colour: str) -> float:
        red, green, blue = to_rgb(colour)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    looks = {style.name: (grey(style.fill), style.hatch) for style in STYLES.values()}
    rows = list(looks.values())
    for i, (shade, hatch) in enumerate(rows):
        for other, pattern in rows[:i]:
            assert hatch != pattern or abs(shade - other) > 0.08
    assert len({(round(grey(fill), 2), hatch) for fill, hatch in FILLS}) == len(FILLS)


def test_memory_steps_and_limit_are_drawn_in_a_unit_that_fits(timeline: Timeline) -> None:
    ax = memory(one_axis(), timeline, limit_bytes=3 * 2**20)
    assert ax.get_ylabel() == "MiB"
    assert texts(ax) == ["limit 3 MiB"]
    assert legend_of(ax) == ["rank 0", "rank 1"]


def test_memory_is_drawn_in_activation_shares_where_it_is_counted_so() -> None:
    ax = memory(one_axis(), Timeline(1, (), (((0, 0), (1, 6)),)), limit_bytes=8, share_bytes=2)
    assert ax.get_ylabel() == "activation shares"
    assert texts(ax) == ["limit 4 activation shares"]
    assert ax.get_title(loc="left") == "memory: peak 3 activation shares"


def test_a_figure_of_a_timeline_has_a_panel_for_each_thing_known(timeline: Timeline) -> None:
    titles = [ax.get_title(loc="left") for ax in timeline_figure(timeline, causes=({"warm-up": 5}, {})).axes]
    assert titles[0].startswith("step ")
    assert titles[1:] == ["memory: peak 1 MiB", "idle time by cause"]
    assert len(timeline_figure(replace(timeline, memory=())).axes) == 1


def test_the_fullest_ranks_memory_is_drawn_by_term_up_to_what_it_holds(timeline: Timeline) -> None:
    held = replace(timeline, memory=tuple(tuple((ns, 2**20 + size) for ns, size in row) for row in timeline.memory))
    fullest = held.peak_memory_bytes.index(max(held.peak_memory_bytes))
    terms: list[dict[str, int]] = [{}, {}]
    terms[fullest] = {"parameters": 2**18, "gradients": 0, "master_weights": 3 * 2**18}
    axes = timeline_figure(held, terms=terms).axes
    assert axes[2].get_title(loc="left") == f"memory of rank {fullest} by term"
    assert legend_of(axes[2]) == ["activations and messages", "master weights", "parameters"]
    tops = [layer.get_paths()[0].get_extents().y1 for layer in axes[2].collections]
    assert tops == pytest.approx([0.25, 1.0, max(held.peak_memory_bytes) / 2**20])


def test_the_smallest_of_many_terms_are_drawn_as_one(timeline: Timeline) -> None:
    ax = memory_by_term(one_axis(), timeline, 0, {f"term{i}": 100 - i for i in range(12)})
    assert len(legend_of(ax)) == len(FILLS)
    assert legend_of(ax)[1] == "other"


def test_of_many_ranks_the_highest_and_lowest_stand_out() -> None:
    rows = tuple(((0, 5), (10, 5 + rank)) for rank in range(9))
    ax = memory(one_axis(), Timeline(9, (), rows))
    assert legend_of(ax) == ["rank 0 (lowest peak)", "the other 7 ranks", "rank 8 (highest peak)"]


def test_small_causes_are_drawn_as_one_when_there_are_too_many() -> None:
    causes = {f"waiting for stage {i}": 20 - i for i in range(12)}
    ax = bubbles(one_axis(), {"plan": causes})
    assert len(legend_of(ax)) == len(FILLS)
    assert legend_of(ax)[-1] == "5 smaller causes"
    widths = [patch.get_width() for patch in ax.patches]
    assert sum(widths) == pytest.approx(sum(causes.values()) / 1e6)


def test_comparison_names_step_time_and_bubble_of_each_row() -> None:
    rows = [ComparedRow("graph", 12_500_000, 0.25, 11_000_000), ComparedRow("chain", 20_000_000, 0.5)]
    ax = comparison(one_axis(), rows)
    assert texts(ax) == ["12.5 ms, bubble 25.0%", "20 ms, bubble 50.0%"]
    assert legend_of(ax) == ["busy (mean over ranks)", "idle (bubble)", "lower bound"]


def test_stage_graph_shows_stages_ranks_multiples_and_captions() -> None:
    ax = stage_graph_picture(one_axis(), DIAMOND, captions=["a", "b", "c", "d"], edge_labels={(0, 1): "2 MiB"})
    shown = texts(ax)
    assert [t for t in shown if t.startswith("stage")] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert {"ranks 2-3", "2 at once", "rank 4", "2 MiB", "a", "d"} <= set(shown)
    boxes = [patch for patch in ax.patches if patch.get_facecolor()[:3] == pytest.approx(to_rgb("#cfe3f5"))]
    assert len(boxes) == 4


def test_stages_that_may_run_at_once_stand_above_each_other() -> None:
    ax = stage_graph_picture(one_axis(), DIAMOND)
    places = {text.get_text(): text.xy for text in ax.texts if text.get_text().startswith("stage")}  # type: ignore[attr-defined]
    assert places["stage 1"][0] == places["stage 2"][0]
    assert places["stage 1"][1] != places["stage 2"][1]
    assert places["stage 0"][0] < places["stage 1"][0] < places["stage 3"][0]


def test_predicted_and_measured_stand_on_one_axis_with_the_error(timeline: Timeline) -> None:
    slower = Timeline(2, tuple(replace(s, start_ns=2 * s.start_ns, end_ns=2 * s.end_ns) for s in timeline.spans))
    ax = predicted_and_measured(one_axis(), timeline, slower)
    assert ax.get_title(loc="left").endswith("(-50.0%)")
    assert ax.get_xlim()[1] == pytest.approx(max(s.end_ns for s in slower.spans) / 1e6)
    assert texts(ax).count("measured ") == 2


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_content_gives_the_same_bytes(timeline: Timeline, tmp_path: Path, suffix: str) -> None:
    def figure() -> Figure:
        return timeline_figure(timeline, "split", 2**22)

    for name in ("a", "b"):
        save_figure(figure(), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf"):
        save_figure(new_figure([1.0])[0], tmp_path / "a.bmp")


def test_no_pyplot_state_is_left_behind(timeline: Timeline) -> None:
    timeline_figure(timeline)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_name_with_dollars_is_no_formula(timeline: Timeline, tmp_path: Path) -> None:
    figure = timeline_figure(timeline, "we$ird\\foo$")
    save_figure(figure, tmp_path / "chart.svg")
    assert figure.axes[0].get_title(loc="left").startswith("we$ird\\foo$")


def test_a_limit_far_above_memory_is_said_and_a_near_one_drawn(timeline: Timeline) -> None:
    far, near = memory(one_axis(), timeline, limit_bytes=2**40), memory(one_axis(), timeline, limit_bytes=2**22)
    assert (texts(far), texts(near)) == ([], ["limit 4 MiB"])
    assert "far below the limit of 1 TiB" in far.get_title(loc="left")


POINTS = [
    ParetoPoint(10, 50, "quick", 1),
    ParetoPoint(10, 60, "as quick and larger"),
    ParetoPoint(20, 30, "lean", 2),
    ParetoPoint(30, 40, "beaten"),
    ParetoPoint(5, 10, "does not fit", fits=False),
]


def test_what_fits_and_nothing_beats_in_time_and_memory_is_joined() -> None:
    assert [point.text for point in not_beaten(POINTS)] == ["quick", "lean"]
    ax = pareto(one_axis(), POINTS, limit_bytes=100)
    assert texts(ax) == ["1", "quick", "2", "lean", "limit 100 bytes"]
    assert list(ax.lines[0].get_xdata()) == [10e-6, 20e-6]
    assert len(pareto(one_axis(), POINTS, stairs=False).lines[0].get_xdata()) == 0
