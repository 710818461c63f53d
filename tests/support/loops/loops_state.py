"""Loops about what goes past autograd and the optimizer, and about state that survives a checkpoint."""

import math
import random

import torch
from torch import nn
from torch.nn import functional as F

from executor.state.checkpoint_index import INDEX
from tests.support.loops.loop_models import WIDTH, Tower, mse, vectors
from tests.support.loops.user_loops import STEPS, Job, user_loop

OPT = {"optimizer": "adam"}
REPLICAS = {"num_stages": 1, "ranks": [(0, 1)]}
ONE_RANK_TWO_STAGES = {"num_stages": 3, "ranks": [(0,), (1,), (0,)]}


def zero(level: int) -> dict:
    from costmodel.stages.config import StageConfig

    return {**REPLICAS, "configs": [StageConfig(data=2, zero=level)]}


# Checkpoints: each loop saves after three steps, spoils what it holds, loads and goes on.


def resumes(job: Job, model: nn.Module, make_schedule=None, batches=None, loss=mse, other=None, **given) -> None:
    batches = batches or vectors(STEPS)
    job.start(model, loss, *batches[0], **given)
    schedule = make_schedule(job.optimizer) if make_schedule else None
    for number, (x, y) in enumerate(batches):
        if number == 3 and not job.is_plain:
            extra = None if schedule is None else {"schedule": schedule.state_dict()}
            job.pipe.save(job.folder, job.optimizer, extra)
            _spoil(job)
            assert job.pipe.load(job.folder, job.optimizer) == 3
            if schedule is not None:
                schedule.load_state_dict(job.pipe.extra["schedule"])
        job.step(x, y)
        if schedule is not None:
            schedule.step()
        job.note(job.optimizer.param_groups[0]["lr"])


def _spoil(job: Job) -> None:
    """Leave nothing as it was, so that only what was loaded can be right."""
    with torch.no_grad():
        for parameter in job.pipe.parameters():
            parameter.add_(1.0)
    for state in job.optimizer.state.values():
        for key, value in state.items():
            state[key] = value + 1 if isinstance(value, torch.Tensor) else None
    for group in job.optimizer.param_groups:
        for key, value in group.items():
            group[key] = value * 2 if type(value) is float else value


def adam(parameters):
    return torch.optim.Adam(parameters, 0.003)


@user_loop("checkpoint")
def resumes_a_cosine(job: Job) -> None:
    resumes(job, Tower(), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40), optimizer=adam, plan=OPT)


@user_loop("checkpoint")
def resumes_one_cycle_and_its_momentum(job: Job) -> None:
    make = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=20)  # noqa: E731
    resumes(job, Tower(), make, plan=OPT)


@user_loop("checkpoint")
def resumes_milestones_under_zero_1(job: Job) -> None:
    make = lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4])  # noqa: E731
    resumes(job, Tower(), make, optimizer=adam, plan={**zero(1), **OPT})


@user_loop("checkpoint")
def resumes_under_zero_3(job: Job) -> None:
    resumes(job, Tower(), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40), optimizer=adam,
            plan={**zero(3), **OPT})  # fmt: skip


@user_loop("checkpoint")
def resumes_a_sequence_of_schedules(job: Job) -> None:
    def make(optimizer):
        schedules = torch.optim.lr_scheduler
        warm = schedules.LinearLR(optimizer, 0.1, total_iters=2)
        return schedules.SequentialLR(optimizer, [warm, schedules.ExponentialLR(optimizer, 0.9)], [2])

    resumes(job, Tower(), make, plan=OPT)


@user_loop("checkpoint")
def resumes_an_optimizer_of_the_programs_own(job: Job) -> None:
    resumes(job, Tower(), optimizer=lambda p: torch.optim.NAdam(p, 0.003))


@user_loop("checkpoint")
def resumes_groups_of_other_rates(job: Job) -> None:
    def make(parameters):
        matrices, rest = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "lr": 0.01}], 0.003)

    resumes(job, Tower(), optimizer=make, plan=OPT)


@user_loop("checkpoint")
def resumes_adagrad(job: Job) -> None:
    resumes(job, Tower(), optimizer=lambda p: torch.optim.Adagrad(p, 0.01), plan={**zero(1), **OPT})


@user_loop("checkpoint")
def resumes_adafactor(job: Job) -> None:
    resumes(job, Tower(), optimizer=lambda p: torch.optim.Adafactor(p, 0.01), plan=OPT)


@user_loop("checkpoint")
def resumes_rprop_whose_branch_trains_later(job: Job) -> None:
    resumes(job, Detached(), optimizer=lambda p: torch.optim.Rprop(p, 0.001), plan={**REPLICAS, **OPT})


class Detached(Tower):
    """A branch that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return super().forward(x + self.side(x).detach())


@user_loop("checkpoint")
def resumes_a_branch_without_gradients(job: Job) -> None:
    resumes(job, Detached(), optimizer=adam, plan=OPT)


@user_loop("checkpoint")
def resumes_a_branch_without_gradients_on_replicas(job: Job) -> None:
    resumes(job, Detached(), optimizer=adam, plan={**REPLICAS, **OPT})


class Counting(torch.optim.SGD):
    """Keeps a number by parameter, and one in its groups, as Prodigy does."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = 0.05 / group["k"]
            for parameter in group["params"]:
                self.state[parameter]["seen"] = self.state[parameter].get("seen", 0) + 1
                if parameter.grad is not None:
                    parameter.grad.mul_(1.0 / self.state[parameter]["seen"])
        return super().step(closure)


@user_loop("checkpoint")
def resumes_numbers_by_parameter(job: Job) -> None:
    resumes(job, Tower(), optimizer=lambda p: Counting(p, 0.05, momentum=0.9), plan=OPT)


@user_loop("checkpoint", refused="'hidden'.*function|hidden.*function")
def refuses_to_save_a_function(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=OPT)
    for x, y in batches[:2]:
        job.step(x, y)
    if not job.is_plain:
        job.optimizer.param_groups[0]["hidden"] = math.sin if False else (lambda: 0)
        job.pipe.save(job.folder)


@user_loop("checkpoint")
def a_refused_save_ends_nothing(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=OPT)
    for number, (x, y) in enumerate(batches):
        job.step(x, y)
        if number == 2 and not job.is_plain:
            try:
                job.pipe.save(job.folder, extra={"odd": job})
            except Exception as error:
                assert "extra['odd'] is a Job" in str(error), error  # noqa: PT017
            job.pipe.save(job.folder, extra={"rng": random.getstate(), "tensor": torch.arange(3), 4: (1.5, math.inf)})
            job.pipe.load(job.folder)
            assert job.pipe.extra["rng"] == random.getstate()
            assert job.pipe.extra["tensor"].tolist() == [0, 1, 2]
            assert job.pipe.extra[4] == (1.5, math.inf)


@user_loop("checkpoint", refused="two checkpoints stand in one folder")
def refuses_a_mixture(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=OPT)
    if job.is_plain:
        job.step(*batches[0])
        return
    job.pipe.save(f"{job.folder}/old")
    job.step(*batches[0])
    job.pipe.save(f"{job.folder}/new")
    if job.rank == 1:
        from pathlib import Path

        old, new = (sorted(Path(f"{job.folder}/{name}").glob("*rank-1*"))[0] for name in ("old", "new"))
        new.write_bytes(old.read_bytes())
    job.state()  # both have come here
    job.pipe.load(f"{job.folder}/new")


@user_loop("checkpoint", refused="pickled")
def refuses_a_pickled_index(job: Job) -> None:
    from pathlib import Path

    job.start(Tower(), mse, *vectors(1)[0])
    if not job.is_plain:
        Path(f"{job.folder}/.metadata").write_bytes(b"cos\nsystem\n(S'touch " + job.folder.encode() + b"/ran'\ntR.")
        try:
            job.pipe.load(job.folder)
        finally:
            assert not Path(f"{job.folder}/ran").exists()
            assert not Path(f"{job.folder}/{INDEX}").exists()


@user_loop("checkpoint", refused=r"pipe\.state_dict\(\)")
def refuses_to_save_an_emptied_model(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0])
    job.step(*batches[0])
    if not job.is_plain:
        torch.save(job.model.state_dict(), f"{job.folder}/model.pt")


# Past autograd and the optimizer.


@user_loop("hooks")
def hooks_a_weight_under_split_backwards(job: Job) -> None:
    model, batches = Tower(), vectors(STEPS)
    for layer in model.layers:
        layer.up.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    job.start(model, mse, *batches[0], plan={"schedule": "zb-h1", **OPT})
    for x, y in batches:
        job.step(x, y)


@user_loop("hooks")
def hooks_behind_accumulation_late_under_split_backwards(job: Job) -> None:
    model, batches, seen = Tower(), vectors(STEPS), []
    job.start(model, mse, *batches[0], plan={"schedule": "zb-h1"})
    parameters = model.parameters() if job.is_plain else job.pipe.parameters()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(lambda p: (seen.append(1), p.grad.mul_(0.5))[0])
    for x, y in batches:
        job.step(x, y)
    assert seen


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(WIDTH, WIDTH), Tower(), nn.Linear(4, 4)
        self.again = nn.Linear(WIDTH, WIDTH)
        self.again.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.body(self.again(self.embed(x).tanh())))


class TiedEnds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, WIDTH), Tower(2), nn.Linear(4, WIDTH)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.middle(self.first(x[:, :4])))


@user_loop("hooks", refused="hook on its gradient, and the stages")
def refuses_a_hook_on_what_stages_share(job: Job) -> None:
    model = TiedEnds()
    x = torch.randn(8, WIDTH)
    model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    job.start(model, mse, x, torch.randn(8, WIDTH))
    job.step(x, torch.randn(8, WIDTH))


@user_loop("hooks", refused="hook on its gradient, and stage 0 divides it")
def refuses_a_hook_under_zero_3(job: Job) -> None:
    model, batches = Tower(), vectors(STEPS)
    model.head.weight.register_hook(lambda gradient: gradient * 2)
    job.start(model, mse, *batches[0], plan={**zero(3), **OPT})
    job.step(*batches[0])


@user_loop("optimizer")
def counts_its_steps(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], optimizer=lambda p: Counting(p, 0.05), plan={**ONE_RANK_TWO_STAGES, **OPT})
    for x, y in batches:
        job.step(x, y)


@user_loop("optimizer", refused="needs a closure")
def refuses_an_optimizer_that_computes_again(job: Job) -> None:
    batches = vectors(STEPS)
    if job.is_plain:
        job.start(Tower(), mse, *batches[0], plan=OPT)
        return
    job.start(Tower(), mse, *batches[0], optimizer=torch.optim.LBFGS, plan=OPT)
    job.step(*batches[0])


@user_loop("optimizer")
def counts_its_steps_under_zero_1(job: Job) -> None:
    from costmodel.stages.config import StageConfig

    batches, two = vectors(STEPS), StageConfig(data=2, zero=1)
    plan = {"num_stages": 2, "ranks": [(0, 1), (0, 1)], "configs": [two, two], **OPT}
    job.start(Tower(), mse, *batches[0], optimizer=lambda p: Counting(p, 0.05), plan=plan)
    for x, y in batches:
        job.step(x, y)


def _with_gaps() -> nn.Module:
    """A tower some of whose weights are views of larger tensors, or stand in other orders."""
    model = Tower()
    for layer in model.layers:
        wide = torch.zeros(32, 2 * WIDTH)
        wide[:, ::2] = layer.up.weight.detach()
        layer.up.weight = nn.Parameter(wide[:, ::2])
        layer.down.weight = nn.Parameter(layer.down.weight.detach().t().contiguous().t())
    return model


@user_loop("optimizer")
def parameters_with_gaps_under_zero_1(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(_with_gaps(), mse, *batches[0], optimizer=adam, plan={**zero(1), **OPT})
    for x, y in batches:
        job.step(x, y)


@user_loop("optimizer")
def parameters_with_gaps_on_replicas(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(_with_gaps(), mse, *batches[0], plan=REPLICAS)
    for x, y in batches:
        job.step(x, y)


@user_loop("optimizer")
def parameters_with_gaps_are_saved_and_loaded(job: Job) -> None:
    resumes(job, _with_gaps(), optimizer=adam, plan={**zero(1), **OPT})


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(20, WIDTH, sparse=True), Tower(2)

    def forward(self, ids):
        return self.body(self.table(ids).mean(1))


def ids_and_targets(num_steps: int) -> list:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randint(0, 20, (8, 3), generator=generator), torch.randn(8, 4, generator=generator))
            for _ in range(num_steps)]  # fmt: skip


@user_loop("sparse")
def sparse_gradients_in_one_stage(job: Job) -> None:
    batches = ids_and_targets(STEPS)
    job.start(Tables(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.1), plan=OPT)
    for x, y in batches:
        job.step(x, y)


@user_loop("sparse")
def sparse_gradients_under_split_backwards(job: Job) -> None:
    batches = ids_and_targets(STEPS)
    job.start(Tables(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.1), plan={"schedule": "zb-h1"})
    for x, y in batches:
        job.step(x, y)


@user_loop("sparse", refused="table.weight.* has sparse gradients")
def refuses_sparse_gradients_on_replicas(job: Job) -> None:
    batches = ids_and_targets(STEPS)
    job.start(Tables(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.1), plan=REPLICAS)
    for x, y in batches:
        job.step(x, y)


@user_loop("sparse", refused="table.weight.* has sparse gradients")
def refuses_to_clip_sparse_gradients(job: Job) -> None:
    batches = ids_and_targets(STEPS)
    given = {} if job.is_plain else {"max_norm": 1.0}
    job.start(Tables(), mse, *batches[0], optimizer=lambda p: torch.optim.SGD(p, 0.1), plan=OPT, **given)
    for x, y in batches:
        job.step(x, y)


@user_loop("sync", refused="SyncBatchNorm")
def refuses_a_synchronised_norm(job: Job) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8) if job.is_plain else nn.SyncBatchNorm(8), nn.ReLU(),
                          nn.Flatten(), nn.Linear(8 * 36, 5))  # fmt: skip
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))
    job.start(model, F.cross_entropy, x, y)
    job.step(x, y)


# What a step was, and steps that are not finite.


@user_loop("library")
def a_step_that_is_not_finite_is_skipped(job: Job) -> None:
    batches = vectors(STEPS)
    given = {} if job.is_plain else {"skip_nonfinite": True}
    job.start(Tower(), mse, *batches[0], optimizer=adam, plan=OPT, **given)
    for number, (x, y) in enumerate(batches):
        if number == 2:
            if not job.is_plain:
                bad = x.clone()
                bad[3, 0] = math.inf
                assert not math.isfinite(job.pipe.step(bad, y))
                assert job.pipe.last.skipped
            continue
        job.step(x, y)
        assert job.is_plain or not job.pipe.last.skipped


@user_loop("library")
def a_skipped_step_leaves_no_gradients_to_an_optimizer_of_the_programs_own(job: Job) -> None:
    batches = vectors(STEPS)
    given = {} if job.is_plain else {"skip_nonfinite": True}
    job.start(Tower(), mse, *batches[0], optimizer=adam, **given)
    for number, (x, y) in enumerate(batches):
        if number == 2 and not job.is_plain:
            job.pipe.step(x * math.inf, y)
            assert all(p.grad is None for p in job.pipe.parameters())
            job.optimizer.step()
        job.step(x, y)


@user_loop("library")
def the_norm_of_each_step_is_told(job: Job) -> None:
    batches = vectors(STEPS)
    given = {} if job.is_plain else {"gradient_norm": True}
    job.start(Tower(), mse, *batches[0], **given)
    for x, y in batches:
        loss = job.backward(x, y)
        if job.is_plain:
            job.note(float(nn.utils.clip_grad_norm_(job.model.parameters(), 1e9)))
        else:
            assert job.pipe.last.loss == loss
            job.note(job.pipe.last.gradient_norm)
        job.optimizer.step()
        job.optimizer.zero_grad()


def _plain_short(job: Job, x, y, loss, size: int = 2) -> float:
    """Train on the micro-batches that are there."""
    count, total = len(x) // size, 0.0
    for number in range(count):
        rows = slice(number * size, (number + 1) * size)
        value = loss(job.model(x[rows]), y[rows]) / count
        value.backward()
        total += float(value.detach())
    return total


def _short(job: Job, model: nn.Module, **given) -> None:
    batches = vectors(STEPS)
    job.start(model, mse, *batches[0], **given)
    for number, (x, y) in enumerate(batches):
        if number % 3 != 2:
            job.step(x, y)
            continue
        x, y = x[:6], y[:6]
        loss = _plain_short(job, x, y, mse) if job.is_plain else job.pipe.step(x, y, short=True)
        if job.is_plain or not given.get("plan", {}).get("optimizer"):
            job.optimizer.step()
            job.optimizer.zero_grad()
        job.note(loss)


@user_loop("library")
def a_short_last_batch(job: Job) -> None:
    _short(job, Tower(), plan=OPT)


@user_loop("library")
def a_short_last_batch_on_replicas(job: Job) -> None:
    _short(job, Tower(), optimizer=adam, plan=REPLICAS)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.body, self.last = nn.BatchNorm1d(WIDTH), Tower(2), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.last(self.body(self.norm(x)))


@user_loop("library")
def a_short_last_batch_moves_averages_by_what_is_there(job: Job) -> None:
    _short(job, Normed(), plan=OPT)


@user_loop("library", refused="does not fill actions of 2 samples")
def refuses_a_short_batch_that_fills_no_microbatch(job: Job) -> None:
    x, y = vectors(1)[0]
    job.start(Tower(), mse, x, y)
    job.step(x, y)
    if not job.is_plain:
        job.pipe.step(x[:5], y[:5], short=True)


@user_loop("library", refused="short=True")
def refuses_a_short_batch_that_nobody_announced(job: Job) -> None:
    x, y = vectors(1)[0]
    job.start(Tower(), mse, x, y)
    job.step(x, y)
    if not job.is_plain:
        job.pipe.step(x[:6], y[:6])


def _right(output, target):
    hits = output.argmax(-1) == target.argmax(-1)
    return hits.sum(), hits.numel()


@user_loop("library")
def metrics_of_an_evaluation(job: Job) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=REPLICAS)
    for number, (x, y) in enumerate(batches):
        job.step(x, y)
        if number == 4:
            x, y = x[:4], y[:4]
        if job.is_plain:
            job.model.eval()
            with torch.no_grad():
                output = job.model(x)
            job.model.train()
            job.note(float(mse(output, y)))
            job.note(float(_right(output, y)[0]) / len(y))
        else:
            found = job.pipe.evaluate(x, y, metrics={"right": _right}, short=number == 4)
            assert found.keys() == {"loss", "right"}
            job.note(found["loss"])
            job.note(found["right"])


@user_loop("library", refused="metric 'bad' failed")
def refuses_a_metric_that_fails(job: Job) -> None:
    x, y = vectors(1)[0]
    job.start(Tower(), mse, x, y)
    job.step(x, y)
    if not job.is_plain:
        job.pipe.evaluate(x, y, metrics={"bad": lambda output, target: output.mean()})


@user_loop("library")
def the_first_step_tells_of_a_loss_that_does_not_separate(job: Job) -> None:
    import contextlib
    import io

    said, batches = io.StringIO(), vectors(STEPS)
    job.start(Tower(), lambda output, target: (output - target).square().sum() * 1e-2, *batches[0])
    with contextlib.redirect_stderr(said):
        for x, y in batches:
            job.step(x, y)
    assert job.rank != 1 or said.getvalue().count("does not separate") == 1, said.getvalue()
