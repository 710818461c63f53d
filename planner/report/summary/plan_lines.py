"""Lines and tables about a plan that several answers share: what it assumes, its stages, its ladder.

Everything is in the plan file. Leaves out what a simulation would say (`planner.report.why.explanation`).
"""

from collections.abc import Sequence
from dataclasses import asdict

from costmodel.stages.config import StageConfig
from costmodel.stages.costs import mean
from planner.plan import Plan
from planner.report.summary.standing import DATASHEET, FITTED, MEASURED, standings
from planner.report.summary.text import Table, duration, money, size

STANDS = {MEASURED: "measured operators", FITTED: "constants fitted on it", DATASHEET: "its data sheet alone"}
MOST_ROWS, COLUMNS = 8, 100
"""Of a ladder that is shown in short."""
LONGEST_NAME = 40
"""Characters of a stage's name up to which it is written whole."""


def assumed(plan: Plan) -> str:
    """Say what the prediction rests on."""
    known = plan.assumptions
    sizes = " + ".join(f"{size:g} {name.replace('_', ' ')}" for name, size in known.bytes_per_parameter if size)
    text = f"{known.links} links, {known.trainer}'s habits, {known.optimizer} in {known.precision or 'the profile'}"
    text += f" ({sizes} bytes a parameter)"
    text += "".join(f", {device} by {STANDS[standing]}" for device, standing in standings(plan).items())
    return f"{text}; estimated: {'; '.join(known.estimated)}" if known.estimated else text


def expected(plan: Plan) -> list[str]:
    """Say between what steps lie that are measured, where the error of such predictions is known."""
    interval = plan.prediction.step_time_interval_ns
    if not interval:
        return []
    low, high = map(duration, interval)
    return [f"measured     between {low} and {high} in four of five jobs: the times are estimates"]


def ladder(plan: Plan, most: int = MOST_ROWS) -> list[str | Table]:
    """Return the best plan of each strategy as a table of `COLUMNS`, or all of it where there is no end to its rows.

    The chosen plan is among the rows, then come those that fit, the fastest first; none where the plan has no ladder.
    """
    if not plan.rungs:
        return []
    if most:
        return _short_ladder(plan, most)
    priced = any(each.cost_per_million_samples is not None for each in plan.rungs)
    rows = [
        (
            each.strategy,
            duration(each.step_time_ns),
            f"{each.samples_per_s:.1f}",
            size(each.peak_memory_bytes),
            each.fits or "-",
            *([money(each.cost_per_million_samples)] if priced else []),
            ", ".join(each.runs_on) or "-",
            each.why,
            each.better_if or "-",
        )
        for each in plan.rungs
    ]
    cost = ("cost of 10^6 samples",) if priced else ()
    columns = ("strategy", "step", "samples/s", "peak memory", "fits", *cost, "runs on", "why", "better with")
    return [Table(columns, rows, "the ladder")]


def _short_ladder(plan: Plan, most: int) -> list[str | Table]:
    by_worth = sorted(
        plan.rungs, key=lambda each: (not each.why.startswith("chosen"), each.over_memory_bytes > 0, each.step_time_ns)
    )
    shown = [each for each in plan.rungs if each in by_worth[:most]]
    rows = [
        (each.strategy, duration(each.step_time_ns), size(each.peak_memory_bytes), each.fits or "-", each.why)
        for each in shown
    ]
    table = Table(("strategy", "step", "peak memory", "fits", "why"), rows, "the ladder", COLUMNS)
    hidden = len(plan.rungs) - len(shown)
    return [
        table,
        *([f"{hidden} more strategies, who runs each and what would change its place: --all"] if hidden else []),
    ]


def stage_table(plan: Plan) -> Table:
    """Return a row for each stage: ranks, degrees, times of one action, memory."""
    rows = [
        (
            str(index),
            ranks_said(stage.ranks),
            degrees(stage.config) or "-",
            f"{mean(stage.cost.forward_ns) / 1e6:.3f}",
            f"{(mean(stage.cost.backward_input_ns) + mean(stage.cost.backward_weight_ns)) / 1e6:.3f}",
            size(max(plan.prediction.peak_memory_bytes[rank] for rank in stage.ranks)),
            f"{_short(stage.name or stage.operators[0])} ({len(stage.operators)})",
        )
        for index, stage in enumerate(plan.stages)
    ]
    return Table(("stage", "ranks", "degrees", "F ms", "B ms", "peak of a rank", "operators"), rows)


def degrees(config: StageConfig) -> str:
    """Write what is configured otherwise than one device alone does."""
    usual = asdict(StageConfig())
    return " ".join(f"{name} {value}" for name, value in asdict(config).items() if value != usual[name])


def ranks_said(ranks: Sequence[int]) -> str:
    """Write ranks, neighbours by their ends."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"...{name[3 - LONGEST_NAME :]}"
