"""Loops about which gradients there are, and about what programs do with them between a step and their optimizer."""

import torch
from torch import nn

from tests.loop_models import WIDTH, Tower, mse, vectors
from tests.loops_state import ONE_RANK_TWO_STAGES, OPT, zero
from tests.user_loops import STEPS, Job, user_loop


class SideBranch(Tower):
    """A branch that begins in the first stage, and that a later stage detaches or does not."""

    def __init__(self, *, detaches: bool = True) -> None:
        super().__init__(2)
        self.detaches, self.side, self.deeper = detaches, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        side = self.deeper(self.side(x).tanh())
        found = super().forward(x)
        return found + side.detach() if self.detaches else (found, side)


def decaying(parameters) -> torch.optim.Optimizer:
    """Moves what has a gradient of zero, and leaves alone what has none."""
    return torch.optim.AdamW(parameters, 0.01, weight_decay=0.5)


def main_alone(output, targets):
    return mse(output[0], targets)


def _trains(job: Job, model: nn.Module, loss=mse, **given) -> None:
    batches = vectors(STEPS)
    job.start(model, loss, *batches[0], optimizer=decaying, **given)
    for x, y in batches:
        job.step(x, y)


@user_loop("gradients")
def a_later_stage_detaches_a_branch(job: Job) -> None:
    _trains(job, SideBranch())


@user_loop("gradients")
def a_later_stage_detaches_a_branch_under_split_backwards(job: Job) -> None:
    _trains(job, SideBranch(), plan={"schedule": "zb-h1", **OPT})


@user_loop("gradients")
def a_stage_of_the_same_rank_detaches_a_branch(job: Job) -> None:
    _trains(job, SideBranch(), plan={**ONE_RANK_TWO_STAGES, **OPT})


def _divided(level: int) -> dict:
    from costmodel.stages.config import StageConfig

    two = StageConfig(data=2, zero=level)
    return {"num_stages": 2, "ranks": [(0, 1), (0, 1)], "configs": [two, two], **OPT}


@user_loop("gradients")
def a_later_stage_detaches_a_branch_under_zero_1(job: Job) -> None:
    _trains(job, SideBranch(), plan=_divided(1))


@user_loop("gradients")
def a_later_stage_detaches_a_branch_under_zero_3(job: Job) -> None:
    _trains(job, SideBranch(), plan={**zero(3), **OPT})


@user_loop("gradients")
def a_later_stage_detaches_a_branch_under_zero_3_of_two_stages(job: Job) -> None:
    _trains(job, SideBranch(), plan=_divided(3))


@user_loop("gradients")
def a_loss_leaves_an_output_out(job: Job) -> None:
    _trains(job, SideBranch(detaches=False), main_alone, plan=OPT)


@user_loop("gradients")
def a_loss_leaves_an_output_out_on_replicas(job: Job) -> None:
    _trains(job, SideBranch(detaches=False), main_alone, plan=_divided(1))


@user_loop("gradients", refused="let the loss use the same outputs in each step")
def refuses_a_loss_that_uses_another_output_now_and_then(job: Job) -> None:
    used = [0]
    batches = vectors(STEPS)
    job.start(SideBranch(detaches=False), lambda output, targets: mse(output[used[0]], targets), *batches[0])
    for number, (x, y) in enumerate(batches):
        used[0] = int(number > 2)
        job.step(x, y)


# What stands in .grad between two steps.


@user_loop("gradients")
def clears_gradients_every_other_step(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    for number, (x, y) in enumerate(batches):
        job.note(job.backward(x, y))
        job.optimizer.step()
        if number % 2:
            job.optimizer.zero_grad()


@user_loop("gradients")
def sets_gradients_to_zeros(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(SideBranch(), mse, *batches[0], optimizer=decaying)
    for x, y in batches:
        job.note(job.backward(x, y))
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=False)
