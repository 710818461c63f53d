"""Random models and random legal plans of them, the same on every rank from one seed."""

import itertools
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.capture.batches import TrainingModel
from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.model.graph import OperatorGraph
from costmodel.stages.costs import Costs
from planner.plan import Plan
from simulator.schedule import Schedule
from tests.support.plans_by_hand import plan_by_hand
from tests.support.random_stage_graphs import random_schedule

NUM_MODELS = 6
WIDTH = 6


class RandomGraph(nn.Module):
    """Nodes of random kinds over random earlier ones; two raw inputs; what nobody reads is summed at the end."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.nodes = []
        for i in range(rng.randint(7, 12)):
            kind = rng.choice(("linear", "linear", "tanh", "product", "inplace", "frozen", "norm", "shared"))
            before = [rng.randrange(-2, i) for _ in range(2)]
            self.nodes.append((kind, *before))
            width = nn.LayerNorm(WIDTH) if kind == "norm" else nn.Linear(WIDTH, WIDTH)
            self.add_module(f"n{i}", width)
            if kind == "frozen":
                width.requires_grad_(False)
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        values = {-1: first, -2: second}
        for i, (kind, a, b) in enumerate(self.nodes):
            layer = getattr(self, f"n{i}")
            if kind == "tanh":
                values[i] = values[a].tanh() + values[b]
            elif kind == "product":
                values[i] = layer(values[a]) * values[b]
            elif kind == "inplace":
                values[i] = layer(values[a] + values[b]).relu_()
            elif kind == "shared":
                values[i] = self.shared(values[a])
            else:
                values[i] = layer(values[a])
        unread = set(values) - {p for _, a, b in self.nodes for p in (a, b)}
        return self.shared(torch.stack([values[i] for i in sorted(unread)]).mean(0))


def random_model(seed: int, batch: int) -> TrainingModel:
    torch.manual_seed(seed)
    model = RandomGraph(Random(seed))
    torch.manual_seed(100 + seed)
    inputs = (torch.randn(batch, WIDTH), torch.randn(batch, WIDTH))

    def loss(out: Tensor) -> Any:
        if seed % 3:
            return out.square().mean()
        return out.square().sum(), (out.detach() > 0).sum() + len(out)

    return TrainingModel(f"random{seed}", model, inputs, {}, None, False, loss, {}, batch)


@cache
def captured_random(seed: int) -> Capture:
    return capture(random_model(seed, 4))


def random_extension(rng: Random, graph: OperatorGraph) -> list[str]:
    """A random topological order of the operators."""
    waiting = {i: len(p) for i, p in enumerate(graph.predecessors)}
    order = []
    while waiting:
        chosen = rng.choice([i for i, count in waiting.items() if count == 0])
        del waiting[chosen]
        order.append(graph.operators[chosen].name)
        for successor in graph.successors[chosen]:
            waiting[successor] -= 1
    return order


def random_real_plan(seed: int, num_ranks: int) -> Plan:
    """A random plan of a random model: cuts, placement, replicas, multiples, order, split backwards."""
    rng = Random(seed)
    source = captured_random(seed % NUM_MODELS)
    order = random_extension(rng, operator_graph(source, (2,)))
    num_stages = rng.randint(num_ranks, min(len(order), 7))
    bounds = [0, *sorted(rng.sample(range(1, len(order)), num_stages - 1)), len(order)]
    groups = [order[a:b] for a, b in itertools.pairwise(bounds)]
    num_microbatches = rng.choice((2, 4, 6))
    ranks: list[tuple[int, ...]] = []
    while {r for row in ranks for r in row} != set(range(num_ranks)):
        ranks = [tuple(rng.sample(range(num_ranks), rng.choice((1, 1, 1, 2, 3)))) for _ in groups]
    multiples = []
    for row in ranks:
        fitting = [k for k in (1, 2, 3) if num_microbatches % k == 0 and num_microbatches // k >= len(row)]
        multiples.append(rng.choice(fitting or [1]))
    ranks = [row[: max(1, num_microbatches // k)] for row, k in zip(ranks, multiples, strict=True)]
    if {r for row in ranks for r in row} != set(range(num_ranks)):
        return random_real_plan(seed + 1000, num_ranks)
    split = frozenset(s for s in range(num_stages) if rng.random() < 0.4)

    def schedule(costs: Costs, count: int) -> Schedule:
        return random_schedule(rng, costs, count, split)

    return plan_by_hand(
        source,
        groups,
        ranks=ranks,
        multiples=multiples,
        num_microbatches=num_microbatches,
        schedule=schedule,
        relay=rng.random() < 0.3,
    )
