"""The page of penstock compare: complete, small, the same bytes, names escaped; in a browser if there is one."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from costmodel.printing import printable
from costmodel.stages.costs import Costs, EdgeCost, StageCost
from planner.commands import main
from planner.plan import Batch, Plan, PlanEdge, PlanStage, Prediction, SearchResult, write_plan
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.html.page import write_page
from planner.report.html.scale import TimeScale, in_runs, round_values, strokes
from simulator.engine import simulate
from simulator.lowering import lower
from simulator.schedules import build_schedule
from simulator.timeline import write_timeline
from tests.support.chromium import Browser, browser, why_none
from tests.support.measured_by_hand import measured_by_hand
from tests.support.small_plan import CLUSTER, PLAN

MOST_BYTES = 2 * 2**20
NASTY = "</script><script>alert(1)</script>\"'&\x1b[31m\u202e"


def chain(num_ranks: int, num_microbatches: int, replicas: int = 1) -> Plan:
    """1F1B on a chain of stages that differ a little, each on `replicas` ranks."""
    cost = StageCost(9_000_000, 10_000_000, 9_000_000, activation_bytes=2**20, static_bytes=2**28)
    stages = tuple(replace(cost, forward_ns=9_000_000 + 1_000 * k) for k in range(num_ranks))
    edges = tuple(EdgeCost(k, k + 1, 200_000, 2**16) for k in range(num_ranks - 1))
    ranks = tuple(tuple(range(k * replicas, (k + 1) * replicas)) for k in range(num_ranks))
    costs = Costs(stages, edges, ranks)
    schedule = build_schedule("1f1b", costs, num_microbatches)
    timeline = simulate(schedule, costs)
    lowered = lower(schedule, timeline)
    devices = num_ranks * replicas
    peaks = timeline.peak_memory_bytes
    return Plan(
        model_name="chain",
        fingerprint="chain",
        num_operators=num_ranks,
        cluster=replace(
            CLUSTER,
            devices=(replace(CLUSTER.devices[0], memory_bytes=2**29),),
            hosts=(replace(CLUSTER.hosts[0], devices=devices),),
        ),
        batch=Batch(num_microbatches, 1, num_microbatches),
        schedule="1f1b",
        stages=tuple(
            PlanStage((f"layer{k}",), own, stage) for k, (own, stage) in enumerate(zip(ranks, stages, strict=True))
        ),
        edges=tuple(PlanEdge(e.source, e.target, (f"layer{e.source}",), e.size_bytes, e.p2p_ns) for e in edges),
        orders=tuple(tuple(map(str, order)) for order in lowered.orders),
        prediction=Prediction(timeline.step_time_ns, timeline.span_ns, timeline.bubble_ratio, peaks, peaks),
        search=SearchResult("heuristic", timeline.step_time_ns, None, "by hand"),
        runs_on=(),
    )


def page_of(path: Path, **plans: Plan) -> str:
    write_page(path, Comparison(tuple(ComparedPlan(name, plan) for name, plan in plans.items())))
    return path.read_text()


class Page(HTMLParser):
    """Elements with their attributes, and all text outside the script and the style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.text.append(data)


def test_64_ranks_by_256_microbatches_are_less_than_two_mebibytes_with_every_bar_in_them(tmp_path: Path) -> None:
    text = page_of(tmp_path / "page.html", large=chain(64, 256))
    assert len(text.encode()) < MOST_BYTES
    rows = [attributes for name, attributes in Page(text).elements if name == "g" and "data-row" in attributes]
    assert [row["data-row"] for row in rows] == [f"rank {k}" for k in range(64)]
    paths = [attributes for name, attributes in Page(text).elements if "data-action" in attributes]
    assert sum(path["d"].count("h") for path in paths) == 2 * 64 * 256
    assert paths[0]["data-action"] == "0F"
    assert paths[0]["data-microbatches"] == "0:1:256"


def test_ranks_that_are_alike_share_a_row(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path / "page.html", replicas=chain(4, 64, replicas=16)))
    rows = [attributes["data-row"] for name, attributes in page.elements if name == "g" and "data-row" in attributes]
    assert len(rows) < 4 * 16
    assert rows[0].startswith("ranks 0-")


def test_rows_are_left_out_evenly_where_all_would_be_too_many_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.report.html.gantt.MOST_BARS", 100)
    page = Page(page_of(tmp_path / "page.html", large=chain(8, 24)))  # 384 bars
    rows = [attributes["data-row"] for name, attributes in page.elements if name == "g" and "data-row" in attributes]
    assert rows == ["rank 0", "rank 4"]
    assert "2 of 8 rows are drawn, evenly chosen" in page.text


def test_a_page_asks_for_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    text = page_of(tmp_path / "page.html", first=PLAN, second=PLAN)
    page = Page(text)
    names = [name for name, _ in page.elements]
    assert {"table", "svg", "style", "script", "details"} <= set(names)
    assert names.count("script") == 1
    assert not set(names) & {"link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
    asking = {"src", "href", "xlink:href", "action", "data", "srcset"}
    assert not [attributes for _, attributes in page.elements if asking & set(attributes)]
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert set(re.findall(r"\w+://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", text)


def test_names_from_files_are_text_on_the_page_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = tuple(replace(stage, name=NASTY) for stage in PLAN.stages)
    search = replace(PLAN.search, scope=NASTY)
    plan = replace(PLAN, model_name=NASTY, stages=stages, search=search, schedule=NASTY)
    text = page_of(tmp_path / "page.html", **{NASTY: plan, "other": PLAN})
    page, plain = Page(text), Page(page_of(tmp_path / "plain.html", name=PLAN, other=PLAN))
    assert [name for name, _ in page.elements if name == "script"] == ["script"]
    assert len(page.elements) == len(plain.elements)
    shown = printable(NASTY)
    assert any(shown in part for part in page.text)
    assert any(shown in attributes.get("data-tip", "") for _, attributes in page.elements)
    assert not [letter for letter in text if letter != "\n" and letter in printable_breakers()]
    write_plan(tmp_path / "plan.json", plan)
    assert main(["compare", str(tmp_path / "plan.json")]) == 0
    said = capsys.readouterr()
    assert not set(said.out + said.err) & printable_breakers()
    assert "\\x1b[31m" in said.out


def printable_breakers() -> set[str]:
    """Characters that must reach nobody."""
    return {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E)} - {"\n"}


def test_markup_of_the_terminal_is_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = replace(PLAN, schedule="[red]1f1b[/nothing] :smile:")
    write_plan(tmp_path / "plan.json", plan)
    assert main(["compare", str(tmp_path / "plan.json")]) == 0
    assert "[red]1f1b[/nothing] :smile:" in capsys.readouterr().out


def test_the_same_plans_give_the_same_bytes(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    write_timeline(tmp_path / "measured.json", measured_by_hand(PLAN))
    words = ["compare", str(tmp_path / "plan.json"), "--measured", str(tmp_path / "measured.json"), "--html"]
    for name in "ab":
        assert main([*words, str(tmp_path / f"{name}.html")]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert "Measured" in (tmp_path / "a.html").read_text()


def test_paths_and_runs_say_what_they_stand_for() -> None:
    assert strokes([(0, 3), (3, 5), (9, 10)]) == "m0 0h3m0 0h2m4 0h1"
    assert in_runs([0, 1, 2, 3]) == "0:1:4"
    assert in_runs([0, 16, 32, 5]) == "0:16:3 5"
    assert in_runs([7]) == "7"
    assert [TimeScale(end).tick_ns for end in (124, 10**6, 10**6 + 1, 5_165_628_000)] == [1, 1, 10, 10_000]
    assert TimeScale(5_165_628_000).at(5_165_628_000) == 516_562
    assert round_values(0, 79.6) == [0, 20, 40, 60]
    assert round_values(5.2, 6.4) == [5.5, 6.0]


@pytest.fixture(name="chromium", scope="module")
def running_chromium() -> Iterator[Browser]:
    why = why_none()
    if why:
        pytest.skip(f"the page is not looked at in a browser: {why}")
    with browser() as found:
        yield found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_asks_for_nothing_complains_of_nothing_and_need_not_scroll_sideways(
    chromium: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    path = tmp_path / "page.html"
    page_of(path, first=PLAN, **{"name" * 30: chain(16, 40)})
    chromium.requests()
    chromium.log("browser")
    chromium.open(path, width, dark=dark)
    assert chromium.requests() == [path.as_uri()]
    assert chromium.log("browser") == []
    assert chromium.run("return document.documentElement.scrollWidth") <= width
    ground = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")


TIP = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"
PLACE = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x, box.y, box.width]"
VIEW = "return document.querySelector('.gantt .bars').getAttribute('viewBox')"
SETTLED = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


def test_bars_are_read_and_zoomed_by_button_and_wheel_and_moved(chromium: Browser, tmp_path: Path) -> None:
    page_of(tmp_path / "page.html", plan=PLAN)
    chromium.open(tmp_path / "page.html", 1280, 2400)
    x, y, width = chromium.run(PLACE, ".gantt")
    tick = width / 124  # the step takes 124 ns
    chromium.mouse("mouseMoved", x + 5 * tick, y + 10)
    assert chromium.run(TIP).splitlines() == ["0F0: F forward, 0.000010 ms", "rank 0", "0.000000 ms to 0.000010 ms"]
    chromium.mouse("mouseMoved", x + 50 * tick, y + 10)
    assert chromium.run(TIP).startswith("idle, 0.000054 ms\nrank 0")
    chromium.mouse("mouseMoved", x + 5 * tick, y - 200)
    assert chromium.run(TIP) == ""
    memory_x, memory_y, _ = chromium.run(PLACE, ".memory")
    chromium.mouse("mouseMoved", memory_x + 80.5 * tick, memory_y + 10)  # rank 0 holds 25 bytes from 73 to 94
    assert chromium.run(TIP).splitlines() == ["25 bytes", "rank 0", "0.000080 ms"]
    assert chromium.run(VIEW).split()[::2] == ["0", "124"]
    chromium.run("document.querySelector('button[data-do=in]').click(); " + SETTLED)
    assert chromium.run(VIEW).split()[::2] == ["31", "62"]
    chromium.mouse("mouseWheel", x, y + 10, deltaX=0, deltaY=400, modifiers=2)
    chromium.run(SETTLED)
    assert chromium.run(VIEW).split()[::2] == ["0", "124"]
    chromium.mouse("mouseWheel", x, y + 10, deltaX=0, deltaY=-173, modifiers=2)  # half of it: exp(-173 / 250)
    chromium.run(SETTLED)
    start, shown = map(float, chromium.run(VIEW).split()[::2])
    assert (start, shown) == pytest.approx((0, 62), abs=0.1)
    for kind, at in (("mousePressed", 0.75), ("mouseMoved", 0.25), ("mouseReleased", 0.25)):
        chromium.mouse(kind, x + at * width, y + 10, button="left", buttons=1, clickCount=1)
    chromium.run(SETTLED)
    assert float(chromium.run(VIEW).split()[0]) == pytest.approx(31, abs=0.1)
    chromium.run("document.querySelector('button[data-do=all]').click(); " + SETTLED)
    assert chromium.run(VIEW).split()[::2] == ["0", "124"]


def test_a_finger_reads_two_zoom_and_one_moves(chromium: Browser, tmp_path: Path) -> None:
    def touch(kind: str, *places: float) -> None:
        points = [{"x": x + place * width, "y": y + 10, "id": number} for number, place in enumerate(places)]
        chromium.devtools("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    page_of(tmp_path / "page.html", plan=PLAN)
    chromium.open(tmp_path / "page.html", 390, 2400)
    x, y, width = chromium.run(PLACE, ".gantt")
    touch("touchStart", 0.05)
    touch("touchEnd")
    assert chromium.run(TIP).startswith("0F0: F forward")
    touch("touchStart", 0.4, 0.6)
    touch("touchMove", 0.3, 0.7)
    touch("touchMove", 0.2, 0.8)
    touch("touchEnd")
    chromium.run(SETTLED)
    start, shown = map(float, chromium.run(VIEW).split()[::2])
    assert 0 < start < 62
    assert shown == pytest.approx(124 / 3, rel=0.2)
    touch("touchStart", 0.5)
    touch("touchMove", 0.3)
    touch("touchMove", 0.1)
    touch("touchEnd")
    chromium.run(SETTLED)
    assert float(chromium.run(VIEW).split()[0]) > start + 5
