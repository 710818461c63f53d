"""What lanes really hold, asked once: what crosses the borders of divided stages, and gradients of what is left whole.

Before the first step each stage runs one forward of zeros, in order, and tells the shapes of what it sends, which may
be parts of a sequence; so kernels are loaded, too. Buffers are left as they were. Leaves out lanes of different number
that would have to put parts together: they are refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from costmodel.errors import DoesNotMatch
from costmodel.model.graph import LOSS
from executor.communication.wiring import Wire, Wiring
from executor.context import RankContext
from executor.model.users_loss import loss_left_alone
from executor.stages.stage import Stage
from planner.plan import REPLICATE

Told = dict[tuple[int, str], tuple[tuple[int, ...], str]]
"""Shapes and types of what a rank sends, by stage and tensor."""


def negotiate_boundary_shapes(context: RankContext, wiring: Wiring, stages: Mapping[int, Stage]) -> Wiring:
    """Return the wiring with the shapes of one micro-batch as this rank sends and receives them; collective.

    Raises
    ------
    DoesNotMatch
        When lanes of different number send or get parts, or stages of divided ones take several micro-batches at once.
    """
    graph, lanes, rank, groups = wiring.graph, context.lanes, context.rank, context.groups
    if any(multiple > 1 for multiple in graph.multiples):
        raise DoesNotMatch("a plan of divided stages runs one micro-batch an action: plan with multiples of 1")
    told: list[Told] = [{} for _ in range(groups.size)]
    wires = dict(wiring.wires)
    for index in graph.order:
        own: Told = {}
        if index in stages:
            for source in graph.predecessors[index]:
                sender = lanes.sender(source, index, _first(context, wiring.wires[source, index]), rank)
                wires[source, index] = _as_sent(wires[source, index], told[sender])
            incoming = tuple(wires[source, index] for source in graph.predecessors[index])
            own = _sent(replace(stages[index], incoming=incoming), context.microbatches_of(index)[0], context.device)
        rows = groups.all_gather_bytes(json.dumps([[*key, *value] for key, value in own.items()]).encode())
        for known, row in zip(told, rows, strict=True):
            known |= {(stage, name): (tuple(shape), dtype) for stage, name, shape, dtype in json.loads(row)}
    for ends, wire in wiring.wires.items():
        _check_crossing(wire, told, [len(lanes.blocks[stage][0]) for stage in ends])
        if wire.source in stages:
            wires[ends] = _as_sent(wire, told[rank])
    return replace(wiring, wires=wires)


def _first(context: RankContext, wire: Wire) -> int:
    """Return the first micro-batch that a rank gets over an edge."""
    lead = context.lanes.lead_of(wire.target, context.rank)
    return next(k for k in sorted(wire.units) if context.lanes.graph.rank_of(wire.target, k) == lead)


def _sent(stage: Stage, first: int, device: torch.device) -> Told:
    """Run a forward of zeros; returns the shapes of what a stage sends."""
    if not stage.outgoing:
        return {}
    found = tried(replace(stage, part=replace(stage.part, has_loss=False)), first, device, torch.zeros)
    sent = {name: found[name] for wire in stage.outgoing for name in wire.names}
    return {(stage.index, name): (tuple(value.shape), str(value.dtype)) for name, value in sent.items()}


def tried(
    stage: Stage,
    first: int,
    device: torch.device,
    make: Callable[..., torch.Tensor],
    look: Callable[[], None] = lambda: None,
) -> dict[str, torch.Tensor]:
    """Run a forward without a trace on made-up values of what a stage receives; returns these and what it computes.

    `look` is called before buffers are put back.
    """
    kept = [(buffer, buffer.clone()) for buffer in stage.buffers]
    raw, targets = stage.inputs(first)
    values: dict[str, Any] = dict(raw)
    for wire in stage.incoming:
        for name, (shape, dtype) in zip(wire.names, wire.templates[1], strict=True):
            values[name] = (make if dtype.is_floating_point else torch.zeros)(shape, dtype=dtype).to(device)
    drawing = nullcontext() if stage.draws is None else stage.draws.of_microbatch(first)
    with torch.no_grad(), loss_left_alone(stage.part), drawing:
        found = stage.part(values, targets)
    look()
    for buffer, value in kept:
        buffer.data.copy_(value)
    return {**values, **found}


def outcome(stage: Stage, first: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return what a stage sends, and its loss, on numbers by chance, the same whenever and wherever it is asked."""
    generator = torch.Generator().manual_seed(0)

    def random(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    found = tried(stage, first, device, random)
    sent = {name: found[name] for wire in stage.outgoing for name in wire.names}
    return sent | ({LOSS: found[LOSS]} if stage.part.has_loss else {})


def check_outcome(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], place: str) -> None:
    """Refuse a division under which a stage computes something else: its code looks at sizes that are parts now.

    Raises
    ------
    DoesNotMatch
    """
    for name, whole in before.items():
        size = float(whole.double().abs().max()) if whole.numel() else 0.0
        found, near = after[name], (SAME_IN_SIXTEEN_BITS if whole.dtype.itemsize == 2 else SAME) * size
        if found.shape != whole.shape or not torch.allclose(found.double(), whole.double(), 0, near, equal_nan=True):
            raise DoesNotMatch(
                f"{place}: {name!r} is not what it was once the plan's tensor degree divides the linear layers: the "
                "model's code looks at their widths; give Pipeline parallelize=, or plan with --tensor 1"
            )


SAME, SAME_IN_SIXTEEN_BITS = 1e-4, 0.03
"""Part of the largest value by which a divided stage's may differ."""


def _as_sent(wire: Wire, told: Told) -> Wire:
    templates = []
    for name, (shape, dtype) in zip(wire.names, wire.templates[1], strict=True):
        templates.append((told.get((wire.source, name), (shape,))[0], dtype))
    return replace(wire, templates={1: tuple(templates)})


def _check_crossing(wire: Wire, told: list[Told], numbers: Sequence[int]) -> None:
    """Refuse another type than the plan's, parts that nobody joins, and a whole where the plan has parts.

    `numbers` are those of the lanes at both ends.
    """
    divided = wire.border == REPLICATE
    for name, (shape, dtype) in zip(wire.names, wire.templates[1], strict=True):
        sent = {row[wire.source, name] for row in told if (wire.source, name) in row}
        for other in sorted({found for _, found in sent} - {str(dtype)}):
            raise DoesNotMatch(
                f"{name!r} leaves stage {wire.source} as {other}, and the plan has {dtype}: profile and plan the model "
                "in that precision, or under autocast, and divide it without a policy of another"
            )
        parts = {found for found, _ in sent} - {tuple(shape)}
        divided = divided or bool(parts)
        if parts and numbers[0] != numbers[1]:
            raise DoesNotMatch(
                f"{name!r} leaves stage {wire.source} with the shape {list(parts.pop())} on {numbers[0]} lanes, and "
                f"stage {wire.target}, on {numbers[1]}, needs it whole, {list(shape)}: let parallelize= gather it"
            )
    if not divided:
        raise DoesNotMatch(
            f"the plan has {wire.border} as the border of the edge {wire.source} -> {wire.target}, and each lane of "
            f"stage {wire.source} sends the whole: let parallelize= leave sequences divided, or plan without "
            "--sequence-parallel"
        )


ALIKE = 0.05
"""Part of a gradient's norm by which lanes that compute the same may differ, in sixteen bits too."""


def check_lanes(context: RankContext, parameters: Mapping[int, Mapping[str, nn.Parameter]]) -> None:
    """Refuse stages whose lanes have other gradients of a parameter that is whole on each of them; collective.

    `parameters` are this rank's, by stage and name. Lanes would drift apart, each with its part of a sum.

    Raises
    ------
    DoesNotMatch
        On ranks of such a stage.
    """
    own: dict[int, dict[str, float]] = {stage: {} for stage in parameters}
    for stage, named in parameters.items():
        for name, parameter in named.items():
            if parameter.grad is not None and not isinstance(parameter, DTensor):
                own[stage][name] = float(parameter.grad.norm())
    rows = [json.loads(row) for row in context.groups.all_gather_bytes(json.dumps(own).encode())]
    for stage, norms in own.items():
        lead = rows[context.lanes.lead_of(stage, context.rank)][str(stage)]
        for name, norm in norms.items():
            if abs(norm - lead[name]) > ALIKE * max(norm, lead[name]):
                raise DoesNotMatch(
                    f"stage {stage}: parallelize= has left {name!r} whole, and its gradient has the norm {norm:.3g} "
                    f"on this lane and {lead[name]:.3g} on the first: where a sequence is divided, use SequenceParallel"
                )
