"""Programs that read rows of the batch at places that an input names which goes whole to each micro-batch.

A batch of graphs does so: its nodes are cut like samples, and its edges name rows that are not there. The program may
run all the same, where nothing has values. Leaves out samples that are mixed in other ways: the losses' numbers show
them (`separation`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from costmodel.capture.batches import TrainingModel, batched_dimensions
from costmodel.capture.passes import kind_of, module_path
from costmodel.errors import InvalidInput


def refuse_mixed_rows(model: TrainingModel, graph: fx.Graph, static_batch: int | None) -> None:
    """Refuse a program that picks rows along the batch by the values of an input that is not cut.

    Raises
    ------
    InvalidInput
        Names the module, the input and the way out.
    """
    cut: set[fx.Node] = set()
    whole: dict[fx.Node, str] = {}
    dimensions = iter(batched_dimensions(model))
    for node in graph.nodes:
        if node.op == "placeholder":
            if next(dimensions) is not None:
                cut.add(node)
            elif isinstance(node.meta.get("val"), torch.Tensor):
                whole[node] = node.name
            continue
        if not cut.isdisjoint(node.all_input_nodes):
            cut.add(node)
        elif named := [whole[source] for source in node.all_input_nodes if source in whole]:
            whole[node] = named[0]
        for rows, places in _picks(node):
            if places in whole and _along_batch(rows, static_batch if rows in cut else None):
                raise InvalidInput(_said(model, node, whole[places]))


def _picks(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield what a node reads, or writes, rows of, with what says which."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not isinstance(node.args[0], fx.Node):
        return
    rows = node.args[0]
    given: dict[str, Any] = {a.name: node.args[i] for i, a in enumerate(schema.arguments) if i < len(node.args)}
    given.update(node.kwargs)
    indices, index = given.get("indices"), given.get("index")
    if isinstance(indices, list | tuple) and indices and isinstance(indices[0], fx.Node):
        yield rows, indices[0]
    if isinstance(index, fx.Node) and given.get("dim") == 0:
        yield rows, index


def _along_batch(rows: fx.Node, batch: int | None) -> bool:
    """Whether the first dimension of a value is the batch: one that changes, or a fixed one as long."""
    shape = getattr(rows.meta.get("val"), "shape", ())
    return bool(shape) and (isinstance(shape[0], torch.SymInt) or shape[0] == batch)


def _said(model: TrainingModel, node: fx.Node, name: str) -> str:
    path = module_path(node)
    where = f"the module {path!r}" if path else "the model itself"
    return (
        f"{model.name}: {where} takes rows of the batch ({kind_of([node])}) at places that the input {name!r} names, "
        "which goes whole to each micro-batch, as the edges of a batch of graphs would: cut along the batch, other "
        "rows are there. Say by split= how each of these inputs is cut ({name or position: a function of (value, k, "
        "n)}, whole graphs with their edges numbered anew), or give graphs padded to one size, one a row"
    )
