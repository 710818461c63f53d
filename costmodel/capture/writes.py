"""What a model's forward writes of what it holds: buffers (averages, counters, codebooks), rarely parameters.

Whether a written buffer is read as well decides what may be done with it: a norm's averages and a counter are only
written in training. Leaves out what a module's own Python keeps.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx, nn

from costmodel.capture.capture import Capture
from costmodel.capture.passes import AVERAGING, mutated_arguments, seen_through
from costmodel.capture.shapes import fetch


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that operators write.

    Attributes
    ----------
    name : str
        Of the model's parameter or buffer.
    tensor : torch.Tensor
    is_read : bool
        Whether what they compute depends on it.
    is_average : bool
        Whether only norms write it, their running averages.
    """

    name: str
    tensor: torch.Tensor
    is_read: bool
    is_average: bool

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter (an embedding that bounds its rows writes its weight)."""
        return isinstance(self.tensor, nn.Parameter)


def written_by(captured: Capture, operators: Iterable[str]) -> tuple[Written, ...]:
    """Return what some operators write of the model's parameters and buffers."""
    module = captured.model.module
    names = {id(t): name for name, t in [*module.named_buffers(), *module.named_parameters()]}
    nodes = [node for name in operators if name in captured.groups for node in captured.groups[name].nodes]
    writers: dict[int, list[fx.Node]] = {}
    for node in nodes:
        for target in mutated_arguments(node):
            for held in _held(captured, target):
                writers.setdefault(id(held), []).append(node)
    found = []
    for key, writing in writers.items():
        if key not in names:
            continue
        touching = [n for n in nodes if any(id(t) == key for s in n.all_input_nodes for t in _held(captured, s))]
        average = all(node.target in AVERAGING for node in writing)
        tensor = next(t for n in writing for s in n.all_input_nodes for t in _held(captured, s) if id(t) == key)
        found.append(Written(names[key], tensor, not all(map(_only_writes, touching)), average))
    return tuple(found)


def inputs_written_by(captured: Capture) -> tuple[str, ...]:
    """Return the raw inputs whose memory the forward changes."""
    targets = [target for node in captured.program.module.graph.nodes for target in mutated_arguments(node)]
    roots = [root.name for target in targets for root in seen_through(target) if root.op == "placeholder"]
    return tuple(dict.fromkeys(roots))


def _held(captured: Capture, node: fx.Node) -> list[torch.Tensor]:
    """Return the model's tensors whose storage a node's value may be."""
    roots = (root for root in seen_through(node) if root.op == "get_attr")
    values = (fetch(captured.program.module, root.target) for root in roots)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _only_writes(node: fx.Node) -> bool:
    """Whether a call that touches a buffer hands on nothing that depends on it; of a view its users tell."""
    return node.target in AVERAGING or not node.users or any(root.op == "get_attr" for root in seen_through(node))
