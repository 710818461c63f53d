"""A forward alone, in eval mode: a stage's part with what tells training from evaluation switched in its calls.

Torch's own calls say by an argument whether they train: dropout and batch norm, recurrent cells, attention. A model
that draws random numbers in another way, or whose Python takes another path in eval mode, would evaluate otherwise:
the first is refused by name. Leaves out outputs other than the loss.
"""

from typing import Any

import torch
from torch import fx

from costmodel.capture.draws import arguments, draws_numbers
from costmodel.capture.parts import Part
from costmodel.errors import DoesNotMatch
from executor.rewriting import rewritten

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
