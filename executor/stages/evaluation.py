"""A forward alone, in eval mode: a stage's part with what tells training from evaluation switched in its calls.

What is measured of its outputs beside the loss is summed over micro-batches and ranks (`Metrics`).

Torch's own calls say by an argument whether they train: dropout and batch norm, recurrent cells, attention. A model
that draws random numbers in another way, or whose Python takes another path in eval mode, would evaluate otherwise:
the first is refused by name. Leaves out outputs themselves, which stay where they are.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from costmodel.capture.draws import arguments, draws_numbers
from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch, UsageError
from executor.communication.groups import ProcessGroups, RefusedAlike
from executor.model.rewriting import rewritten
from executor.stages.stage import Stage

Metric = Callable[[Any, Any], tuple[Any, Any]]
"""(The model's output, targets) of a micro-batch -> (sum, weight)."""

_EVALUATED = {"train": False, "training": False, "use_input_stats": False, "dropout_p": 0.0}
"""Arguments of torch's calls, and what they are in eval mode."""


def evaluated_part(part: Part) -> Part:
    """Return a part as it computes in eval mode.

    Raises
    ------
    DoesNotMatch
        When a call draws random numbers whose place in eval mode nothing tells.
    """
    return rewritten(part, _evaluate)


def _evaluate(module: fx.GraphModule, node: fx.Node, path: str) -> None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    given = arguments(node)
    changed: dict[str, Any] = {n: v for n, v in _EVALUATED.items() if n in given and _applies(n, given)}
    if changed:
        node.args, node.kwargs = (), {**given, **changed}
    if draws_numbers(node):
        raise DoesNotMatch(
            f"the operator {path}{node.name} ({node.target}) draws random numbers, and nothing tells what it does in "
            "eval mode: evaluate the model in one process, from pipe.state_dict()"
        )


def _applies(name: str, given: dict[str, Any]) -> bool:
    """Whether an argument is switched; norms without averages of their own take the batch's in eval mode too."""
    return name not in ("training", "use_input_stats") or given.get("running_mean", "") is not None


class Metrics:
    """What is measured of a batch's outputs, micro-batch by micro-batch, where the loss is."""

    def __init__(self) -> None:
        self._functions: Mapping[str, Metric] = {}
        self._seen: dict[str, list[float]] = {}
        self._wrong = ""

    def begin(self, functions: Mapping[str, Metric]) -> None:
        """Start a batch, of which these are measured."""
        if "loss" in functions:
            raise UsageError("a metric is named 'loss', as the loss itself is; give it another name")
        self._functions, self._seen, self._wrong = functions, {name: [0.0, 0.0] for name in functions}, ""

    def measure(self, stage: Stage) -> None:
        """Let the outputs of a stage with the loss be measured before the loss is computed."""
        stage.part = seen_by(partial(self._see, stage), stage.part)

    def _see(self, stage: Stage, output: Any, targets: Any = None) -> None:
        for name, function in self._functions.items() if stage.counts else ():
            try:
                value, weight = function(output, targets)
                self._seen[name][0] += float(value)
                self._seen[name][1] += float(weight)
            except Exception as error:  # the user's own: told to all ranks, so that none waits
                self._wrong = self._wrong or (
                    f"the metric {name!r} failed ({type(error).__name__}: {error}); it must return (sum, weight) for "
                    "(output, targets)"
                )

    def result(self, groups: ProcessGroups, counts: bool) -> dict[str, float]:
        """Return total sum / total weight of each, on every rank; collective. `counts`: whether this rank's do.

        Raises
        ------
        RefusedAlike
            When a metric fails, or ranks measure other things.
        """
        seen = self._seen if counts else {name: [0.0, 0.0] for name in self._seen}
        rows = [json.loads(row) for row in groups.all_gather_bytes(json.dumps([self._wrong, seen]).encode())]
        for wrong, seen in rows:
            if wrong or sorted(seen) != sorted(self._seen):
                raise RefusedAlike(wrong or f"ranks measure other things: {sorted(seen)} and {sorted(self._seen)}")
        found = {}
        for name in self._seen:
            total, weight = (sum(seen[name][i] for _, seen in rows) for i in (0, 1))
            found[name] = total / weight if weight else float("nan")
        return found


def seen_by(see: Callable[..., None], part: Part) -> Part:
    """Return a part with the loss whose output and targets somebody sees before the loss is computed."""
    model = part.capture.model
    return replace(part, capture=replace(part.capture, model=replace(model, loss=_Seeing(model.loss, see))))


class _Seeing:
    """A loss whose arguments somebody sees first."""

    def __init__(self, loss: Callable[..., Any], see: Callable[..., None]) -> None:
        self._loss, self._see = loss, see

    def __call__(self, *arguments: Any) -> Any:
        self._see(*arguments)
        return self._loss(*arguments)
