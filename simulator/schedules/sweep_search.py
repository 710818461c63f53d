"""The best of many sweeps: a grid of choices alike for all ranks, then changes at single ranks.

The number of sweeps follows from the size of the pipeline, not from a clock, so that equal input gives
equal orders. Small pipelines are searched until a change at a rank seldom helps, large ones get the grid
and little more. Nothing is proved.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from simulator.schedules.sweep import (
    FILL_BOTH,
    FILL_NEVER,
    FILL_SPAN,
    FILL_STEP,
    SKIP_LATE,
    SKIP_NEVER,
    SKIP_SLACK,
    Choices,
    Result,
    sweep,
)
from simulator.schedules.sweep_pipeline import Pipeline

NUM_ACTIONS, NUM_SWEEPS = 300_000, 400
"""Work of a search: actions placed over all sweeps, and sweeps at most."""


def best_sweep(line: Pipeline, objective: str) -> Result:
    """Return the best orders found.

    Parameters
    ----------
    objective : str
        ``span`` or ``step``: what counts first; the other of the two counts second, peak memory third.
    """
    num_sweeps = min(NUM_SWEEPS, max(8, NUM_ACTIONS // (3 * line.num_places * line.num_actions)))
    best: tuple[tuple[int, int, int], Choices, Result] | None = None
    rng = random.Random(0)  # noqa: S311 - a fixed sequence is what is wanted
    grid = _grid(line.num_places)
    for _ in range(num_sweeps):
        choices = next(grid, None) or _changed(best[1] if best else None, rng)
        result = sweep(line, choices)
        key = _key(result, objective)
        if best is None or key <= best[0]:
            best = key, choices, result
    return best[2]


def _key(result: Result, objective: str) -> tuple[int, int, int]:
    first, second = result.span_ns, result.step_time_ns
    if objective == "step":
        first, second = second, first
    return first, second, result.peak_bytes


def _grid(num_places: int) -> Iterator[Choices]:
    for overshoot, staggered in ((0, True), (0, False), (100, False), (50, False), (100, True)):
        for fill in (FILL_BOTH, FILL_SPAN):
            for skip in (SKIP_NEVER, SKIP_LATE, SKIP_SLACK):
                yield Choices((overshoot,) * num_places, (fill,) * num_places, (skip,) * num_places, staggered)


def _changed(choices: Choices, rng: random.Random) -> Choices:
    """Change what one to three places do."""
    num_places = len(choices.fill)
    overshoot, fill, skip = list(choices.overshoot), list(choices.fill), list(choices.skip)
    for _ in range(rng.randint(1, min(3, num_places))):
        place = rng.randrange(num_places)
        which = rng.randrange(3)
        if which == 0:
            overshoot[place] = rng.choice((0, 50, 100))
        elif which == 1:
            fill[place] = rng.choice((FILL_NEVER, FILL_SPAN, FILL_STEP, FILL_BOTH))
        else:
            skip[place] = rng.choice((SKIP_NEVER, SKIP_LATE, SKIP_SLACK))
    staggered = choices.staggered != (rng.random() < 0.1)
    return replace(choices, overshoot=tuple(overshoot), fill=tuple(fill), skip=tuple(skip), staggered=staggered)
