"""The common axis of time: whole ticks, a round number of nanoseconds each, and the figures along other axes.

A step is at most a million ticks, which paths hold in few letters and browsers draw exactly. Leaves out pixels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

MOST_TICKS = 10**6


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Ticks of `tick_ns`, up to the end of the longest timeline."""

    end_ns: int

    @property
    def tick_ns(self) -> int:
        """Nanoseconds of a tick, a power of ten."""
        tick = 1
        while self.end_ns > MOST_TICKS * tick:
            tick *= 10
        return tick

    @property
    def end(self) -> int:
        """The end in ticks, rounded up."""
        return max(1, -(-self.end_ns // self.tick_ns))

    def at(self, time_ns: int) -> int:
        """Return the tick in which a time lies."""
        return time_ns // self.tick_ns


def round_values(least: float, most: float) -> list[float]:
    """Return about four round values between two."""
    rough = (most - least) / 4 or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
    first, last = -int(-least // step), int(most // step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def strokes(spans: Iterable[Sequence[int]]) -> str:
    """Return the path of horizontal strokes from start to end, in ticks, in order; one of no length is left out."""
    parts, now = [], 0
    for start, end in spans:
        parts.append(f"m{start - now} 0h{end - start}")
        now = end
    return "".join(parts)


def in_runs(numbers: Iterable[int]) -> str:
    """Return numbers as runs of equal steps: ``0:1:256 7`` for 0 to 255 and 7."""
    runs: list[list[int]] = []
    for number in numbers:
        last = runs[-1] if runs else None
        if last and last[2] == 1:
            last[1:] = [number - last[0], 2]
        elif last and number == last[0] + last[1] * last[2]:
            last[2] += 1
        else:
            runs.append([number, 0, 1])
    return " ".join(str(first) if count == 1 else f"{first}:{step}:{count}" for first, step, count in runs)
