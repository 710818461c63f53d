"""The user's loss as stages call it: what it cannot have there is refused in words, and what it does beside is seen.

A loss is the user's own code, called once a micro-batch where the last stage is. While it runs, the model's parameters
and buffers that this rank does not train, and what forwards of other stages keep on their modules, refuse to be read.
In the first step each call is looked at: what it trains, what it changes, and whether a pair that it returns is the
(sum, weight) for which it is taken. Leaves out files and whatever else no Python object shows.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch, InvalidInput, PenstockError, UsageError
from executor.model.reachable import ReachableState, left_alone

_SAME, _NEAR = 1e-6, 1e-3
"""Parts of a number by which it may be another and still be the same, and still be the sum of its parts."""

_HARMLESS = {
    getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "is_leaf", "layout", "requires_grad")
}
"""What may be asked of a tensor that is not here."""


_GIVEN = (
    "is given the model's output and the targets of one micro-batch, and neither parameters nor what hooks and "
    "forwards of other stages have put aside: return what it needs from the model's forward"
)


class _Away:
    """What a tensor that is not here is while a loss runs."""

    words: ClassVar[Mapping[int, str]] = {}

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        found = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Away))
        raise DoesNotMatch(
            f"the loss reads {cls.words[id(next(found))]}, which is not here as a plain loop has it: a loss is "
            "computed from the model's output and the targets; give a penalty on parameters to the optimizer "
            "(weight_decay=), or return the term from the model's forward and add it to the loss there"
        )


class _AwayParameter(_Away, nn.Parameter):
    pass


class _AwayTensor(_Away, torch.Tensor):
    pass


_AWAY: Mapping[type, type] = {nn.Parameter: _AwayParameter, torch.Tensor: _AwayTensor}

Kept = tuple[dict[str, Any], str, str]
"""The table of a module's attributes, the name of one, and what people call it."""


@dataclass(slots=True)
class UsersLoss:
    """A loss.

    Attributes
    ----------
    loss : callable
        The user's.
    away : mapping of int to str
        Ids of the model's tensors that it may not read, and what people call them; looked up among `tensors`.
    tensors : sequence of torch.Tensor
        All of the model's.
    kept : sequence
        Attributes that forwards of modules write which the loss's stage does not call.
    without : frozenset of int
        Ids of the model's modules and tensors, which are not looked into.
    own : callable
        Returns the parameters that this rank trains.
    lone : str
        Why the loss's own state would not be as in a plain loop; empty where one rank calls it once a micro-batch.
    several : str
        Why parameters of the loss's own would not train as in a plain loop; empty where one rank has them.
    watches : bool
        Whether calls are looked at.
    moves : str
        What calls change on which the loss depends, for people.
    """

    loss: Callable[..., Any]
    away: dict[int, str] = field(default_factory=dict)
    tensors: Sequence[torch.Tensor] = ()
    kept: Sequence[Kept] = ()
    without: frozenset[int] = frozenset()
    own: Callable[[], Sequence[nn.Parameter]] = tuple
    lone: str = ""
    several: str = ""
    watches: bool = False
    moves: str = ""
    _moving: set[int] | None = None

    def settle(self, module: nn.Module, held: Collection[int], lone: str, several: str, own: Any) -> None:
        """Learn what is here, once this rank's stages are made."""
        named = [*module.named_parameters(), *module.named_buffers()]
        self.tensors = [tensor for _, tensor in named]
        self.away = {id(tensor): f"{name!r} of the model" for name, tensor in named if id(tensor) not in held}
        self.without = frozenset(map(id, (*module.modules(), *self.tensors)))
        self.lone, self.several, self.own = lone, several, own

    def hide(self, module: nn.Module, kept: Iterable[tuple[str, str]], part: Part) -> None:
        """Have attributes that forwards keep on modules refuse to be read, but for those that a part calls."""
        self.kept = [
            (vars(module.get_submodule(path)), name, f"{name} of the module {path or type(module).__name__!r}")
            for path, name in kept
            if not part.calls_module(path)
        ]

    def __call__(self, *given: Any) -> Any:
        """Return what the user's loss does."""
        with self._away():
            return self._watched(given) if self.watches else self._called(given)

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Put back what calls within the block change."""
        with left_alone(self.loss, self.without, self._moving):
            yield

    def _called(self, given: tuple[Any, ...]) -> Any:
        try:
            value = self.loss(*given)
        except (PenstockError, torch.OutOfMemoryError, torch.distributed.DistError):
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise InvalidInput(f"the loss fails ({words}); it {_GIVEN}") from error
        kinds = {type(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)} - {torch.Tensor}
        if strange := kinds - {type(leaf) for leaf in pytree.tree_leaves(given if kinds else ())}:
            raise DoesNotMatch(
                f"the loss reads a {strange.pop().__name__}, which has no values here, or a part of them; it {_GIVEN}"
            )
        return value

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Have what is not here refuse to be read within the block."""
        changed = [(tensor, type(tensor)) for tensor in self.tensors if id(tensor) in self.away]
        changed = [(tensor, kind) for tensor, kind in changed if kind in _AWAY]
        put = [(table, name, table.get(name), name in table, words) for table, name, words in self.kept]
        stands = [torch.empty(0).as_subclass(_AwayTensor) for _ in put]
        _Away.words = {**self.away, **{id(stand): row[-1] for stand, row in zip(stands, put, strict=True)}}
        for tensor, kind in changed:
            tensor.__class__ = _AWAY[kind]
        for stand, (table, name, *_) in zip(stands, put, strict=True):
            table[name] = stand
        try:
            yield
        finally:
            for tensor, kind in changed:
                tensor.__class__ = kind
            for table, name, value, was_there, _ in put:
                table[name] = value
                if not was_there:
                    del table[name]

    def _watched(self, given: tuple[Any, ...]) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        versions = [tensor._version for tensor in tensors]
        roots = {get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad}
        before, numbers = ReachableState(self.loss, self.without, ()), torch.get_rng_state()
        value = self._called(given)
        changed = [t for t, version in zip(tensors, versions, strict=True) if t._version != version]
        if any(not tensor.requires_grad and tensor.device.type == "cpu" for tensor in changed):
            raise UsageError(
                "the loss changes its targets in place, which are the batch's own memory on one rank and not on the "
                "others: let it work on a copy (targets.clone())"
            )
        self._check_trained(value, roots)
        moved, self._moving = before.changed(), (self._moving or set()) | before.moving()
        if not changed and (moved or _is_pair(value)):
            with self.left_alone(), torch.no_grad():
                if moved:
                    torch.set_rng_state(numbers)
                    self._check_moved(", ".join(moved[:3]), given, value)
                if _is_pair(value):
                    self._check_pair(given, value)
        return value

    def _check_trained(self, value: Any, roots: set[Any]) -> None:
        """Refuse parameters of the loss's own where they would not train as in a plain loop."""
        why = self.several or ("a (sum, weight) is divided once all ranks are done" if _is_pair(value) else "")
        known = {id(parameter) for parameter in self.own()}
        leaves = _leaves_of(value[0] if _is_pair(value) else value, roots) if why else []
        if any(isinstance(leaf, nn.Parameter) and id(leaf) not in known for leaf in leaves):
            raise DoesNotMatch(
                f"the loss has parameters of its own, which would not train as in a plain loop ({why}): make them "
                "part of the model, whose forward returns them"
            )

    def _check_moved(self, names: str, given: tuple[Any, ...], value: Any) -> None:
        """Find out whether a loss depends on what its calls change; refuse that where calls are not a plain loop's."""
        then, now = _numbers(value), _numbers(self._tried(given))
        if len(then) == len(now) and all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(then, now, strict=True)):
            return
        self.moves = names
        if self.lone:
            raise DoesNotMatch(
                f"the loss depends on what it changes itself whenever it is called ({names}), and {self.lone}: change "
                "that between steps instead, or plan with one replica of the last stage, and without recompute there"
            )

    def _check_pair(self, given: tuple[Any, ...], value: Any) -> None:
        """Refuse a pair that is not (sum, weight): both add over parts of a batch, and no averages do."""
        rows = [_numbers(self._tried(part)) for part in _halves(given)]
        rows.insert(0, _numbers(value))
        if [len(row) for row in rows] != [2, 2, 2]:
            return
        sums, weights = ((rows[0][i], rows[1][i], rows[2][i]) for i in (0, 1))
        if weights[0] and weights[0] == weights[1] == weights[2]:  # a plain average of micro-batches, then
            return
        total = weights[1] + weights[2]
        mean = (weights[1] * sums[1] + weights[2] * sums[2]) / total if total else None
        of_weights = _is_average(*weights)
        if of_weights or _is_average(*sums, mean):
            what, row = ("second", weights) if of_weights else ("first", sums)
            raise UsageError(
                f"the loss returns two numbers, which are taken for (sum, weight), and the {what} is no sum: "
                f"{row[0]:.6g} of a micro-batch, {row[1]:.6g} and {row[2]:.6g} of its halves. Return the loss alone "
                "(what is measured beside goes to pipe.evaluate(metrics=)), or a sum over samples and its weight"
            )

    def _tried(self, given: tuple[Any, ...]) -> Any:
        try:
            return self.loss(*given)
        except Exception:  # what has run once may still need gradients, or the whole micro-batch
            return None


def loss_left_alone(part: Part) -> AbstractContextManager[None]:
    """Put back what calls of a part's loss within the block change: they are made up."""
    loss = part.capture.model.loss
    return loss.left_alone() if part.has_loss and isinstance(loss, UsersLoss) else nullcontext()


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def _is_average(whole: float, first: float, second: float, mean: float | None = None) -> bool:
    """Whether a number is an average of those of its halves, of which the mean may be known, and not their sum."""
    near = _NEAR * max(abs(whole), abs(first) + abs(second))
    low, high = (min(first, second), max(first, second)) if mean is None else (mean, mean)
    return abs(whole - first - second) > near and low - near <= whole <= high + near


def _numbers(value: Any) -> list[float]:
    """Return what a loss is as numbers; nothing where it is none."""
    values = value if isinstance(value, tuple) else (value,)
    return [float(v) for v in values if isinstance(v, int | float) or (isinstance(v, torch.Tensor) and v.numel() == 1)]


def _halves(given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return both halves of a loss's arguments, along the first dimension of the output that can be halved."""
    tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    place, size = next(((i, n) for i, n in enumerate(tensors[0].shape[:2]) if n > 1), (0, 0)) if tensors else (0, 0)

    def half(start: int, stop: int) -> tuple[Any, ...]:
        def cut(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.narrow(place, start, stop - start) if leaf.shape[place : place + 1] == (size,) else leaf

        found: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, cut, given)
        return found

    return [half(0, size // 2), half(size // 2, size)] if size else []


def _leaves_of(loss: Any, roots: set[Any]) -> list[torch.Tensor]:
    """Return the leaves that a loss trains, but through the model's output."""
    waiting = [loss.grad_fn] if isinstance(loss, torch.Tensor) and loss.grad_fn is not None else []
    seen, found = set(roots), []
    for node in waiting:  # which grows meanwhile
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [each for each, _ in node.next_functions if each is not None]
    return found


@contextmanager
def noting_kept(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Yield (module, attribute) of what forwards of the model keep on its modules within the block."""
    before: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    found: dict[tuple[str, str], None] = {}
    yielded: list[tuple[str, str]] = []

    def begin(*_: object) -> None:
        before[:] = [(path, vars(inner), dict(vars(inner))) for path, inner in module.named_modules()]

    def end(*_: object) -> None:
        for path, now, then in before:
            for name, value in now.items():
                tensors = (torch.is_tensor(leaf) for leaf in pytree.tree_leaves(value))
                if value is not then.get(name, found) and name not in _MODULES_OWN and any(tensors):
                    found[path, name] = None
        yielded[:] = list(found)

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield yielded
    finally:
        for handle in handles:
            handle.remove()


_MODULES_OWN = frozenset(vars(nn.Module()))
