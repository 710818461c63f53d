"""The best of many sweeps: a grid of choices alike for all ranks, then changes at single ranks.

The number of sweeps follows from the size of the pipeline, not from a clock, so that equal input gives
equal orders. Small pipelines are searched until a change at a rank seldom helps, large ones get the grid
and little more. Nothing is proved.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from simulator.schedules.split_progress import Found
from simulator.schedules.split_stages import SplitStages
from simulator.schedules.sweep import (
    FILL_BOTH,
    FILL_NEVER,
    FILL_SPAN,
    FILL_STEP,
    SKIP_LATE,
    SKIP_NEVER,
    SKIP_SLACK,
    Choices,
    sweep,
)

NUM_ACTIONS, LEAST_SWEEPS, MOST_SWEEPS, NUM_FINALISTS = 200_000, 6, 300, 3
"""Work of one search: actions placed over all sweeps within bounds on their number; and what is handed on."""

Ranked = tuple[tuple[int, int, int], Choices, Found]


def best_sweep(line: SplitStages, objective: str, most_sweeps: int = MOST_SWEEPS) -> Found:
    """Return the best orders found.

    Long pipelines are searched twice: on their first 4 p micro-batches, where warm-up, turns and drain
    all show, then at full length starting from the best choices of the first search.

    Parameters
    ----------
    objective : str
        ``span`` or ``step``: what counts first; the other of the two counts second, peak memory third.
    most_sweeps : int
        Of each search.
    """
    short = line.cut(min(line.num_actions, 4 * line.num_stages))
    found = _search(short, objective, [], most_sweeps)
    if short.num_actions < line.num_actions:
        found = _search(line, objective, [choices for _, choices, _ in found[:NUM_FINALISTS]], most_sweeps)
    return found[0][2]


def _search(line: SplitStages, objective: str, seeds: list[Choices], most_sweeps: int) -> list[Ranked]:
    """Try the seeds, the grid, then changes of the best so far; return what was best on the way, best first."""
    num_sweeps = min(most_sweeps, max(LEAST_SWEEPS, NUM_ACTIONS // (3 * line.num_stages * line.num_actions)))
    rng = random.Random(0)  # noqa: S311 - a fixed sequence is what is wanted
    candidates = chain(seeds, _grid(line.num_stages))
    least = _least(line)
    found: list[Ranked] = []
    for _ in range(num_sweeps):
        choices = next(candidates, None) or _changed(found[0][1], rng)
        result = sweep(line, choices)
        key = (*result.key(objective), result.peak_bytes)
        if not found or key <= found[0][0]:
            found.insert(0, (key, choices, result))
        if (result.span_ns, result.step_time_ns) == least:
            break
    return found


def _least(line: SplitStages) -> tuple[int, int]:
    """Return what neither span nor step can be below: no waits after the first forward of any position."""
    work = [line.work_ns(position) for position in range(line.num_stages)]
    starts = [ends[0] - times[0] for ends, times in zip(line.forward_ends, line.time["F"], strict=True)]
    return max(work), max(map(sum, zip(work, starts, strict=True)))


def _grid(num_stages: int) -> Iterator[Choices]:
    for overshoot, staggered in ((0, True), (0, False), (100, False), (50, False), (100, True)):
        for fill in (FILL_BOTH, FILL_SPAN):
            for skip in (SKIP_NEVER, SKIP_LATE, SKIP_SLACK):
                yield Choices((overshoot,) * num_stages, (fill,) * num_stages, (skip,) * num_stages, staggered)


def _changed(choices: Choices, rng: random.Random) -> Choices:
    """Change what one to three positions do."""
    num_stages = len(choices.fill)
    overshoot, fill, skip = list(choices.overshoot), list(choices.fill), list(choices.skip)
    for _ in range(rng.randint(1, min(3, num_stages))):
        position = rng.randrange(num_stages)
        which = rng.randrange(3)
        if which == 0:
            overshoot[position] = rng.choice((0, 50, 100))
        elif which == 1:
            fill[position] = rng.choice((FILL_NEVER, FILL_SPAN, FILL_STEP, FILL_BOTH))
        else:
            skip[position] = rng.choice((SKIP_NEVER, SKIP_LATE, SKIP_SLACK))
    staggered = choices.staggered != (rng.random() < 0.1)
    return replace(choices, overshoot=tuple(overshoot), fill=tuple(fill), skip=tuple(skip), staggered=staggered)
