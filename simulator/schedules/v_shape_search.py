"""The best of several V-shaped orders within a memory limit: turns where memory allows them, else blocks.

How many are tried follows from the size of the step, never from a clock, so equal input gives equal orders.
Nothing is proved.
"""

from dataclasses import replace
from itertools import product

from costmodel.errors import NoPlanFits
from simulator.schedules.split_progress import Found
from simulator.schedules.split_stages import SplitStages
from simulator.schedules.v_shape_pattern import Block, blocks, repeated, with_early_forwards
from simulator.schedules.v_shape_timing import Squeeze, squeezed
from simulator.schedules.v_shape_turns import Habits, in_turns

NUM_ACTIONS, LEAST_TRIES = 400_000, 8
"""Actions placed over all tries, within a least number of tries."""
ALLOWED = (100, 75, 90, 50, 25)
"""Per cent of the longest wait so far that every rank may wait in the next try."""
HABITS = sorted(product((True, False), repeat=3), key=lambda habits: (not habits[1], not habits[2], not habits[0]))
SQUEEZES = [Squeeze(early, late) for late in (3, 0, 6, None) for early in (True, False)]
SMALL, MOST_FINALISTS = 2_000, 3
"""Actions up to which several blocks go on to the next round, and how many."""

Trial = tuple[Block, bool, Squeeze]
"""A block, whether forwards of the warm-up move ahead, and a squeeze."""


def best_v_shape(name: str, v_shape: SplitStages, objective: str) -> Found:
    """Return the best orders found.

    Parameters
    ----------
    objective : str
        ``span`` or ``step``: what counts first; the other one counts second.

    Raises
    ------
    NoPlanFits
        When no order fits into memory.
    """
    size = 6 * v_shape.num_ranks * v_shape.num_actions
    tries = max(LEAST_TRIES, NUM_ACTIONS // size)
    found = _turns(v_shape, objective, tries)
    if not found or not _as_much_as_1f1b(v_shape):
        found += _blocks(v_shape, objective)
    if not found:
        raise NoPlanFits(
            f"{name}: no V-shaped order fits into {min(v_shape.room)} bytes of activations; raise the limit"
        )
    return min(found, key=lambda one: one.key(objective))


def _as_much_as_1f1b(v_shape: SplitStages) -> bool:
    p, top = v_shape.num_ranks, v_shape.num_stages - 1
    size = v_shape.activation
    return all(room >= p * (size[r][0] + size[top - r][0]) for r, room in enumerate(v_shape.room))


def _turns(v_shape: SplitStages, objective: str, tries: int) -> list[Found]:
    """Try all habits, then the best two with waits allowed from the start."""
    first = [(one, habits) for habits in HABITS[: max(4, tries // 2)] if (one := in_turns(v_shape, Habits(*habits)))]
    first.sort(key=lambda one: one[0][0].key(objective))
    found = [one[0] for one, _ in first]
    left = tries - len(first)
    for (best, habits), percent in product(first[:2], ALLOWED):
        if left > 0 and (one := in_turns(v_shape, replace(Habits(*habits), allowed_ns=percent * best[1] // 100))):
            found.append(one[0])
        left -= 1
    return found


def _blocks(v_shape: SplitStages, objective: str) -> list[Found]:
    """Try all blocks on the first micro-batches, more ways to squeeze the best of them, and the best at full length."""
    short = v_shape.cut(min(v_shape.num_actions, max(16, v_shape.num_ranks)))
    small = 6 * short.num_ranks * short.num_actions <= SMALL
    count, squeezes = (MOST_FINALISTS, SQUEEZES) if small else (1, SQUEEZES[::2])
    ways = (True, False) if small else (True,)
    plain = [(block, moved, SQUEEZES[0]) for block in blocks(short) for moved in ways]
    starts = _finalists(short, plain, objective, count)
    fine = [
        (block, moved, squeeze)
        for block in dict.fromkeys(start[0] for start in starts)
        for moved in (True, False)
        for squeeze in squeezes
    ]
    trials = (_timed(v_shape, trial) for trial in _finalists(short, fine, objective, count))
    return [found for found in trials if found]


def _finalists(v_shape: SplitStages, trials: list[Trial], objective: str, count: int) -> list[Trial]:
    ranked = [(found.key(objective), index) for index, trial in enumerate(trials) if (found := _timed(v_shape, trial))]
    return [trials[index] for _, index in sorted(ranked)[:count]]


def _timed(v_shape: SplitStages, trial: Trial) -> Found | None:
    block, moved, squeeze = trial
    rows = repeated(v_shape, block)
    return squeezed(v_shape, with_early_forwards(v_shape, rows) if moved else rows, squeeze)
