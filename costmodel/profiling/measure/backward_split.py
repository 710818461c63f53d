"""Which share of an operator's backward is weight gradient: each measured alone.

Only the ratio of the two is used; isolated times themselves are too low (`docs/profiler.md`). On a device it is that
of time in kernels: between two points of a stream short kernels take the host's time. Operators of the same targets
and shapes are measured once. Leaves out operators with nothing to split.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import fx

from costmodel.capture.batches import take
from costmodel.capture.capture import Capture, CapturedOperator
from costmodel.capture.clock import Clock, Mark
from costmodel.capture.parts import extract
from costmodel.capture.shapes import TensorInfo
from costmodel.model.graph import LOSS
from costmodel.profiling.measure.marks import device_spans

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
    shares = {LOSS: 0.0}
    key_of: dict[str, Any] = {}
    distinct: dict[Any, CapturedOperator] = {}
    for group in capture.groups.values():
        has_weights = any(capture.parameter(name).requires_grad for name in group.parameters)
        passes_on = any(infos[source.name][0].requires_grad for source in _values(capture, group, infos))
        if not has_weights or not passes_on:
            shares[group.name] = float(has_weights)
            continue
        key_of[group.name] = key = signature(group, infos)
        distinct.setdefault(key, group)
    with device_spans(clock) as marks:
        runs = {key: _run(capture, group, infos, raw, marks, repeats) for key, group in distinct.items()}
        marks.wait()
    known = {key: _weight_share(marks, *both) for key, both in runs.items()}
    shares.update({name: known[key] for name, key in key_of.items()})
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


Runs = list[tuple[Mark, Mark]]
"""The marks round each timed run, the first of which counts for nothing."""


def _run(
    capture: Capture, group: CapturedOperator, infos: Infos, raw: Mapping[str, Any], clock: Clock, repeats: int
) -> tuple[Runs, Runs]:
    """Compute the operator's input and weight gradients apart, on random values of the right shapes."""
    sends = [flow.name for flow in capture.flows.values() if flow.producer == group.name]
    part = extract(capture, [group.name], sends)
    device = capture.parameter(group.parameters[0]).device
    values: dict[str, Any] = {name: _like(infos[name][0], device) for name in part.receives}
    values.update({name: raw[name] for name in part.raw_inputs})
    weights = [p for p in map(capture.parameter, part.parameters) if p.requires_grad]
    inputs = [v for v in values.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    results = [v for v in part(values).values() if v.requires_grad]
    gradients = [torch.ones_like(value) for value in results]

    def run(wanted: list[Any]) -> tuple[Mark, Mark]:
        start = clock.mark()
        torch.autograd.grad(results, wanted, gradients, retain_graph=True, allow_unused=True)
        return start, clock.mark()

    return [run(inputs) for _ in range(repeats + 1)], [run(weights) for _ in range(repeats + 1)]


def median_ns(clock: Clock, runs: Runs) -> float:
    """Return the median span of all runs but the first, which warms up."""
    return median(clock.span_ns(start, end) for start, end in runs[1:])


def _weight_share(clock: Clock, inputs: Runs, weights: Runs) -> float:
    input_ns, weight_ns = median_ns(clock, inputs), median_ns(clock, weights)
    return weight_ns / max(1.0, input_ns + weight_ns)


def _like(info: TensorInfo, device: torch.device) -> torch.Tensor:
    if not info.dtype.is_floating_point:
        return torch.zeros(info.shape, dtype=info.dtype, device=device)
    value = torch.randn(info.shape, device=device).to(info.dtype)
    return value.requires_grad_(info.requires_grad)
