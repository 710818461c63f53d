"""Loops about what a forward writes: codebooks, counters, averages; in stages, under recompute, among replicas."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from costmodel.stages.config import StageConfig
from tests.support.loops.loop_models import WIDTH, Block, Tower, mse, vectors
from tests.support.loops.loops_captured import train
from tests.support.loops.user_loops import STEPS, Job, user_loop

REPLICAS: dict[str, Any] = {"num_stages": 1, "ranks": [(0, 1)]}
RECOMPUTE: dict[str, Any] = {"configs": [StageConfig(recompute="full")] * 2}


class Codebook(nn.Module):
    """Reads a buffer, then moves it under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 8), nn.Linear(8, 4)
        self.register_buffer("code", torch.randn(6, 8) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encode(x)
        index = torch.cdist(z, self.code).argmin(1)
        near = self.code[index]
        if self.training:
            with torch.no_grad():
                hits = F.one_hot(index, 6).to(z.dtype)
                self.code.mul_(0.5).add_((hits.t() @ z) / (hits.sum(0)[:, None] + 1), alpha=0.5)
        return self.decode(z + (near - z).detach())


@user_loop("buffers")
def moves_a_codebook(job: Job) -> None:
    train(job, Codebook())


@user_loop("buffers")
def moves_a_codebook_cut_early(job: Job) -> None:
    train(job, Codebook(), plan={"cuts": [0.3]})


@user_loop("buffers")
def moves_a_codebook_cut_late(job: Job) -> None:
    train(job, Codebook(), plan={"cuts": [0.8]})


@user_loop("buffers")
def moves_a_codebook_and_recomputes(job: Job) -> None:
    train(job, Codebook(), plan=RECOMPUTE)


@user_loop("buffers", refused="writes 'code' and reads it, too")
def moves_a_codebook_among_replicas(job: Job) -> None:
    train(job, Codebook(), plan=REPLICAS)


class Scaling(Tower):
    """Divides by a running scale that autograd keeps: the next micro-batch moves it before this one's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers[0](x)
        with torch.no_grad():
            self.scale.mul_(0.9).add_(h.abs().mean(0), alpha=0.1)
        return self.head(self.layers[3](self.layers[2](self.layers[1](h / self.scale))))


@user_loop("buffers")
def divides_by_a_running_scale(job: Job) -> None:
    train(job, Scaling())


@user_loop("buffers")
def divides_by_a_running_scale_and_recomputes(job: Job) -> None:
    train(job, Scaling(), plan=RECOMPUTE)


class Routed(Block):
    """Counts in a float buffer what its router chose."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        if self.training:
            with torch.no_grad():
                self.seen.add_((weights > 0.25).float().sum(0))
        return super().forward(x) * weights.amax(-1, keepdim=True)


@user_loop("buffers")
def counts_choices(job: Job) -> None:
    train(job, Tower(4, Routed))


@user_loop("buffers")
def counts_choices_among_replicas(job: Job) -> None:
    train(job, Tower(4, Routed), plan=REPLICAS)


@user_loop("buffers")
def counts_choices_and_recomputes(job: Job) -> None:
    train(job, Tower(4, Routed), plan=RECOMPUTE)


class Ranging(Tower):
    """Keeps the largest activation that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        with torch.no_grad():
            self.largest.copy_(torch.maximum(self.largest, out.abs().amax()))
        return out


@user_loop("buffers")
def keeps_the_largest(job: Job) -> None:
    train(job, Ranging())


@user_loop("buffers", refused="writes 'largest'")
def keeps_the_largest_among_replicas(job: Job) -> None:
    train(job, Ranging(), plan=REPLICAS)


class Reassigning(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


@user_loop("buffers", refused="puts another tensor in place of the buffer 'mean'")
def puts_buffers_in_place_of_others(job: Job) -> None:
    train(job, Reassigning())


class SharedNorm(nn.Module):
    """One batch norm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.last(self.norm(self.second(x))).relu())


@user_loop("buffers")
def normalises_twice_by_one_norm(job: Job) -> None:
    train(job, SharedNorm())


@user_loop("buffers")
def normalises_and_recomputes(job: Job) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    train(job, model, plan=RECOMPUTE)


class Bounded(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(12, WIDTH, max_norm=0.5), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 12, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(ids))))


def _tokens(job: Job, model: nn.Module, **options: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 12, (STEPS, 8, 5), generator=generator)
    job.start(model, _cross_entropy, rows[0], rows[0], **options)
    for ids in rows:
        job.step(ids, ids)


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


@user_loop("buffers")
def bounds_its_embedding(job: Job) -> None:
    _tokens(job, Bounded())


@user_loop("buffers")
def bounds_its_embedding_and_recomputes(job: Job) -> None:
    _tokens(job, Bounded(), plan=RECOMPUTE)


@user_loop("buffers", refused="writes 'embed.weight'")
def bounds_its_embedding_among_replicas(job: Job) -> None:
    _tokens(job, Bounded(), plan=REPLICAS)


@user_loop("buffers")
def evaluates_a_codebook_between_steps(job: Job) -> None:
    batches = vectors(STEPS)
    model = Codebook()
    job.start(model, mse, *batches[0])
    for x, y in batches:
        job.step(x, y)
        if job.pipe is not None:
            job.note(job.pipe.evaluate(x, y))
        else:
            model.eval()
            with torch.no_grad():
                job.note(float(mse(model(x), y)))
            model.train()
