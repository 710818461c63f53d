"""What a search did: when its best plan improved, which part of it brought that, what it saw and what it dropped.

A search is made of subsolvers: parts that make first plans, improve plans or prove bounds. Each says when it is at
work (`SearchRecord.active`), and the CPU seconds and improvements of that time are credited to it. Everything here is
read from clocks or counts work that clocks end, so it goes to ``plan --json`` as `searched` and never into a plan file.
Leaves out what a search decides: nothing here changes what is found.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["first", "improve", "prove"]
UNNAMED = "search"
"""The subsolver that is credited where none says that it is at work."""
LOWEST_MEMORY = "lowest memory"
"""The subsolver that looks for the least memory, after everything else was found not to fit."""
READ_AGAIN_S = 0.05
"""CPU seconds of this process after which those of its running processes are read again."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A plan that was the best of all that fit and that the target runs; times count from the search's start."""

    cpu_s: float
    wall_s: float
    best_step_time_ns: int
    subsolver: str

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "cpu_s": round(self.cpu_s, 4),
            "wall_s": round(self.wall_s, 4),
            "best_step_time_ns": self.best_step_time_ns,
            "subsolver": self.subsolver,
        }


@dataclass(slots=True)
class SubsolverRecord:
    """What one part of a search took and brought; `left` is the part of the best step that its improvements left."""

    kind: Kind
    cpu_s: float = 0.0
    left: float = 1.0

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {"kind": self.kind, "cpu_s": round(self.cpu_s, 4), "gain_percent": round(100 * (1 - self.left), 4)}


@dataclass(slots=True)
class _Watched:
    """A process that the search started, which another may follow under the same name."""

    name: str
    pid: Callable[[], int | None]
    last_pid: int | None = None
    read_s: float = 0.0


@dataclass
class SearchRecord:
    """The record of one search. Make it when imports are done and the inputs are read: its clocks start then.

    Attributes
    ----------
    families : int
        Families that the space holds.
    families_seen : int
        Those that were priced, or excluded by a bound.
    dropped : Counter of str
        How many candidates were dropped, by the reason.
    incumbents : list of Improvement
        Each best plan that fits and that the target runs, the first one first.
    subsolvers : dict of str to SubsolverRecord
    """

    families: int = 0
    families_seen: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    incumbents: list[Improvement] = field(default_factory=list)
    subsolvers: dict[str, SubsolverRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._start_wall, self._start_cpu = time.monotonic(), _own_cpu_s()
        self._active: list[str] = []
        self._watched: list[_Watched] = []
        self._charged = self._read_at = time.process_time()
        self._best_ns: int | None = None
        self._shape = ""

    @contextmanager
    def active(self, name: str, kind: Kind) -> Iterator[None]:
        """Credit a subsolver with what is taken and found in here; one inside another is credited alone."""
        self._charge()
        self.subsolvers.setdefault(name, SubsolverRecord(kind))
        self._active.append(name)
        try:
            yield
        finally:
            self._charge()
            self._active.pop()

    def watch(self, name: str, kind: Kind, pid: Callable[[], int | None]) -> None:
        """Credit a subsolver with the CPU seconds of a process; `pid` is its number, None while it does not run."""
        self.subsolvers.setdefault(name, SubsolverRecord(kind))
        self._watched.append(_Watched(name, pid))

    def met(self, step_time_ns: int) -> None:
        """Take the step of a plan that fits and that the target runs; it counts where it is better than all before."""
        best_ns = self._best_ns
        if best_ns is not None and step_time_ns >= best_ns:
            return
        self._charge()
        name = self._active[-1] if self._active else UNNAMED
        by = self.subsolvers.setdefault(name, SubsolverRecord("improve"))
        if best_ns:
            by.left *= step_time_ns / best_ns
        if by.kind == "first" or not self._shape:
            self._shape = name
        self._best_ns = step_time_ns
        self.incumbents.append(Improvement(self.cpu_s, self.wall_s, step_time_ns, name))

    def forget(self) -> None:
        """Let the next plan be the best, however slow: those before it are no longer answers."""
        self._best_ns = None

    @property
    def only_fits(self) -> bool:
        """Whether the best plan was found by holding least, or is an improvement of that."""
        return self._shape == LOWEST_MEMORY

    @property
    def wall_s(self) -> float:
        """Wall seconds since the start."""
        return time.monotonic() - self._start_wall

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the start, of this process and of all that it started, those that still run as well."""
        self._read_processes()
        return _own_cpu_s() - self._start_cpu + sum(each.read_s for each in self._watched)

    def to_json(self) -> dict[str, object]:
        """Return `searched` of ``plan --json``; the figures of a first plan are null where there was none."""
        self._charge()
        self._read_processes()
        first = self.incumbents[0] if self.incumbents else None
        return {
            "families": self.families,
            "families_seen": self.families_seen,
            "first_plan_s": round(first.wall_s, 4) if first else None,
            "first_plan_cpu_s": round(first.cpu_s, 4) if first else None,
            "first_plan_ns": first.best_step_time_ns if first else None,
            "incumbents": [each.to_json() for each in self.incumbents],
            "subsolvers": {name: each.to_json() for name, each in self.subsolvers.items()},
            "dropped": dict(sorted(self.dropped.items())),
            "only_fits": self.only_fits,
        }

    def _charge(self) -> None:
        """Credit whoever is at work with what this process took since it was last asked."""
        now = time.process_time()
        if self._active:
            self.subsolvers[self._active[-1]].cpu_s += now - self._charged
        self._charged = now
        if now - self._read_at > READ_AGAIN_S:
            self._read_processes()

    def _read_processes(self) -> None:
        """Read what the processes of the search have taken so far; one that ended is in this process's own account."""
        self._read_at = time.process_time()
        for each in self._watched:
            pid = each.pid()
            if pid != each.last_pid:
                each.last_pid, each.read_s = pid, 0.0
            if pid is not None:
                spent_s = max(each.read_s, running_cpu_s(pid))
                self.subsolvers[each.name].cpu_s += spent_s - each.read_s
                each.read_s = spent_s


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process, and of the processes it started that have ended."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def running_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a running process and of those it waited for; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        ticks = sum(map(int, text.rpartition(")")[2].split()[11:15]))
    except (OSError, ValueError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
