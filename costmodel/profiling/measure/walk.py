"""One forward of a captured model, node by node, each node told to whom it belongs.

Values are freed after their last reader, as in the compiled program, so that memory and caches behave
alike. Leaves out what is observed: `timing` and `memory` pass a function around each call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from costmodel.capture.capture import Capture
from costmodel.capture.shapes import fetch

Call = Callable[[str, fx.Node, tuple[Any, ...], Mapping[str, Any]], Any]
"""Gets (operator, node, args, kwargs), computes the node's target and returns its value."""


@dataclass(frozen=True, slots=True)
class _Step:
    node: fx.Node
    owner: str
    frees: tuple[fx.Node, ...]


class Walk:
    """The program of a capture, prepared to be run node by node."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        graph = capture.program.module.graph
        owner = owners(capture)
        last = {source: node for node in graph.nodes for source in node.all_input_nodes}
        self._steps = [
            _Step(node, owner[node], tuple(s for s in node.all_input_nodes if last[s] is node and s.op != "get_attr"))
            for node in graph.nodes
            if node.op == "call_function"
        ]
        self._constants = {
            node: fetch(capture.program.module, node.target) for node in graph.nodes if node.op == "get_attr"
        }
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]

    def run(self, leaves: Mapping[str, Any], call: Call) -> tuple[Any, ...]:
        """Compute the model's output leaves from raw inputs by name."""
        values: dict[fx.Node, Any] = dict(self._constants)
        values.update({node: leaves[node.name] for node in self._placeholders})
        with self.capture.model.casting():
            for step in self._steps:
                args, kwargs = fx.map_arg((step.node.args, step.node.kwargs), values.__getitem__)
                values[step.node] = call(step.owner, step.node, args, kwargs)
                del args, kwargs
                for node in step.frees:
                    del values[node]
        return tuple(values[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in self.capture.outputs)


def owners(capture: Capture) -> Mapping[fx.Node, str]:
    """Return the operator of every node; a replicated one counts for its first reader."""
    found = {node: group.name for group in capture.groups.values() for node in group.nodes}
    rank = {name: i for i, name in enumerate(capture.operators)}
    for node in reversed(capture.program.module.graph.nodes):
        if node in capture.replicated:
            readers = [found[user] for user in node.users if user in found]
            found[node] = min(readers, key=rank.__getitem__, default=capture.operators[-1])
    return found
