"""Loops about losses and the edges of a batch: what a loss reads and keeps, what it returns, how a batch is cut."""

from typing import Any

import torch
from torch import nn

from tests.support.loops.loop_models import WIDTH, Block, Tower, mse, vectors
from tests.support.loops.user_loops import MICROBATCHES, STEPS, Job, user_loop

REPLICAS = {"num_stages": 1, "ranks": [(0, 1)]}


def train(job: Job, model: nn.Module, loss: Any, change: Any = lambda step: None, batches: Any = None, **given) -> None:
    batches = batches or vectors(STEPS)
    job.start(model, loss, *batches[0], **given)
    for step, (x, y) in enumerate(batches):
        change(step)
        job.step(x, y)


def _penalized(model: nn.Module, strength: list[float]) -> Any:
    return lambda output, target: mse(output, target) + (strength[0] and strength[0] * model.up.weight.square().sum())


@user_loop("losses", refused="the loss reads 'up.weight'")
def penalizes_the_first_layer(job: Job) -> None:
    model = Widened()
    train(job, model, _penalized(model, [0.1]))


@user_loop("losses", refused="the loss reads 'up.weight'")
def penalizes_the_first_layer_later(job: Job) -> None:
    model, strength = Widened(), [0.0]
    train(job, model, _penalized(model, strength), lambda step: strength.__setitem__(0, 0.1 * (step > 2)))


@user_loop("losses", refused="the loss reads 'layers")
def penalizes_what_has_elements(job: Job) -> None:
    model = Widened()
    train(job, model, lambda o, t: mse(o, t) + sum(p.square().sum() for p in model.parameters() if p.numel()))


@user_loop("losses")
def penalizes_the_last_layer(job: Job) -> None:
    model = Widened()
    train(job, model, lambda o, t: mse(o, t) + 0.1 * model.head.weight.square().sum())


@user_loop("losses")
def penalizes_all_layers_of_replicas(job: Job) -> None:
    model = Widened()
    train(job, model, lambda o, t: mse(o, t) + sum(p.square().sum() for p in model.parameters()), plan=REPLICAS)


class Widened(Tower):
    """A layer before the blocks."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__(3, block)
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(self.up(x))


class Keeping(Block):
    """Keeps what it has computed."""

    def forward(self, x):
        self.size = (y := super().forward(x)).square().mean()
        return y


@user_loop("losses", refused=r"the loss reads size of the module 'layers\.0'")
def reads_what_a_block_of_another_stage_kept(job: Job) -> None:
    model = Widened(Keeping)
    train(job, model, lambda o, t: mse(o, t) + 0.1 * sum(layer.size for layer in model.layers))


@user_loop("losses")
def reads_what_a_block_of_its_stage_kept(job: Job) -> None:
    model = Widened(Keeping)
    train(job, model, lambda o, t: mse(o, t) + 0.1 * model.layers[2].size)


@user_loop("losses", refused="which has no values here")
def reads_what_a_hook_kept(job: Job) -> None:
    model, kept = Widened(), {}
    model.up.register_forward_hook(lambda module, given, output: kept.__setitem__("up", output))
    train(job, model, lambda o, t: mse(o, t) + 0.1 * kept["up"].square().mean())


class Normalized(nn.Module):
    """A loss over its own moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(()))
        self.calls = []

    def forward(self, output, target):
        self.calls.append(len(output))
        loss = mse(output, target)
        with torch.no_grad():
            self.average.lerp_(loss, 0.1)
        return loss / self.average


@user_loop("losses")
def moves_an_average_and_counts(job: Job) -> None:
    loss = Normalized()
    train(job, Widened(), loss)
    if job.rank:
        assert len(loss.calls) == STEPS * MICROBATCHES


@user_loop("losses", refused="the loss depends on what it changes itself .*average of Normalized")
def moves_an_average_among_replicas(job: Job) -> None:
    train(job, Widened(), Normalized(), plan=REPLICAS)


@user_loop("losses")
def logs_among_replicas(job: Job) -> None:
    seen: list[float] = []

    def loss(output, target):
        seen.append(float(found := mse(output, target)))
        return found

    train(job, Widened(), loss, plan=REPLICAS)
    assert len(seen) == STEPS * MICROBATCHES // (1 if job.is_plain else 2)


@user_loop("losses")
def anneals_a_loss(job: Job) -> None:
    scale = [1.0]
    train(job, Widened(), lambda o, t: scale[0] * mse(o, t), lambda step: scale.__setitem__(0, 1.0 + step))


class Weighing(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def forward(self, output, target):
        return mse(output, target) * torch.exp(-self.log) + self.log


def _weighed(job: Job, **given: Any) -> None:
    loss = Weighing()
    train(job, Widened(), loss, optimizer=lambda p: torch.optim.SGD([*p, loss.log], 0.05), **given)


@user_loop("losses")
def trains_a_parameter_of_the_loss(job: Job) -> None:
    _weighed(job)


@user_loop("losses", refused="the loss has parameters of its own")
def trains_a_parameter_of_the_loss_among_replicas(job: Job) -> None:
    _weighed(job, plan=REPLICAS)


def _hits(output, target):
    return ((output > 0) == (target > 0)).float()


@user_loop("losses", refused=r"taken for \(sum, weight\), and the second is no sum")
def returns_a_loss_and_an_accuracy(job: Job) -> None:
    train(job, Widened(), lambda o, t: (mse(o, t), _hits(o, t).mean() + 0.1), plan=REPLICAS)


@user_loop("losses", refused=r"taken for \(sum, weight\), and the first is no sum")
def returns_a_mean_and_a_count(job: Job) -> None:
    train(job, Widened(), lambda o, t: (mse(o, t), len(o)))


@user_loop("losses")
def returns_a_sum_over_a_mask_and_its_weight(job: Job) -> None:
    train(job, Widened(), lambda o, t: (((o - t).square() * (t > 0)).sum(), (t > 0).sum()))


@user_loop("losses", refused="the loss changes its targets in place")
def changes_targets_in_place(job: Job) -> None:
    train(job, Widened(), lambda o, t: mse(o, t.mul_(0.5)), batches=vectors(1) * STEPS)


@user_loop("losses", refused="the loss fails")
def fails_in_its_loss(job: Job) -> None:
    train(job, Widened(), mse if job.is_plain else lambda o, t: mse(o, t["y"]))


class Scaling(Tower):
    def forward(self, x):
        return super().forward(x.mul_(0.9))


@user_loop("losses", refused="the forward changes its input 'x' in place")
def changes_inputs_in_place(job: Job) -> None:
    train(job, Scaling(), mse)


@user_loop("losses", refused="targets has an object of type ndarray")
def gives_arrays(job: Job) -> None:
    batches = [(x, y if job.is_plain else y.numpy()) for x, y in vectors(STEPS)]
    train(job, Tower(), mse, batches=batches)


@user_loop("losses", refused="targets has a list of 8")
def gives_a_target_a_sample(job: Job) -> None:
    def loss(output, targets):
        return torch.stack([mse(*pair) for pair in zip(output, targets, strict=False)]).mean()

    batches = [(x, y if job.is_plain else [*y]) for x, y in vectors(STEPS)]
    train(job, Tower(), loss, batches=batches)
