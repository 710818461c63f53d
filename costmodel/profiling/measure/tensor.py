"""What linear layers and attention cost on one of t ranks that share them (tensor parallelism).

Each distinct operator is measured alone, whole and at its shard shapes, and the ratio is taken to the
operator's time in context: alone it is too fast in both (`docs/profiler.md`). A linear layer is cut by its
outputs (``column``) or its inputs (``row``), attention by its heads (``heads``). Leaves out the collectives,
which links price, and operators other than these.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import fx

from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.clock import Clock
from costmodel.capture.kernel_attention import ATTENTION
from costmodel.capture.pairs import LINEAR
from costmodel.capture.shapes import TensorInfo
from costmodel.model.profile import OperatorTimes
from costmodel.profiling.journal import Journal
from costmodel.profiling.measure.backward_split import Infos, Runs, median_ns
from costmodel.profiling.measure.blocks import signatures
from costmodel.profiling.measure.marks import device_spans

Shape = tuple[int, ...]


def shard_times(
    captured: Capture,
    sizes: tuple[int, ...],
    degrees: tuple[int, ...],
    times_of: Mapping[str, OperatorTimes],
    clock: Clock,
    repeats: int,
    journal: Journal,
) -> dict[str, dict[str, list[list[int]]]]:
    """Return ``{operator: {"2/column": [forward, input, weight ns, each one entry a size], ...}}``.

    Parameters
    ----------
    degrees : tuple of int
        Numbers of ranks; a shape that they do not divide is left out.
    times_of : mapping
        Times in context of whole operators, by name.
    """
    found: dict[str, dict[str, list[list[int]]]] = {}
    for place, size in enumerate(sizes):
        at_size = captured.at(size)
        infos, alike = at_size.describe(size), signatures(at_size, size)
        for name, group in at_size.groups.items():
            if _node_of(group) is None:
                continue
            measure = partial(_ratios, at_size, group, infos, degrees, clock, repeats)
            ratios = journal.item(f"tensor/{size}/{alike[name]}", measure)
            times = times_of[name]
            whole = times.forward_ns[place], times.backward_input_ns[place], times.backward_weight_ns[place]
            for cut, row in ratios.items():
                lists = found.setdefault(name, {}).setdefault(cut, [[], [], []])
                for column, ns, ratio in zip(lists, whole, row, strict=True):
                    column.append(round(ns * ratio))
    return found


def degrees_without_shards(found: Mapping[str, Mapping[str, object]], degrees: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of ranks at which `shard_times` has measured nothing."""
    seen = {int(cut.partition("/")[0]) for cuts in found.values() for cut in cuts}
    return tuple(degree for degree in degrees if degree not in seen)


def _node_of(group: CapturedOperator) -> fx.Node | None:
    """Return the linear or attention call of an operator that is nothing else."""
    nodes = [node for node in group.nodes if node.target in (LINEAR, ATTENTION)]
    return nodes[0] if len(nodes) == len(group.nodes) == 1 else None


def _ratios(
    captured: Capture, group: CapturedOperator, infos: Infos, degrees: tuple[int, ...], clock: Clock, repeats: int
) -> dict[str, list[float]]:
    """Return, for each cut, forward, input and weight time against the whole operator's."""
    node = _node_of(group)
    assert node is not None  # noqa: S101 - asked by the caller
    device = next(captured.model.module.parameters()).device
    shapes = [infos[source.name][0] for source in node.all_input_nodes]
    whole = [info.shape for info in shapes]
    wanted = {f"{d}/{cut}": cut_shapes for d in degrees for cut, cut_shapes in _shards(node, whole, d).items()}
    with device_spans(clock) as marks:
        base = _run(node, shapes, whole, device, marks, repeats)
        runs = {cut: _run(node, shapes, sharded, device, marks, repeats) for cut, sharded in wanted.items()}
        marks.wait()

    def times(three: list[Runs]) -> list[float]:
        return [median_ns(marks, one) if one else 0.0 for one in three]

    return {
        cut: [a / b if b else 0.0 for a, b in zip(times(run), times(base), strict=True)] for cut, run in runs.items()
    }


def _shards(node: fx.Node, shapes: list[Shape], degree: int) -> dict[str, list[Shape]]:
    """Return the shapes of one shard's inputs for each way to cut."""
    if degree == 1:
        return {}
    if node.target is ATTENTION:
        heads = [shape[-3] for shape in shapes[:3]]
        if any(count % degree for count in heads):
            return {}
        cut = [(*s[:-3], s[-3] // degree if s[-3] > 1 else 1, *s[-2:]) for s in shapes[:3]]
        return {"heads": [*cut, *(_heads_of_mask(s, heads[0], degree) for s in shapes[3:])]}
    (*rows, inside), (outside, _), *bias = shapes
    found = {}
    if outside % degree == 0:
        part = outside // degree
        found["column"] = [(*rows, inside), (part, inside), *((part,) for _ in bias)]
    if inside % degree == 0:
        found["row"] = [(*rows, inside // degree), (outside, inside // degree), *((outside,) for _ in bias)]
    return found


def _heads_of_mask(shape: Shape, heads: int, degree: int) -> Shape:
    return tuple(n // degree if i == len(shape) - 3 and n == heads else n for i, n in enumerate(shape))


def _run(
    node: fx.Node, infos: list[TensorInfo], shapes: list[Shape], device: torch.device, clock: Clock, repeats: int
) -> list[Runs]:
    """Run forward, gradient of the first input(s) and gradient of the weights; none where there is nothing to do."""
    values = {
        source: torch.randn(shape, device=device).to(info.dtype).requires_grad_(info.requires_grad)
        for source, info, shape in zip(node.all_input_nodes, infos, shapes, strict=True)
    }
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    wanted = [value for value in values.values() if value.requires_grad]
    weights = [v for s, v in values.items() if s.op == "get_attr" and v.requires_grad]
    inputs = [value for value in wanted if all(value is not weight for weight in weights)]

    def runs(call: Any) -> Runs:
        found = []
        for _ in range(repeats + 1):
            start = clock.mark()
            call()
            found.append((start, clock.mark()))
        return found

    forward = runs(lambda: target(*args, **kwargs))
    out = target(*args, **kwargs)
    gradient = torch.ones_like(out)

    def backward(tensors: list[torch.Tensor]) -> Runs:
        if not tensors:
            return []
        return runs(lambda: torch.autograd.grad(out, tensors, gradient, retain_graph=True))

    return [forward, backward(inputs), backward(weights)]
