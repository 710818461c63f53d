"""The answer of ``penstock simulate``: figures of a timeline as JSON and as people read them, its trace and its chart.

Leaves out where the timeline comes from (`planner.commands.simulate`).
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.commands.answer import Answer
from planner.report.summary.text import Table, duration, percent

if TYPE_CHECKING:
    from costmodel.stages.costs import Costs
    from simulator.bounds import Bound
    from simulator.bubbles import BubbleCauses
    from simulator.schedule import Schedule
    from simulator.timeline import Timeline

MOST_SHOWN = 64
"""Ranks up to which people see the memory of each."""


def timeline_answer(
    args: argparse.Namespace,
    schedule: "Schedule",
    costs: "Costs",
    timeline: "Timeline",
    limit: int | None,
    extra: Mapping[str, object],
    share_bytes: int = 0,
    speeds: Sequence[float] = (),
    blocks: Sequence[Sequence[int]] = (),
    proved_ns: int = 0,
    replicas: int = 1,
) -> Answer:
    """Answer for a timeline, each rank of which represents those that do the same (`blocks`; else itself)."""
    from simulator.bounds import bound_of
    from simulator.bubbles import bubble_causes

    causes = bubble_causes(schedule, costs, timeline)
    bound = bound_of(schedule, costs, limit, speeds)
    if proved_ns > bound.ns:
        bound = replace(bound, ns=proved_ns, scope=f"{bound.scope}, each stage's micro-batches in turn")
    if share_bytes and limit is not None:  # which no bytes are behind
        shares = f"within {limit / share_bytes:g} activation shares a rank"
        bound = replace(bound, scope=bound.scope.replace(f"within {limit} bytes a rank", shares))
    body: dict[str, object] = {
        "schedule": schedule.name,
        "ranks": timeline.num_ranks,
        "microbatches": schedule.num_microbatches * replicas,
        "step_time_ns": timeline.step_time_ns,
        "span_ns": timeline.span_ns,
        "bubble_ratio": timeline.bubble_ratio,
        "bubble_ratio_span": timeline.bubble_ratio_span,
        "bubble_causes": causes.over(list(map(len, blocks))) if blocks else causes.totals,
        "peak_memory_bytes": list(timeline.peak_memory_bytes),
        "lower_bound_ns": bound.ns,
        "gap": timeline.step_time_ns / bound.ns - 1 if bound.ns else None,
        "scope": bound.scope + (f", of one of {replicas} replicas that all do the same" if replicas > 1 else ""),
        "p2p": args.p2p,
        "optimizer_mode": args.optimizer_mode,
        **extra,
    }
    if "search_seconds" in extra:
        body["status"] = "optimal" if timeline.step_time_ns == bound.ns else "bounded"
    _write_trace(args, timeline, share_bytes)
    _write_chart(args, schedule, costs, timeline, limit, causes, share_bytes, blocks)
    return Answer(body, _text(body, timeline, bound))


def _text(body: Mapping[str, object], timeline: "Timeline", bound: "Bound") -> list[str | Table]:
    causes = body["bubble_causes"]
    assert isinstance(causes, dict)  # noqa: S101 - built above
    idle = max(1, sum(causes.values()))
    rows = [(name, duration(ns), percent(ns / idle)) for name, ns in causes.items() if ns]
    shown = body.get("peak_activations") or body["peak_memory_bytes"]
    assert isinstance(shown, list)  # noqa: S101 - built above
    few = (
        ", ".join(map(_figure, shown))
        if len(shown) <= MOST_SHOWN
        else f"{_figure(min(shown))} to {_figure(max(shown))}"
    )
    return [
        f"{body['schedule']}: {body['ranks']} ranks, {body['microbatches']} micro-batches, p2p {body['p2p']}",
        f"step time    {duration(timeline.step_time_ns)}   bubble {percent(timeline.bubble_ratio)}",
        f"span         {duration(timeline.span_ns)}   bubble {percent(timeline.bubble_ratio_span)}",
        f"lower bound  {duration(bound.ns)}   gap {percent(timeline.step_time_ns / max(1, bound.ns) - 1)}",
        f"scope        {bound.scope}",
        f"peak {'activations' if 'peak_activations' in body else 'memory (bytes)'} per rank: {few}",
        Table(("idle because of", "summed over ranks", "share"), rows),
    ]


def _figure(value: float) -> str:
    """Write a share to four digits, bytes whole."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_trace(args: argparse.Namespace, timeline: "Timeline", share_bytes: int) -> None:
    if args.trace:
        from simulator.trace import write_trace

        write_trace(args.trace, replace(timeline, memory=()) if share_bytes else timeline)  # its counter is of bytes


def _write_chart(
    args: argparse.Namespace,
    schedule: "Schedule",
    costs: "Costs",
    timeline: "Timeline",
    limit: int | None,
    causes: "BubbleCauses",
    share_bytes: int,
    blocks: Sequence[Sequence[int]],
) -> None:
    if args.chart:
        from simulator.charts import save_figure, timeline_figure

        figure = timeline_figure(
            timeline, title=schedule.name, limit_bytes=limit, share_bytes=share_bytes, causes=causes.per_rank,
            ranks=blocks, terms=[_terms(costs, schedule.graph.stages_of(rank)) for rank in range(timeline.num_ranks)],
        )  # fmt: skip
        save_figure(figure, args.chart)


def _terms(costs: "Costs", stages: Sequence[int]) -> Counter[str]:
    """Return what the stages of a rank hold all the time, by term."""
    found = Counter[str]()
    for stage in stages:
        found.update(dict(costs.stages[stage].memory_terms))
    return found
