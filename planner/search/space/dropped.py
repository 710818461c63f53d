"""What a search drops: a candidate, or a bound, that cannot be made costs itself alone, and is counted by its reason.

A refusal (`PenstockError`) is expected: not everything that may be tried goes together, or has room. Any other error is
a bug of ours, which is counted as such and told when the search ends. A bound that cannot be made counts as none.
Ctrl-C passes. Leaves out refusals of what the user fixed, which are raised before a search begins.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from traceback import extract_tb
from types import TracebackType

from costmodel.errors import NoPlanFits, PenstockError, UsageError

REFUSED, NO_ROOM, INVALID = "choices do not go together", "no room on a host or in an order", "invalid"
TOO_LONG = "too long to be written"
REASONS = ((NoPlanFits, NO_ROOM), (UsageError, REFUSED), (PenstockError, INVALID))
BUG = "bug: "
"""Reasons; that of a bug goes on with the name of its error."""


class Dropped:
    """What one search has dropped.

    Attributes
    ----------
    counts : Counter of str
        By reason.
    refused : PenstockError, optional
        The last refusal, which says why nothing can be done where nothing is found.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refused: PenstockError | None = None
        self._first_bug = ""

    def candidate(self) -> AbstractContextManager[None, bool]:
        """Drop what is tried within if it cannot be made: neither refusals nor bugs are raised from there."""
        return _Trial(self)

    def bound(self, make: Callable[[], int | None]) -> int | None:
        """Return a bound on a time, or 0, which excludes nothing, where it cannot be made."""
        with self.candidate():
            return make()
        return 0

    def refuse(self, error: PenstockError, reason: str = "") -> None:
        """Count what was refused, for a reason in few fixed words (by default its error's), and keep why."""
        self.counts[reason or next(reason for kind, reason in REASONS if isinstance(error, kind))] += 1
        self.refused = error

    def blame(self, error: Exception) -> None:
        """Count what was lost to a bug of ours, and keep where the first of them is."""
        self.counts[f"{BUG}{type(error).__name__}"] += 1
        if not self._first_bug:
            frames = extract_tb(error.__traceback__)
            where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
            self._first_bug = f"{type(error).__name__}: {error}{where}"

    @property
    def bugs(self) -> dict[str, int]:
        """What bugs of ours cost."""
        return {reason: number for reason, number in self.counts.items() if reason.startswith(BUG)}

    @property
    def said(self) -> str:
        """A remark on bugs; empty where there were none."""
        if not self.bugs:
            return ""
        return (
            f"a bug of Penstock's cost {sum(self.bugs.values())} of the candidates or bounds that were tried; what was "
            f"found was made without them; please report it: {self._first_bug}"
        )


class _Trial(AbstractContextManager[None, bool]):
    """One trial: what is raised in it is counted and goes no further, unless it is to end the program."""

    def __init__(self, dropped: Dropped) -> None:
        self._dropped = dropped

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, PenstockError):
            self._dropped.refuse(error)
        elif isinstance(error, Exception):
            self._dropped.blame(error)
        return isinstance(error, Exception)
