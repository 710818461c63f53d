"""Stages that call the user's modules give the numbers of the flat program, to the bit, whatever the cuts.

Models of many kinds, each cut at the borders of its layers and anywhere; whole backward and split. Layers are what a
list of the model holds, and what stands beside such lists.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import torch

from costmodel.capture.batches import take
from costmodel.capture.capture import Capture, capture
from costmodel.capture.models import load_model
from costmodel.capture.parts import Part, extract
from costmodel.capture.split import split_part
from costmodel.capture.split_calls import Queue, run_in_turn
from costmodel.model.graph import LOSS

HUGGING_FACE = ("llama", "gpt2", "t5", "clip_vision", "mixtral", "bert", "llava")
OWN = ("normed", "detector", "unet", "experts", "dropped", "sequence_first")
MODELS = (
    "zoo:gpt:small", "zoo:mmt:small", "zoo:uno:small", "zoo:llama3:small", "zoo:t5:small", "zoo:resnet50:small",
    "zoo:unet3d:small", "zoo:moe:small", "zoo:vlm:small", "zoo:dlrm:small",
    *(f"tests.support.hugging_face_models:{name}" for name in HUGGING_FACE),
    *(f"tests.support.training_models:{name}" for name in OWN),
)  # fmt: skip
MOST_STAGES = 5


def failures(num_cases: int) -> list[str]:
    """Return a line for each cut whose loss or gradients differ; cases go round the models."""
    return [line for case in range(num_cases) for line in of_case(case)]


def of_case(case: int) -> Iterator[str]:
    """Yield what differs for one model and cut."""
    name = MODELS[case % len(MODELS)]
    captured = captured_model(name)
    rng = Random(case)
    stages = random_stages(captured, rng, at_layers=case // len(MODELS) % 2 == 0)
    expected = numbers(parts_of(captured, stages, with_modules=False))
    parts = parts_of(captured, stages, with_modules=True)
    for kind, found in (("whole", numbers(parts)), ("split", numbers(parts, Queue()))):
        different = [key for key in expected if not _same(expected[key], found.get(key))]
        if different or found.keys() != expected.keys():
            yield f"case {case}, {name}, {kind} backward, {len(stages)} stages: {', '.join(different[:5])} differ"


_captured: dict[str, Capture] = {}


def captured_model(name: str) -> Capture:
    """Return a model of two samples, captured once."""
    if name not in _captured:
        torch.manual_seed(0)
        _captured[name] = capture(take(load_model(name), 2))
    return _captured[name]


def random_stages(captured: Capture, rng: Random, *, at_layers: bool) -> list[list[str]]:
    """Cut the operators, in their order, anywhere or where a layer begins."""
    operators = list(captured.operators)
    places = range(1, len(operators))
    if at_layers:
        of = layer_of(captured)
        places = [i for i in places if of.get(operators[i], "") != of.get(operators[i - 1], "")]
    cuts = sorted(rng.sample(list(places), min(len(places), rng.randrange(MOST_STAGES))))
    return [operators[a:b] for a, b in zip([0, *cuts], [*cuts, len(operators)], strict=True)]


def layer_of(captured: Capture) -> dict[str, str]:
    """Return the layer of each operator: the innermost module that no number stands behind in its path."""
    found = {}
    for name, group in captured.groups.items():
        words = group.module.split(".")
        numbers = [i for i, word in enumerate(words) if word.isdigit()]
        found[name] = ".".join(words[: numbers[0] + 1] if numbers else words)
    return found


def parts_of(captured: Capture, stages: Sequence[Sequence[str]], *, with_modules: bool) -> list[Part]:
    """Return the stages as parts that hand on what later ones read."""
    of = {name: i for i, stage in enumerate(stages) for name in stage}
    return [
        extract(
            captured,
            stage,
            [f.name for f in captured.flows.values() if of[f.producer] == i and any(of[c] != i for c in f.consumers)],
            with_modules=with_modules,
        )
        for i, stage in enumerate(stages)
    ]


def numbers(parts: Sequence[Part], queue: Queue | None = None) -> dict[str, Any]:
    """Return loss and gradients of a step, weight halves last where there is a queue; buffers stay as they were."""
    model = parts[0].capture.model
    buffers = [(buffer, buffer.clone()) for buffer in model.module.buffers()]
    model.module.zero_grad()
    torch.manual_seed(1)
    values: dict[str, Any] = dict(parts[0].capture.bind(model))
    for part in parts:
        values |= (part if queue is None else split_part(part, queue))(values, model.targets)
    values[LOSS].backward()
    run_in_turn(queue.drain() if queue else deque())
    for buffer, value in buffers:
        buffer.data.copy_(value)
    found = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    return {LOSS: values[LOSS].detach(), **found}


def share_in_modules(part: Part) -> tuple[int, int]:
    """Return how many of a part's operators lie in modules that it calls, and how many it has, without the loss."""
    inside = {node for call in part.calls for node in call.nodes}
    nodes = {node.name for node in part.module.graph.nodes}
    own = [group for group in part.capture.groups.values() if inside.intersection(group.nodes) or group.name in nodes]
    return sum(inside.issuperset(group.nodes) for group in own), len(own)


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)
