"""Which share of an operator's backward is weight gradient: each measured alone.

Only the ratio of the two is used; isolated times themselves are too low (`docs/profiler.md`). Operators
of the same targets and shapes are measured once. Leaves out operators with nothing to split.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import fx

from costmodel.capture.batches import take
from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.clock import Clock
from costmodel.capture.parts import extract
from costmodel.capture.shapes import TensorInfo
from costmodel.model.graph import LOSS

Infos = Mapping[str, tuple[TensorInfo, ...]]


def weight_shares(capture: Capture, microbatch_size: int, clock: Clock, repeats: int) -> dict[str, float]:
    """Return, for each operator, the share of its backward that computes weight gradients, 0 to 1.

    Parameters
    ----------
    microbatch_size : int
        Size at which the ratio is measured.
    repeats : int
        Timed runs of each distinct operator; the median counts.
    """
    infos = capture.describe(microbatch_size)
    raw = capture.bind(take(capture.model, microbatch_size))
    known: dict[Any, float] = {}
    shares = {LOSS: 0.0}
    for group in capture.groups.values():
        has_weights = any(capture.parameter(name).requires_grad for name in group.parameters)
        passes_on = any(infos[source.name][0].requires_grad for source in _values(capture, group, infos))
        if not has_weights or not passes_on:
            shares[group.name] = float(has_weights)
            continue
        key = signature(group, infos)
        if key not in known:
            known[key] = _measure(capture, group, infos, raw, clock, repeats)
        shares[group.name] = known[key]
    return shares


def _values(capture: Capture, group: CapturedOperator, infos: Infos) -> list[fx.Node]:
    """Return the tensors that a group reads from other operators."""
    sources = {source for node in group.nodes for source in node.all_input_nodes if source.op != "get_attr"}
    outside = sources - set(group.nodes) - capture.replicated
    return [source for source in outside if infos[source.name]]


def signature(group: CapturedOperator, infos: Infos) -> Any:
    """Return what two operators must have in common to cost the same."""
    place = {node: i for i, node in enumerate(group.nodes)}

    def stand_in(node: fx.Node) -> Any:
        return place.get(node, tuple((i.shape, i.dtype, i.requires_grad) for i in infos[node.name]))

    return str([(str(node.target), fx.map_arg((node.args, node.kwargs), stand_in)) for node in group.nodes])


def _measure(
    capture: Capture, group: CapturedOperator, infos: Infos, raw: Mapping[str, Any], clock: Clock, repeats: int
) -> float:
    """Time the operator's input and weight gradients apart, on random values of the right shapes."""
    sends = [flow.name for flow in capture.flows.values() if flow.producer == group.name]
    part = extract(capture, [group.name], sends)
    device = capture.parameter(group.parameters[0]).device
    values: dict[str, Any] = {name: _like(infos[name][0], device) for name in part.receives}
    values.update({name: raw[name] for name in part.raw_inputs})
    weights = [p for p in map(capture.parameter, part.parameters) if p.requires_grad]
    inputs = [v for v in values.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    results = [v for v in part(values).values() if v.requires_grad]
    gradients = [torch.ones_like(value) for value in results]

    def time_gradient(wanted: list[Any]) -> float:
        spans = []
        for _ in range(repeats + 1):
            clock.wait()
            start = clock.mark()
            torch.autograd.grad(results, wanted, gradients, retain_graph=True, allow_unused=True)
            end = clock.mark()
            clock.wait()
            spans.append(clock.span_ns(start, end))
        return median(spans[1:])

    input_ns, weight_ns = time_gradient(inputs), time_gradient(weights)
    return weight_ns / max(1.0, input_ns + weight_ns)


def _like(info: TensorInfo, device: torch.device) -> torch.Tensor:
    if not info.dtype.is_floating_point:
        return torch.zeros(info.shape, dtype=info.dtype, device=device)
    value = torch.randn(info.shape, device=device).to(info.dtype)
    return value.requires_grad_(info.requires_grad)
