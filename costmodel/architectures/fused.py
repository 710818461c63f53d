"""Operators that move bytes, one after the other in one module, priced as one kernel: as trainers of today run them.

A captured norm is eight operators and one kernel in practice. Such a run reads what enters it once, writes what leaves
it once, and keeps for its backward what enters it where that is less than what its operators keep one by one: what lies
between is computed again (torch.compile's rule). Its time stands with the operator that makes most of what leaves, so
that names and graph stay those of the program. Leaves out runs across modules, and trainers that fuse nothing
(`--no-fused`, which makes norms and elementwise operators slower).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.model.graph import Operator, OperatorGraph, SavedStorage, Tensor
from costmodel.model.work import Work

MOVING = ("elementwise", "norm")
REDUCING = ("rsqrt", "var", "var_mean", "std")
"""Kinds of operators that make a run of them a norm."""


def fused(graph: OperatorGraph, microbatch_size: int) -> OperatorGraph:
    """Return a graph whose runs of byte-moving operators do, and keep, what one kernel of each would.

    Parameters
    ----------
    graph : OperatorGraph
        All of whose operators say what they do.
    microbatch_size : int
        The last of those that tensors' bytes are given at.
    """
    operators = list(graph.operators)
    for run in _Runs(graph).found():
        _fuse(graph, operators, run, microbatch_size)
    return replace(graph, operators=tuple(operators))


@dataclass(frozen=True)
class _Runs:
    """Runs of operators of one module that only move bytes."""

    graph: OperatorGraph

    def found(self) -> Iterator[list[int]]:
        """Yield the positions of each run of several operators, rising."""
        root = list(range(len(self.graph.operators)))

        def top(i: int) -> int:
            while root[i] != i:
                root[i] = root[root[i]]
                i = root[i]
            return i

        for i, following in enumerate(self.graph.successors):
            for j in following:
                if self._joined(i, j) and self._depths[i] == self._depths[j]:
                    root[top(j)] = top(i)
        runs: dict[int, list[int]] = {}
        for i, key in enumerate(self.keys):
            if key is not None:
                runs.setdefault(top(i), []).append(i)
        yield from (run for run in runs.values() if len(run) > 1)

    def _joined(self, first: int, second: int) -> bool:
        return self.keys[first] is not None and self.keys[first] == self.keys[second]

    @cached_property
    def _depths(self) -> list[int]:
        """How many kernels stand before each operator at most: only what is equally deep can be one."""
        found = [0] * len(self.graph.operators)
        for i, following in enumerate(self.graph.successors):  # in a topological order
            for j in following:
                found[j] = max(found[j], found[i] + (not self._joined(i, j)))
        return found

    @cached_property
    def keys(self) -> list[tuple[str, str] | None]:
        """Module and split of each operator that only moves bytes; None for others."""
        return [
            (self._owner(o.module), o.work.split) if o.work is not None and o.work.kind in MOVING else None
            for o in self.graph.operators
        ]

    def _owner(self, module: str) -> str:
        """Return the innermost module around that holds parameters: an activation function is part of its layer."""
        while module and module not in self._holding:
            module = module.rpartition(".")[0]
        return module

    @cached_property
    def _holding(self) -> frozenset[str]:
        """Modules that hold parameters, or hold modules that do."""
        paths = (parameter.name.split(".")[:-1] for parameter in self.graph.parameters)
        return frozenset(".".join(path[:end]) for path in paths for end in range(1, len(path) + 1))


def _fuse(graph: OperatorGraph, operators: list[Operator], run: Sequence[int], size: int) -> None:
    names = {graph.operators[i].name for i in run}
    enter = [t for t in graph.tensors if t.producer not in names and not names.isdisjoint(t.consumers)]
    leave = [t for t in graph.tensors if t.producer in names and not names.issuperset(t.consumers)]
    between = {t.storage for t in graph.tensors if t.producer in names} - {t.storage for t in (*enter, *leave)}
    made = {graph.operators[i].name: 0 for i in run}
    for tensor in leave:
        made[tensor.producer] += tensor.size_bytes[-1]
    chief = max(run, key=lambda i: (made[graph.operators[i].name], i))
    moved = sum(_by_storage((*enter, *leave)).values())
    for i in run:
        work = operators[i].work
        assert work is not None  # noqa: S101 - as above
        operators[i] = replace(operators[i], work=replace(work, passes=0))
    if not all(o.work is not None and not o.work.passes for o in (graph.operators[i] for i in run)):
        out = made[graph.operators[chief].name]
        operators[chief] = replace(operators[chief], work=_one(graph, run, chief, moved / out if out else 0.0))
    _keep(operators, run, enter, between, size)


def _one(graph: OperatorGraph, run: Sequence[int], chief: int, share: float) -> Work:
    """Return the work of the one kernel: passes over what its chief operator makes, `share` times which it moves."""
    rows = [graph.operators[i] for i in run]
    is_norm = any(o.kind in REDUCING or (o.work is not None and o.work.kind == "norm") for o in rows)
    work = graph.operators[chief].work
    assert work is not None  # noqa: S101 - only operators that say what they do are in runs
    passes = max(2, round(share) or work.passes)
    return replace(work, kind="norm" if is_norm else "elementwise", passes=passes)


def _by_storage(tensors: Sequence[Tensor]) -> dict[object, int]:
    """Return the bytes of each storage among tensors, views of one counted once."""
    found: dict[object, int] = {}
    for tensor in tensors:
        key = tensor.storage if tensor.storage >= 0 else tensor.name
        found[key] = max(tensor.size_bytes[-1], found.get(key, 0))
    return found


def _keep(operators: list[Operator], run: Sequence[int], enter: Sequence[Tensor], between: set[int], size: int) -> None:
    """Let a run keep what enters it in place of what lies between, where that takes fewer bytes."""
    kept = {saved for i in run for saved in operators[i].saved}
    remade = {saved for saved in kept if saved.storage in between}
    held = {saved.storage for saved in kept}
    needed = {t.storage: -(-t.size_bytes[-1] // size) for t in enter if t.gradient and t.storage >= 0}
    more = {storage: count for storage, count in needed.items() if storage not in held}
    if sum(saved.size_bytes for saved in remade) <= sum(more.values()):
        return
    first = run[0]
    added = tuple(SavedStorage(storage, count) for storage, count in more.items())
    for i in run:
        left = tuple(saved for saved in operators[i].saved if saved not in remade)
        operators[i] = replace(operators[i], saved=(*left, *added) if i == first else left)
