"""Random numbers that do not know where they are drawn: seeded by (seed, step, micro-batch, operator).

Dropout gives the same masks under any cut and any number of replicas, and when a forward is run again. What draws in a
stage's part is called through `Draws`, which seeds the generators of host and device for each call; the program's own
states are put back behind the part. Operators of a library other than torch's own count as drawing. Leaves out
generators that a model brings along.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from costmodel.capture.draws import draws_numbers
from costmodel.capture.parts import Part
from executor.model.rewriting import rewritten


@dataclass(slots=True)
class Draws:
    """Seeds of one rank's draws.

    Attributes
    ----------
    seed : int
        The job's, the same on every rank.
    device : torch.device
    step : int
        Of the job.
    first : int
        The micro-batch that is at work, by its number in the batch.
    """

    seed: int
    device: torch.device
    step: int = 0
    first: int = 0

    @contextmanager
    def of_microbatch(self, first: int) -> Iterator[None]:
        """Draw for a micro-batch; afterwards the program's own generators are as before."""
        self.first = first
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            yield

    def seed_for(self, operator: str) -> None:
        """Seed the generators for one call of an operator."""
        words = f"{self.seed}/{self.step}/{self.first}/{operator}"
        number = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=7).digest(), "big")
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(number)


class _Drawing(nn.Module):
    """A call that draws."""

    def __init__(self, target: Callable[..., Any], operator: str, draws: Draws) -> None:
        super().__init__()
        self._target, self._operator, self._draws = target, operator, draws

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._draws.seed_for(self._operator)
        return self._target(*args, **kwargs)


def seeded_part(part: Part, draws: Draws) -> tuple[Part, bool]:
    """Return a part whose draws are seeded one by one, and whether there are any."""
    found = False

    def seed(module: fx.GraphModule, node: fx.Node, path: str) -> None:
        nonlocal found
        if not draws_numbers(node):
            return
        found = True
        name = f"drawing_{node.name}"
        module.add_submodule(name, _Drawing(node.target, path + node.name, draws))  # type: ignore[arg-type]
        with module.graph.inserting_before(node):
            call = module.graph.call_module(name, node.args, node.kwargs)
        call.meta = node.meta
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)

    changed = rewritten(part, seed)
    return (changed, True) if found else (part, False)
