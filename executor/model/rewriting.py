"""Another form of a stage's part: some of its calls made otherwise, parameters and buffers the same objects.

Goes into regions too (autocast's, say), which are programs within the program. Leaves out what is changed and why.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import fx

from costmodel.capture.parts import Part
from costmodel.capture.shapes import fetch

Change = Callable[[fx.GraphModule, fx.Node, str], None]
"""Told of each call of a program's copy, with the names of the regions around it, joined by dots."""


def rewritten(part: Part, change: Change) -> Part:
    """Return a copy of a part after `change` has seen each of its calls."""
    return replace(part, module=_rewritten(part.module, change, ""))


def _rewritten(module: fx.GraphModule, change: Change, path: str) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copy = fx.GraphModule(module, graph)
    for node in list(graph.nodes):
        inner = fetch(copy, node.target) if node.op == "get_attr" else None
        if isinstance(inner, fx.GraphModule):
            setattr(copy, str(node.target), _rewritten(inner, change, f"{path}{node.name}."))
        elif node.op == "call_function":
            change(copy, node, path)
    copy.recompile()
    return copy
