"""Pieces of a captured model that are measured by themselves, on values made up for them.

A block is the operators of one repeated module (one decoder layer, say); blocks of equal operators and
shapes cost the same and are measured once. Parameters, inputs and targets that have no values get random
ones; whole numbers are rows of the embedding that they choose from, else 0. Leaves out the measuring
(`blockwise`), and what values do to time.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from costmodel.capture.batches import Split, TrainingModel, take
from costmodel.capture.capture import Capture, CapturedOperator, CapturedTensor
from costmodel.capture.export import FlatProgram
from costmodel.capture.parts import Part, extract
from costmodel.capture.shapes import fetch
from costmodel.errors import InvalidInput
from costmodel.model.graph import LOSS, OperatorGraph
from costmodel.profiling.measure.backward_split import Infos, signature

GIB = 2**30
_EMBEDDINGS = (
    torch.ops.aten.embedding.default,
    torch.ops.aten._embedding_bag.default,
    torch.ops.aten.embedding_bag.padding_idx,
)
_SAME_NUMBERS = frozenset({
    "view", "reshape", "flatten", "unsqueeze", "squeeze", "select", "slice", "to", "_to_copy", "clone", "contiguous",
    "transpose", "permute", "t", "expand", "detach", "alias",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """Operators measured together; `equivalence_key` is equal for blocks that cost the same."""

    operators: tuple[str, ...]
    equivalence_key: str


def signatures(captured: Capture, microbatch_size: int) -> dict[str, str]:
    """Return for each operator a digest of its kind, shapes and dtypes at a micro-batch size."""
    infos = captured.describe(microbatch_size)
    found = {name: _digest(signature(group, infos)) for name, group in captured.groups.items()}
    ends = [infos[leaf.name] for leaf in captured.outputs if isinstance(leaf, fx.Node)]
    shapes = [(i.shape, i.dtype) for row in ends for i in row]
    loss = captured.model.loss
    found[LOSS] = _digest((getattr(loss, "__name__", type(loss).__name__), shapes))
    return found


def split_into_blocks(
    graph: OperatorGraph, alike: Mapping[str, str], operators: Iterable[str], microbatch_size: int, limit_bytes: int = 0
) -> list[Block]:
    """Group operators by repeated module, finer where a block would not fit.

    Parameters
    ----------
    alike : mapping
        `signatures` at that size.
    limit_bytes : int
        What parameters with their gradients and saved values of a block may take; 0 for no limit.

    Raises
    ------
    InvalidInput
        When one operator alone does not fit.
    """
    found: list[list[str]] = []

    def needed(names: list[str]) -> int:
        chosen = [graph.operators[graph.index[name]] for name in names]
        parameters = {p for o in chosen for p in o.parameters}
        saved = {s.storage: s.size_bytes * (1 if s.fixed else microbatch_size) for o in chosen for s in o.saved}
        return 2 * sum(graph.parameter_index[p].size_bytes for p in parameters) + sum(saved.values())

    def divide(names: list[str], depth: int) -> None:
        if not limit_bytes or needed(names) <= limit_bytes:
            found.append(names)
        elif len(names) == 1:
            raise InvalidInput(
                f"operator {names[0]!r} alone needs {needed(names) / GIB:.3g} GiB with micro-batches of "
                f"{microbatch_size}, the limit is {limit_bytes / GIB:.3g} GiB; give a higher one or smaller sizes"
            )
        else:
            finer = _by_path(graph, names, depth) if depth < 8 else [[name] for name in names]
            for piece in finer:
                divide(piece, depth + 1)

    for names in _by_path(graph, list(operators), 0):
        divide(names, 1)
    return [Block(tuple(names), _digest([alike[name] for name in names])) for names in found]


def _by_path(graph: OperatorGraph, names: list[str], depth: int) -> list[list[str]]:
    """Group by module path up to its first number and `depth` steps more."""
    groups: dict[str, list[str]] = {}
    for name in names:
        steps = graph.operators[graph.index[name]].module.split(".")
        first = next((i for i, step in enumerate(steps) if step.isdecimal()), 0)
        groups.setdefault(name if name == LOSS else ".".join(steps[: first + 1 + depth]), []).append(name)
    return list(groups.values())


def make_runnable(captured: Capture, block: Block, microbatch_size: int, device: torch.device) -> Capture:
    """Return the block as a captured model of its own, with values, whose loss reads all that it hands on."""
    inside = set(block.operators)
    flows = [f for f in captured.flows.values() if f.producer in inside]
    sends = [f.name for f in flows if not inside.issuperset(f.consumers)]
    part = extract(captured, block.operators, sends)
    known: dict[int, Any] = {}
    targets = [str(node.target) for node in part.module.graph.find_nodes(op="get_attr")]
    values = {target: _real(getattr(part.module, target), device, known) for target in targets}
    _place(part.module.graph, device)
    module = fx.GraphModule(values, part.module.graph)
    model = _model(captured, part, module, microbatch_size, device)
    nodes = {node.name: node for node in module.graph.nodes}
    groups = {name: _group(captured.groups[name], nodes, module) for name in captured.groups if name in inside}
    owned = {node for group in groups.values() for node in group.nodes}
    free = frozenset(node for node in module.graph.nodes if node.op == "call_function" and node not in owned)
    outputs = tuple(module.graph.output_node().args[0])  # type: ignore[arg-type]
    out_spec = pytree.tree_flatten(tuple(outputs))[1]
    kept = {
        f.name: CapturedTensor(f.name, f.producer, tuple(c for c in f.consumers if c in inside) or (LOSS,))
        for f in flows
    }
    program = FlatProgram(module, out_spec, microbatch_size)
    return Capture(model, program, groups, kept, free, (*part.receives, *part.raw_inputs), outputs)


def _place(graph: fx.Graph, device: torch.device) -> None:
    """Let nodes that name `meta` as their device (position tables, say) make their values on this one."""

    def placed(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) and argument.type == "meta" else argument

    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = pytree.tree_map(placed, (node.args, node.kwargs))


def _model(
    captured: Capture, part: Part, module: fx.GraphModule, microbatch_size: int, device: torch.device
) -> TrainingModel:
    infos = captured.describe(microbatch_size)
    piece = take(captured.model, microbatch_size)
    raw, rows = captured.bind(piece), embedding_rows(captured.program.module.graph)
    values = [like(infos, name, device, rows.get(name, 0)) for name in part.receives]
    values += [_real(raw[name], device, {}, rows.get(name, 0)) for name in part.raw_inputs]
    whole: dict[str | int, Split] = dict.fromkeys(range(len(values)))  # of the micro-batch's size already
    targets = pytree.tree_map(lambda leaf: _real(leaf, device, {}), piece.targets)
    loss = _loss_of(captured, part, targets)
    return TrainingModel(
        captured.model.name,
        module,
        tuple(values),
        {},
        None,
        False,
        loss,
        whole,
        microbatch_size,
        captured.model.autocast,
    )


def _loss_of(captured: Capture, part: Part, targets: Any) -> Callable[[Any], torch.Tensor]:
    def loss(outputs: tuple[Any, ...]) -> torch.Tensor:
        # On the outputs' own device: a copy to the host would make the host wait in the middle of the step.
        device = next((value.device for value in _tensors(outputs)), torch.device("cpu"))
        total = torch.zeros((), device=device, requires_grad=True) * 1.0
        for value in outputs[: len(part.sends)]:
            if value.requires_grad:
                total = total + (value * 1.0).sum()
        if part.has_loss:
            own = pytree.tree_unflatten(list(outputs[len(part.sends) :]), captured.program.out_spec)
            total = captured.model.evaluate(own, targets)[0] + total
        return total

    return loss


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _group(group: CapturedOperator, nodes: Mapping[str, fx.Node], module: fx.GraphModule) -> CapturedOperator:
    own = tuple(nodes[node.name] for node in group.nodes)
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    reads = (getattr(module, str(s.target)) for n in own for s in n.all_input_nodes if s.op == "get_attr")
    names = dict.fromkeys(first[id(value)] for value in reads if id(value) in first)
    return CapturedOperator(group.name, group.kind, group.module, own, tuple(names))


def embedding_rows(graph: fx.Graph) -> dict[str, int]:
    """Return, by node, the rows of the smallest embedding that its values choose from."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.target not in _EMBEDDINGS:
            continue
        weight, index = node.args[:2]
        while isinstance(index, fx.Node):
            found[index.name] = min(found.get(index.name, sys.maxsize), int(weight.meta["val"].shape[0]))
            # the same numbers in another shape or dtype; what is computed from them may be any
            index = index.args[0] if _name(index) in _SAME_NUMBERS else None
    return found


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[-1] if schema is not None and node.args else ""


def _real(value: Any, device: torch.device, known: dict[int, Any], rows: int = 0) -> Any:
    """Return a tensor with values on the device, a region (autocast's, say) with such; what has some is moved there."""
    if isinstance(value, fx.GraphModule):
        return _real_region(value, device, known)
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) not in known:
        made = value.to(device) if not value.is_meta else _made_up(tuple(value.shape), value.dtype, device, rows)
        if isinstance(value, nn.Parameter):
            made = nn.Parameter(made.detach(), value.requires_grad)
        known[id(value)] = made
    return known[id(value)]


def _real_region(region: fx.GraphModule, device: torch.device, known: dict[int, Any]) -> fx.GraphModule:
    """Return a copy of a region's module that runs on the device; the captured one stays on meta."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(region.graph, {}))
    _place(graph, device)
    names = [str(node.target) for node in graph.find_nodes(op="get_attr")]
    return fx.GraphModule({name: _real(fetch(region, name), device, known) for name in names}, graph)


def _made_up(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, rows: int = 0) -> torch.Tensor:
    if rows and not dtype.is_floating_point:
        return torch.randint(rows, shape, device=device).to(dtype)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.randn(shape, device=device).mul_(0.02).to(dtype)


def like(infos: Infos, name: str, device: torch.device, rows: int = 0) -> torch.Tensor:
    """Return a made-up value of a tensor that flows, with a gradient where it has one; `rows`: `embedding_rows`."""
    info = infos[name][0]
    return _made_up(info.shape, info.dtype, device, rows).requires_grad_(info.requires_grad)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
