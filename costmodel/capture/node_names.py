"""What nodes are called in the program of a whole model, known from a program that lacks some of its blocks.

Torch numbers the nodes of one kind as they are made (``linear``, ``linear_1``), those that it drops later among them.
So a block shifts the numbers of all that follows by how many it makes, which a block that is like it tells. Leaves out
which blocks are lacking (`repeated_blocks`).
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

Counts = Mapping[str, int]
"""A number for each kind of nodes: the last that was given, or how many were made."""

_NUMBERED = re.compile(r"(.*)_(\d+)$")


class UnknownNames(Exception):
    """A block was called in a way that left no count of nodes."""


@dataclass(slots=True)
class NodeCounts:
    """What numbers a program's nodes had where the first call of each module began and where it ended, by path."""

    begun: dict[str, Counts] = field(default_factory=dict)
    ended: dict[str, Counts] = field(default_factory=dict)

    def begin(self, path: str, graph: fx.Graph) -> None:
        """Note that a module's call begins."""
        self.begun.setdefault(path, dict(graph._graph_namespace._base_count))

    def end(self, path: str, graph: fx.Graph) -> None:
        """Note that it ends."""
        self.ended.setdefault(path, dict(graph._graph_namespace._base_count))

    def made(self, path: str) -> Counts:
        """Return how many nodes of each kind the call made."""
        return {kind: number - self.begun[path].get(kind, -1) for kind, number in self.ended[path].items()}


class WholeNames:
    """Names of nodes in the program of all blocks.

    Parameters
    ----------
    counts : NodeCounts
        Of the program that lacks some blocks, whose calls computed nothing.
    like : mapping of str to str
        Of each block that the program lacks, the one that computes the same.

    Raises
    ------
    UnknownNames
        When one of these blocks was called past its module's hooks.
    """

    def __init__(self, counts: NodeCounts, like: Mapping[str, str]) -> None:
        for path in {*like, *like.values()} - counts.ended.keys():
            raise UnknownNames(f"the call of {path} was not noted")
        self._lacking: list[tuple[Counts, Counts]] = []
        self._begun: dict[str, Counts] = {}
        more: Counter[str] = Counter()
        for path, begun in counts.begun.items():
            self._begun[path] = {kind: begun.get(kind, -1) + more[kind] for kind in {*begun, *more}}
            if path in like:
                made = Counter(counts.made(like[path]))
                made.subtract(counts.made(path))  # comparisons of sizes are nodes, too
                self._lacking.append((begun, made))
                more.update(made)

    def whole(self, name: str) -> str:
        """Return what a node of the program is called in that of all blocks."""
        kind, number = _parts(name)
        return _named(kind, number + sum(made.get(kind, 0) for at, made in self._lacking if at.get(kind, -1) < number))

    def copied(self, name: str, like: str, path: str) -> str:
        """Return what a block's node is called, of which another block's is called `name` in the program of all."""
        kind, number = _parts(name)
        return _named(kind, number - self._begun[like].get(kind, -1) + self._begun[path].get(kind, -1))


def _parts(name: str) -> tuple[str, int]:
    found = _NUMBERED.match(name)
    return (found[1], int(found[2])) if found else (name, 0)


def _named(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind
