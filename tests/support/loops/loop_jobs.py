"""What ranks do in the tests of training loops: real loops around a pipeline, and the same in one process."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from costmodel.capture.batches import split_batch
from costmodel.capture.models import load_model
from executor import Pipeline
from executor.observe.check import compare
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

RATE, EVERY = 0.02, 10


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not."""
    decays, stays = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": stays, "weight_decay": 0.0}], RATE)


def warm_cosine(step: int) -> float:
    return min((step + 1) / 5, 0.5 + 0.5 * math.cos(math.pi * step / 60))


def job(
    model: str,
    num_steps: int,
    plans: Sequence[dict[str, Any]],
    folder: str,
    size: int,
) -> tuple[list[float], list[float]]:
    """Train under several plans in turn, each going on from the checkpoint of the last; returns losses, evaluations."""
    losses: list[float] = []
    evaluations = []
    for number, options in enumerate(plans):
        plan = jobs.make_plan(model, optimizer="adam", **options)
        batches = jobs.batches(model, size, num_steps)
        source = load_model(f"tests.support.training_models:{model}", size)
        with Pipeline(plan, source, optimizer=adamw, max_norm=0.5) as pipe:
            schedule = torch.optim.lr_scheduler.LambdaLR(pipe.optimizer, warm_cosine)
            first = pipe.load(f"{folder}/{number - 1}") if number else 0
            for _ in range(first):
                schedule.step()
            last = num_steps * (number + 1) // len(plans)
            for step in range(first, last):
                batch = batches[step]
                losses.append(pipe.step(batch.kwargs or batch.args, batch.targets))
                schedule.step()
                if step % EVERY == 0:
                    evaluations.append(pipe.evaluate(batches[0].kwargs or batches[0].args, batches[0].targets))
            pipe.save(f"{folder}/{number}")
    return losses, evaluations


CHAIN = [
    {"num_stages": 4, "num_microbatches": 4},
    {
        "num_stages": 3,
        "ranks": [(0, 1), (2,), (3, 1)],
        "configs": [{"data": 2, "zero": 1}, {}, {"data": 2, "zero": 1}],
        "num_microbatches": 4,
        "schedule": "split",
    },
]
"""Plans under which a job runs in turn."""

JOBS = ["exact_gpt", "two_towers", "exact_llama"]


def job_failures(ranks: RankPool, model: str, num_steps: int, folder: str) -> list[str]:
    """Return the ranks of a job whose losses or evaluations are not those of one process, to 1e-9."""
    found = ranks.run(job, model=model, num_steps=num_steps, plans=CHAIN, folder=folder, size=8)
    expected = plain_job(model, num_steps, size=8, count=4)
    failures = []
    for rank, own in enumerate(found):
        for mine, right in zip(own, expected, strict=True):
            if len(mine) != len(right) or any(abs(a - b) > 1e-9 * abs(b) for a, b in zip(mine, right, strict=True)):
                failures.append(f"{model}, rank {rank}: {mine} for {right}")
    return failures


def all_job_failures(num_steps: int) -> list[str]:
    """Run the jobs of all models for so many steps."""
    pool, failures = RankPool(4), []
    for model in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            failures += job_failures(pool, model, num_steps, folder)
    pool.close()
    return failures


def plain_job(model: str, num_steps: int, size: int, count: int) -> tuple[list[float], list[float]]:
    """The same loop in one process."""
    batches = jobs.batches(model, size, num_steps)
    module = load_model(f"tests.support.training_models:{model}", size).module
    optimizer = adamw(list(module.parameters()))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_cosine)
    losses, evaluations = [], []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        losses.append(jobs.accumulate(module, batch, count))
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if step % EVERY == 0:
            module.eval()
            with torch.no_grad():
                first = batches[0]
                evaluations.append(float(first.evaluate(module(*first.args, **first.kwargs), first.targets)[0]))
            module.train()
    return losses, evaluations


def drops(model: str, num_steps: int, **options: Any) -> tuple[list[float], float, float]:
    """Train with dropout; returns losses, the first step's gradient error and an evaluation."""
    plan = jobs.make_plan(model, **options)
    batches = jobs.batches(model, plan.batch.global_size, num_steps)
    losses, error = [], 0.0
    with Pipeline(plan, load_model(f"tests.support.training_models:{model}", plan.batch.global_size), seed=5) as pipe:
        optimizer = torch.optim.SGD(pipe.parameters(), 0.3)
        for step, batch in enumerate(batches):
            losses.append(pipe.step(batch.args))
            if step == 0:
                reference = replace(batch, module=load_model(f"tests.support.training_models:{model}", 4).module)
                error = compare(pipe.worker, reference if pipe.rank == 0 else None).max_gradient_error
            optimizer.step()
            torch.rand(3 + pipe.rank)  # what the program draws by itself changes nothing
        evaluation = pipe.evaluate(batches[0].args) if model == "dropped_plainly" else 0.0
    return losses, error, evaluation


def accumulated(model: str, calls: int, **options: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Gradients after several calls that accumulate, twice; of this rank's parameters."""
    plan = jobs.make_plan(model, **options)
    batches = jobs.batches(model, plan.batch.global_size, calls)
    with Pipeline(plan, batches[0]) as pipe:
        for _ in range(2):
            losses = [
                pipe.step(batch.kwargs or batch.args, batch.targets, accumulate=number < calls - 1)
                for number, batch in enumerate(batches)
            ]
        return {name: p.grad.clone() for name, p in pipe.named_parameters()}, losses


def in_two_calls(model: str, size: int, **options: Any) -> list[float]:
    """Losses of three steps of two calls each; without OPT all of them accumulate, and zero_grad clears."""
    plan = jobs.make_plan(model, **options)
    batches = jobs.batches(model, size, 6)
    opt = "optimizer" in options
    given = {"optimizer": adamw, "max_norm": 0.1} if opt else {}
    losses = []
    with Pipeline(plan, load_model(f"tests.support.training_models:{model}", size), **given) as pipe:
        optimizer = None if opt else adamw(list(pipe.parameters()))
        for number, batch in enumerate(batches):
            again = number % 2 == 0
            losses.append(pipe.step(batch.kwargs or batch.args, batch.targets, accumulate=again or not opt))
            if optimizer is not None and not again:
                pipe.clip_grad_norm_(0.1)
                optimizer.step()
                optimizer.zero_grad()
    return losses


def plain_in_two_calls(model: str, size: int, count: int) -> list[float]:
    """The same in one process, with a scalar loss."""
    batches = jobs.batches(model, size, 6)
    module = load_model(f"tests.support.training_models:{model}", size).module
    optimizer = adamw(list(module.parameters()))
    losses = []
    for number, batch in enumerate(batches):
        losses.append(jobs.accumulate(module, batch, count))
        if number % 2:
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def without_weight(**options: Any) -> tuple[float, float, float]:
    """Loss of a step, an evaluation and a step after it, of samples that weigh nothing and then of others."""
    plan = jobs.make_plan("masked", **options)
    batch = jobs.batches("masked", plan.batch.global_size, 1)[0]
    nothing = torch.full_like(batch.targets, -100)
    with Pipeline(plan, batch) as pipe:
        step, evaluation = pipe.step(batch.args, nothing), pipe.evaluate(batch.args, nothing)
        return step, evaluation, pipe.step(batch.args, batch.targets)


def averages(**options: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Buffers that this rank holds after steps and an evaluation, and that evaluation."""
    plan = jobs.make_plan("normed", **options)
    batches = jobs.batches("normed", plan.batch.global_size, 3)
    with Pipeline(plan, batches[0]) as pipe:
        for batch in batches:
            pipe.step(batch.args, batch.targets)
        loss = pipe.evaluate(batches[0].args, batches[0].targets)
        module = pipe.worker.capture.model.module
        return {name: b.clone() for name, b in module.named_buffers() if b.numel()}, loss


def inside_a_mesh(model: str, num_steps: int) -> tuple[list[float], int, int]:
    """Two pipelines of two ranks each inside a world of four, data parallel between them by the program itself."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    plan = jobs.make_plan(model, num_stages=2, num_microbatches=2)
    size = plan.batch.global_size
    copies, me = mesh["data"].get_group(), mesh["data"].get_local_rank()
    losses = []
    source = load_model(f"tests.support.training_models:{model}", size)
    with Pipeline(plan, source, group=mesh["pipe"]) as pipe:
        optimizer = torch.optim.Adam(pipe.parameters(), lr=0.01)
        for batch in jobs.batches(model, 2 * size, num_steps):
            half = split_batch(batch, me, 2)
            loss = torch.tensor(pipe.step(half.kwargs or half.args, half.targets))
            for parameter in pipe.parameters():
                dist.all_reduce(parameter.grad, group=copies)
                parameter.grad /= 2
            optimizer.step()
            dist.all_reduce(loss, group=copies)
            losses.append(float(loss) / 2)
        return losses, pipe.rank, pipe.num_ranks


def outcome(make: Callable[[], Any]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def on_meta(model: str, path: str | None, **options: Any) -> tuple[float, dict[str, int], list[str]]:
    """Start a model on meta; returns the gradient error, bytes held by name, and the names that this rank asked for."""
    plan = jobs.make_plan(model, **options)
    plain = jobs.whole_batch(model, plan)
    values, asked = dict([*plain.module.named_parameters(), *plain.module.named_buffers()]), []

    def value(name: str, like: torch.Tensor) -> torch.Tensor:
        asked.append(name)
        return values[name].detach().clone()

    with torch.device("meta"):
        empty = load_model(f"tests.support.training_models:{model}", plan.batch.global_size)
    with Pipeline(plan, empty, values=path or value) as pipe:
        pipe.step(plain.kwargs or plain.args, plain.targets)
        error = compare(pipe.worker, plain if pipe.rank == 0 else None).max_gradient_error
        held = {name: p.nbytes for name, p in empty.module.named_parameters() if not p.is_meta}
    return error, held, asked
