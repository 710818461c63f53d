"""The best candidates so far, and the choice among them: the simplest rung wins.

Leaves out how candidates are found.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.problem import Report
from planner.search.evaluate import Candidate

NEAR = 1.01
"""Within 1 % of the best time the simpler plan is chosen (CONTRACT, "The simplest rung wins")."""


@dataclass
class Incumbent:
    """Best candidate for each number of stages, schedule, shape and micro-batch size.

    Attributes
    ----------
    schedules : tuple of str
        The simplest first.
    report : Report, optional
    lower_bound_ns : int
    """

    schedules: tuple[str, ...]
    report: Report | None = None
    lower_bound_ns: int = 0
    found: dict[tuple[int, str, str, int], Candidate] = field(default_factory=dict)
    _said: object = None

    def offer(self, candidates: Iterable[Candidate]) -> None:
        """Take each candidate that is the best of its kind."""
        for candidate in candidates:
            kind = (candidate.num_stages, candidate.schedule, candidate.shape, candidate.microbatch_size)
            if kind not in self.found or candidate.rank < self.found[kind].rank:
                self.found[kind] = candidate

    @property
    def best(self) -> Candidate:
        """The best of all."""
        return min(self.found.values(), key=lambda c: c.rank)

    def choice(self, never_above_ns: int | None = None) -> Candidate:
        """Return the simplest candidate within 1 % of the best, and not slower than a rival.

        Fewer stages first, then fewer micro-batches in flight, then stages in a graph before a line, then time.
        """
        best = self.best
        if not best.fits:
            return best
        worst = best.step_time_ns * NEAR
        if never_above_ns is not None:
            worst = max(best.step_time_ns, min(worst, never_above_ns))
        near = [c for c in self.found.values() if c.fits and c.step_time_ns <= worst]
        return min(near, key=self._simplicity)

    def _simplicity(self, candidate: Candidate) -> tuple[object, ...]:
        line = candidate.shape != "graph"
        return candidate.num_stages, self.schedules.index(candidate.schedule), line, candidate.rank

    def say(self, phase: str) -> None:
        """Report the best time, the bound and the gap, if any of them is news."""
        best = self.best
        news = (best.rank, self.lower_bound_ns)
        if not self.report or news == self._said:
            return
        self._said = news
        line = f"{phase}: step {best.step_time_ns / 1e6:.3f} ms" if best.fits else f"{phase}: nothing fits yet"
        if best.fits and self.lower_bound_ns:
            gap = best.step_time_ns / self.lower_bound_ns - 1
            line += f", bound {self.lower_bound_ns / 1e6:.3f} ms, gap {100 * gap:.2f} %"
        self.report(line)
