"""The page: what the plans come to, their timelines and memory on one axis, time against memory, stages, idle ranks.

`page.css` and `page.js` are in this folder and are put into the page, so that it needs no other file and no network.
Leaves out how each picture is drawn.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from costmodel.files import write_text
from planner.plan.replay import depth
from planner.report.comparison.compared import ComparedPlan
from planner.report.comparison.comparison import Comparison
from planner.report.html import bars
from planner.report.html.elements import Markup, joined, table, tag
from planner.report.html.headings import counted, heading, step_told
from planner.report.html.pareto import pareto
from planner.report.html.stages import stages
from planner.report.html.timelines import timelines
from planner.report.summary.text import Table, duration, size
from simulator.charts.measures import time_called
from simulator.charts.rows import rows_of

TITLE = "Plans side by side"
MOST_OPEN = 16
"""Rows up to which the idle time of each is open at once."""


def write_page(path: str | Path, comparison: Comparison) -> None:
    """Write the page of a comparison."""
    plans, time = comparison.plans, time_called(comparison.by_sample)
    first, *others = comparison.text()
    tables = [part for part in (first, *others) if isinstance(part, Table)]
    body = tag(
        "main",
        tag("h1", TITLE),
        _summary(comparison),
        *(tag("p", part, class_="warning") for part in (first, *others) if isinstance(part, str)),
        tag("section", table(tables[0]), *_marked(comparison)),
        _steps(plans),
        tag("section", tag("h2", f"{time.capitalize()} and memory"), pareto(plans, comparison.comparable, time)),
        timelines(plans),
        _parts(plans),
        tag("section", tag("h2", "All figures"), *map(table, tables[1:])),
    )
    write_text(path, _document(joined(bars.patterns(), body)))


def _document(body: Markup) -> str:
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>
{style}</style>
</head>
<body>
{body}
<div id="tip" role="status" hidden></div>
<script>
{script}</script>
</body>
</html>
"""


def _summary(comparison: Comparison) -> Markup:
    """Say what is compared and which plan is quickest, and which needs least memory."""
    first, plans = comparison.plans[0].plan, comparison.plans
    question = f"{first.model_name}, {first.batch.global_size} samples a step"
    if len(plans) == 1:
        return tag("p", question, class_="lead")
    quick = min(plans, key=lambda each: each.predicted.step_time_ns / each.samples)
    lean = min(plans, key=lambda each: max(each.plan.prediction.peak_memory_bytes))
    if not comparison.comparable:
        return tag("p", f"{question}, and others whose times do not compare with it", class_="lead")
    time, room = duration(quick.predicted.step_time_ns), size(max(lean.plan.prediction.peak_memory_bytes))
    if comparison.by_sample:
        question = f"{first.model_name}, unlike batches held against each other by sample"
        time = f"{duration(quick.shared_ns(quick.predicted.step_time_ns))} a sample"
    answer = f"{quick.short} is the quickest, {time}, and needs least memory, {room}"
    if quick is not lean:
        answer = f"{quick.short} is the quickest, {time}; {lean.short} needs least memory, {room}"
    return tag("p", f"{question}. ", tag("b", f"{answer}."), class_="lead")


def _marked(comparison: Comparison) -> list[Markup]:
    if not any(comparison.differing(each) for each in comparison.plans):
        return []
    text = "* answers another question or rests on other assumptions than the first plan (below): the step times do not"
    return [tag("p", f"{text} compare{', those of a sample do' * comparison.comparable}", class_="note")]


def _steps(plans: Sequence[ComparedPlan]) -> Markup:
    longest = max(each.shared_ns(each.longest_ns) for each in plans)
    if any(each.measurement for each in plans):
        longest = round(1.01 * longest)  # room for the ring
    rows = [
        tag("div", heading("p", number, each.short, step_told(each), class_="name"), bars.step_bar(each, longest))
        for number, each in enumerate(plans, 1)
    ]
    causes = {cause for each in plans for cause in bars.merged(each.causes)}
    note = "The step of each plan, mean over its ranks; the upright line is the lower bound"
    note += ", the ring what was measured." if any(each.measurement for each in plans) else "."
    title = tag("h2", "Where the step goes")
    return tag("section", title, bars.legend({bars.WORK, *causes}), *rows, tag("p", note, class_="note"))


def _parts(plans: Sequence[ComparedPlan]) -> Markup:
    """Return each plan's stage graph and the idle time of its ranks."""
    parts = []
    for number, each in enumerate(plans, 1):
        rows = rows_of(each.predicted, each.plan.blocks)
        causes = {cause for row in each.idle.per_rank for cause in bars.merged(row)}
        found = f"{counted(len(each.plan.stages), 'stage')} in depth {depth(each.plan)}"
        idle = joined(bars.legend(causes), bars.idle_by_rank(each, rows))
        rank = tag(
            "details",
            tag("summary", "Idle time by rank, of the whole step"),
            idle,
            open="" if len(rows) <= MOST_OPEN else None,
        )
        parts.append(tag("article", heading("h3", number, each.short, found), stages(each.plan), rank))
    return tag("section", tag("h2", "Stages, and where their ranks idle"), *parts)
