"""The user's loss as stages call it: what it cannot have there is refused in words, and what it does beside is seen.

A loss is the user's own code, called once a micro-batch where the last stage is. While it runs, the model's parameters
and buffers that this rank does not train, and what forwards of other stages keep on their modules, refuse to be read.
In the first step each call is looked at: what it trains, what it changes, and whether a pair that it returns is the
(sum, weight) for which it is taken. Leaves out files and whatever else no Python object shows.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from costmodel.capture.heap import is_out_of_memory
from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch, InvalidInput, PenstockError, UsageError
from executor.model.reachable import ReachableState, left_alone
from executor.model.remote_tensors import AwayTensors

_SAME, _NEAR = 1e-6, 1e-3
"""Parts of a number by which it may be another and still be the same, and still be the sum of its parts."""

_GIVEN = (
    "is given the model's output and the targets of one micro-batch, and neither parameters nor what hooks and "
    "forwards of other stages have put aside: return what it needs from the model's forward"
)


@dataclass(slots=True)
class UsersLoss:
    """A loss.

    Attributes
    ----------
    loss : callable
        The user's.
    away : AwayTensors
        What it may not read.
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
    away: AwayTensors = field(default_factory=AwayTensors)
    without: frozenset[int] = frozenset()
    own: Callable[[], Sequence[nn.Parameter]] = tuple
    lone: str = ""
    several: str = ""
    watches: bool = False
    moves: str = ""
    _moving: set[int] | None = None

    def settle(self, module: nn.Module, held: Collection[int], lone: str, several: str, own: Any) -> None:
        """Learn what is here, once this rank's stages are made."""
        self.away.settle(module, held)
        self.without = frozenset(map(id, (*module.modules(), *self.away.tensors)))
        self.lone, self.several, self.own = lone, several, own

    def __call__(self, *given: Any) -> Any:
        """Return what the user's loss does."""
        with self.away.refused():
            return self._watched(given) if self.watches else self._called(given)

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Put back what calls within the block change."""
        with left_alone(self.loss, self.without, self._moving):
            yield

    def _called(self, given: tuple[Any, ...]) -> Any:
        try:
            value = self.loss(*given)
        except (PenstockError, torch.distributed.DistError):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise InvalidInput(f"the loss fails ({words}); it {_GIVEN}") from error
        kinds = {type(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)} - {torch.Tensor}
        if strange := kinds - {type(leaf) for leaf in pytree.tree_leaves(given if kinds else ())}:
            raise DoesNotMatch(
                f"the loss reads a {strange.pop().__name__}, which has no values here, or a part of them; it {_GIVEN}"
            )
        return value

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
