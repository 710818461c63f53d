"""A forward alone, in eval mode: a stage's part with the constants of its calls that are others then (`eval_mode`).

What is measured of its outputs beside the loss is summed over micro-batches and ranks (`Metrics`). A model that draws
random numbers in eval mode is refused. Leaves out outputs themselves, which stay where they are.
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
from executor.eval_mode import Constants
from executor.groups import Company, RefusedAlike
from executor.rewriting import rewritten
from executor.stage import Stage

Metric = Callable[[Any, Any], tuple[Any, Any]]
"""(The model's output, targets) of a micro-batch -> (sum, weight)."""


def evaluated_part(part: Part, constants: Constants) -> Part:
    """Return a part as it computes in eval mode, with what is another constant then (`eval_mode`).

    Raises
    ------
    DoesNotMatch
        When a call draws random numbers whose place in eval mode nothing tells.
    """
    return rewritten(part, partial(_evaluate, constants))


def _evaluate(constants: Constants, module: fx.GraphModule, node: fx.Node, path: str) -> None:
    changed = constants.get(f"{path}{node.name}", {})
    if changed is None and not node.users:
        module.graph.erase_node(node)
        return
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    if changed:
        node.args, node.kwargs = (), {**arguments(node), **changed}
    if draws_numbers(node):
        raise DoesNotMatch(
            f"the operator {path}{node.name} ({node.target}) draws random numbers, and nothing tells what it does in "
            "eval mode: evaluate the model in one process, from pipe.state_dict()"
        )


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

    def result(self, company: Company, counts: bool) -> dict[str, float]:
        """Return total sum / total weight of each, on every rank; collective. `counts`: whether this rank's do.

        Raises
        ------
        RefusedAlike
            When a metric fails, or ranks measure other things.
        """
        seen = self._seen if counts else {name: [0.0, 0.0] for name in self._seen}
        rows = [json.loads(row) for row in company.tell_all(json.dumps([self._wrong, seen]).encode())]
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
