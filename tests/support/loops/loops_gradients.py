"""Loops about which gradients there are, and about what programs do with them between a step and their optimizer."""

import contextlib
import io

import torch
from torch import nn

from tests.support.loops.loop_models import WIDTH, Tower, mse, vectors
from tests.support.loops.loops_state import ONE_RANK_TWO_STAGES, OPT, zero
from tests.support.loops.user_loops import STEPS, Job, user_loop


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
def a_step_that_replaces_gradients_says_so(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for x, y in batches:
            if job.is_plain:
                job.optimizer.zero_grad()
            job.note(job.backward(x, y))
            job.optimizer.step()
    assert job.is_plain or said.getvalue().count("replaces gradients") == (job.rank == 0)


@user_loop("gradients")
def sets_gradients_to_zeros(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(SideBranch(), mse, *batches[0], optimizer=decaying)
    for x, y in batches:
        job.note(job.backward(x, y))
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=False)


# What programs do with gradients and parameters between a step and their optimizer's.


def _clips(job: Job, clip, **given) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], **given)
    for x, y in batches:
        job.note(job.backward(x, y))
        clip(list(job.model.parameters() if job.is_plain else job.pipe.parameters()))
        job.optimizer.step()
        job.optimizer.zero_grad()


@user_loop("gradients", refused=r"take pipe\.clip_grad_norm_")
def refuses_torchs_norm_of_a_ranks_gradients(job: Job) -> None:
    _clips(job, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1))


@user_loop("gradients", refused=r"take pipe\.clip_grad_norm_")
def refuses_torchs_norm_in_a_hook_of_an_optimizer_under_zero_1(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=_divided(1))

    def clip(optimizer, *_):
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)

    job.optimizer.register_step_pre_hook(clip)
    for x, y in batches:
        job.step(x, y)


@user_loop("gradients")
def clips_each_parameter_by_itself(job: Job) -> None:
    _clips(job, lambda parameters: [nn.utils.clip_grad_norm_(p, 0.01) for p in parameters])


@user_loop("gradients")
def clips_replicas_by_torchs_norm(job: Job) -> None:
    from tests.support.loops.loops_state import REPLICAS

    _clips(job, lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1), plan=REPLICAS)


@user_loop("gradients")
def clips_values_and_scales(job: Job) -> None:
    def clip(parameters):
        nn.utils.clip_grad_value_(parameters, 0.01)
        for parameter in parameters:
            parameter.grad *= 3.0

    _clips(job, clip)


@user_loop("gradients", refused="filled from a vector of")
def refuses_a_vector_of_the_whole_model(job: Job) -> None:
    model, batches = Tower(), vectors(STEPS)
    vector = nn.utils.parameters_to_vector(model.parameters()).detach() * 0.5
    job.start(model, mse, *batches[0])
    job.step(*batches[0])
    nn.utils.vector_to_parameters(vector, model.parameters() if job.is_plain else job.pipe.parameters())
    job.step(*batches[1])


@user_loop("gradients")
def halves_a_vector_of_its_own_parameters(job: Job) -> None:
    model, batches = Tower(), vectors(STEPS)
    job.start(model, mse, *batches[0])
    for x, y in batches:
        job.step(x, y)
        own = list(model.parameters() if job.is_plain else job.pipe.parameters())
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(own).detach() * 0.5, own)


@user_loop("gradients", refused="option lr of the optimizer")
def refuses_an_optimizer_of_its_own_with_another_rate_on_rank_1(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.02 if job.rank == 1 else 0.01))
    job.step(*batches[0])
    if not job.is_plain:
        job.pipe.step(*batches[1])


@user_loop("gradients", refused=r"take pipe\.evaluate")
def refuses_a_call_of_the_model_that_it_gave(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    job.step(*batches[0])
    job.model(batches[0][0])


@user_loop("gradients", refused="the state holds no 'layers.0.up.weight', which rank 0 needs")
def refuses_a_state_that_lacks_something_on_all_ranks(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    job.step(*batches[0])
    state = Tower().state_dict()
    del state["layers.0.up.weight"]
    if not job.is_plain:
        job.pipe.load_state_dict(state)


@user_loop("gradients", refused="give every rank all of it")
def refuses_an_optimizers_state_that_rank_0_alone_has(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    job.step(*batches[0])
    if not job.is_plain:
        job.pipe.load_optimizer_state_dict(job.pipe.optimizer_state_dict(job.optimizer), job.optimizer)


@user_loop("gradients")
def what_a_checkpoint_leaves_out_is_told(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.05))
    for number, (x, y) in enumerate(batches):
        job.step(x, y)
        if number == 2 and not job.is_plain:
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                job.pipe.save(job.folder)
                job.pipe.save(job.folder, job.optimizer)
                job.pipe.load(job.folder)
            assert said.getvalue().count("no optimizer's state is saved") == (job.rank == 0)
            assert said.getvalue().count("(SGD) was not loaded") == (job.rank == 0)


@user_loop("gradients", refused="LBFGS.step needs a closure")
def refuses_a_search_along_a_ranks_parameters(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], optimizer=lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2))
    for x, y in batches:

        def closure(x=x, y=y):
            job.optimizer.zero_grad()
            return torch.tensor(job.backward(x, y))

        job.note(float(job.optimizer.step(closure)))
