"""What operators of a captured model do for one sample, as far as that says how they divide (`costmodel.model.work`).

Pairs of linear layers divide by columns and rows, what lies between with them, attention by its heads; all else is
done by each rank, or for its share of a sequence. Leaves out models without pairs: nothing of them divides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.pairs import ATTENTION, LINEAR, LinearPair, pairs_of
from costmodel.capture.shapes import TensorInfo
from costmodel.model.graph import LOSS, OperatorGraph
from costmodel.model.work import Work

Infos = Mapping[str, tuple[TensorInfo, ...]]


def with_works(graph: OperatorGraph, captured: Capture) -> OperatorGraph:
    """Return a captured model's graph whose operators say what they do; as it is where nothing divides."""
    pairs = pairs_of(captured)
    if not pairs:
        return graph
    size, splits = captured.static_batch or 2, _splits(pairs)
    infos = captured.describe(size)
    works = {name: _work(group, infos, size, splits.get(name, "sequence")) for name, group in captured.groups.items()}
    works |= {pair.row: replace(works[pair.row], parts=pair.parts) for pair in pairs}
    works[LOSS] = Work("loss", "sequence", 1, outer=1)
    return replace(graph, operators=tuple(replace(o, work=works.get(o.name)) for o in graph.operators))


def _splits(pairs: Sequence[LinearPair]) -> dict[str, str]:
    rows = {pair.row: "row" for pair in pairs}
    columns = {name: "column" for pair in pairs for name in pair.columns}
    return {name: "inner" for pair in pairs for name in pair.inner} | rows | columns


def _work(group: CapturedOperator, infos: Infos, size: int, split: str) -> Work:
    node = group.nodes[-1]
    shapes = [info.shape for info in infos.get(node.name, ())]
    outer = shapes[0][-1] if shapes and shapes[0] else 1
    tokens = max(1, prod(shapes[0]) // outer // size) if shapes and outer else 1
    if node.target is LINEAR and len(group.nodes) == 1:
        inner = infos[node.all_input_nodes[0].name][0].shape[-1]
        return Work("matmul", split, tokens, inner=inner, outer=outer)
    if node.target is ATTENTION and split == "inner" and len(group.nodes) == 1:
        (*_, heads, queries, width), (*_, kv_heads, keys, _), (*_, out) = (
            infos[source.name][0].shape for source in node.all_input_nodes[:3]
        )
        causal = bool(node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5]))
        return Work(
            "attention", split, queries, inner=width, outer=out, heads=heads, kv_heads=kv_heads, context=keys,
            causal=causal,
        )  # fmt: skip
    if group.kind.startswith("embedding"):
        return Work("embedding", split, tokens, inner=1, outer=outer)
    return Work("elementwise", split, tokens, outer=outer)
