"""Ways in which a training loop goes wrong, or might, on two ranks; each as a job may have it.

A rank ends with its losses or with one error. What is asked of all of them: the losses of a plain loop, or an error on
every rank, soon.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from executor import Pipeline
from tests.support.ranks import executor_jobs as jobs

NUM_RANKS, TIMEOUT_S, STEPS = 2, 3.0, 50
MODEL = "two_branch"
PLAN = {"num_stages": 2, "num_microbatches": 4}
AT = 3
"""The step at which something goes wrong."""


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


@cache
def plain_losses() -> list[float]:
    """Losses of a loop in one process."""
    return jobs.plain_losses(MODEL, STEPS, make=sgd, **PLAN)


class Job:
    """A loop on one rank, and the places at which a misuse takes hold of it."""

    def __init__(self, rank: int, victim: int, has_opt: bool = True, **options: Any) -> None:
        self.rank, self.victim, self.has_opt = rank, victim, has_opt
        self.plan = jobs.make_plan(MODEL, **PLAN, **({"optimizer": "momentum"} if has_opt else {}))
        self.batches = jobs.batches(MODEL, self.plan.batch.global_size, STEPS)
        self.model = self.batches[0].module
        given = {"optimizer": sgd} if has_opt else {}
        self.options = {"timeout_s": TIMEOUT_S, **given, **options}

    @property
    def is_victim(self) -> bool:
        return self.rank == self.victim or self.victim < 0

    def pipeline(self) -> Pipeline:
        first = self.batches[0]
        return Pipeline.from_plan(
            self.plan, self.model, first.loss, inputs=first.args, targets=first.targets, **self.options
        )

    def run(self, before: Callable[[Pipeline, int], Any] = lambda pipe, step: None) -> list[float]:
        with self.pipeline() as pipe:
            return self.loop(pipe, before)

    def loop(self, pipe: Pipeline, before: Callable[[Pipeline, int], Any] = lambda pipe, step: None) -> list[float]:
        optimizer = None if self.has_opt else sgd(list(pipe.parameters()))
        losses = []
        for step, batch in enumerate(self.batches):
            inputs, targets = before(pipe, step) or (batch.args, batch.targets)
            losses.append(pipe.step(inputs, targets))
            if optimizer is not None:
                optimizer.step()
        return losses

    def at(self, what: Callable[[Pipeline], Any]) -> list[float]:
        """Run a loop in which the victim does something before one of its steps."""
        return self.run(lambda pipe, step: what(pipe) if self.is_victim and step == AT else None)


def nothing(job: Job) -> list[float]:
    return job.run()


def stops_early_and_stands(job: Job) -> list[float]:
    with job.pipeline() as pipe:
        for batch in job.batches[: AT if job.is_victim else STEPS]:
            pipe.step(batch.args, batch.targets)
        time.sleep(60)
    return []


def closes_early(job: Job) -> list[float]:
    job.batches = job.batches[: AT if job.is_victim else STEPS]
    return job.run()


def returns_early_without_close(job: Job) -> list[float]:
    job.batches = job.batches[: AT if job.is_victim else STEPS]
    return job.loop(job.pipeline())


def _raise(error: BaseException) -> None:
    raise error


def raises_inside_the_block(job: Job) -> list[float]:
    return job.at(lambda pipe: _raise(RuntimeError("the user's own")))


def raises_without_a_block(job: Job) -> list[float]:
    pipe = job.pipeline()
    return job.loop(pipe, lambda _, step: _raise(ValueError("own")) if job.is_victim and step == AT else None)


def is_interrupted(job: Job) -> list[float]:
    return job.at(lambda pipe: _raise(KeyboardInterrupt()))


def skips_a_step(job: Job) -> list[float]:
    if job.is_victim:
        del job.batches[AT]
    return job.run()


def stands_still(job: Job) -> list[float]:
    return job.at(lambda pipe: time.sleep(60))


def fails_in_its_loss(job: Job) -> list[float]:
    loss, calls = job.batches[0].loss, []

    def failing(out: Any, targets: Any) -> Any:
        calls.append(out.shape)
        return _raise(ZeroDivisionError("in the loss")) if len(calls) > 30 else loss(out, targets)

    first = job.batches[0]
    with Pipeline.from_plan(
        job.plan, job.model, failing, inputs=first.args, targets=first.targets, **job.options
    ) as pipe:
        return job.loop(pipe)


def freezes(job: Job) -> list[float]:
    return job.at(lambda pipe: job.model.head.weight.requires_grad_(False) and None)


def unfreezes(job: Job) -> list[float]:
    return job.at(lambda pipe: [p.requires_grad_(not p.requires_grad) for p in job.model.stem.parameters()] and None)


def reshapes(job: Job) -> list[float]:
    def shorten(pipe: Pipeline) -> None:
        for parameter in pipe.parameters():
            parameter.data = parameter.data[:1]

    return job.at(shorten)


def brings_a_short_batch(job: Job) -> list[float]:
    batch = job.batches[AT]
    return job.at(lambda pipe: (tuple(t[:5] for t in batch.args), batch.targets[:5]))


def brings_a_longer_sequence(job: Job) -> list[float]:
    batch = job.batches[AT]
    return job.at(lambda pipe: (tuple(torch.cat([t, t], 1) for t in batch.args), batch.targets))


def brings_another_type(job: Job) -> list[float]:
    batch = job.batches[AT]
    return job.at(lambda pipe: (tuple(t.double() for t in batch.args), batch.targets))


def forgets_the_targets(job: Job) -> list[float]:
    return job.at(lambda pipe: (job.batches[AT].args, None))


def brings_only_what_it_needs(job: Job) -> list[float]:
    def needed(pipe: Pipeline, step: int) -> Any:
        batch, wanted = job.batches[step], pipe.inputs_needed
        return tuple(t if i in wanted else None for i, t in enumerate(batch.args)), batch.targets

    return job.run(needed)


def evaluates_alone(job: Job) -> list[float]:
    batch = job.batches[0]
    return job.at(lambda pipe: pipe.evaluate(batch.args, batch.targets) and None)


def saves_alone(job: Job) -> list[float]:
    return job.at(lambda pipe: pipe.state_dict() and None)


def steps_in_another_order(job: Job) -> list[float]:
    batch = job.batches[0]

    def before(pipe: Pipeline, step: int) -> None:
        if step == AT + job.is_victim:
            pipe.evaluate(batch.args, batch.targets)

    return job.run(before)


def clips_alone(job: Job) -> list[float]:
    job = Job(job.rank, job.victim, has_opt=False)
    return job.at(lambda pipe: pipe.clip_grad_norm_(1e9) and None)


def clips_behind_the_plans_optimizer(job: Job) -> list[float]:
    return job.at(lambda pipe: pipe.clip_grad_norm_(1.0) and None)


def clips_without_an_optimizer(job: Job) -> list[float]:
    return Job(job.rank, job.victim, has_opt=False, max_norm=1.0).run()


def gives_no_optimizer(job: Job) -> list[float]:
    del job.options["optimizer"]
    return job.run()


def gives_an_optimizer_to_a_plan_without(job: Job) -> list[float]:
    return Job(job.rank, job.victim, has_opt=False, optimizer=sgd).run()


def optimizes_half(job: Job) -> list[float]:
    job.options["optimizer"] = lambda parameters: sgd(parameters[::2])
    return job.run()


def optimizes_with_something_else(job: Job) -> list[float]:
    job.options["optimizer"] = lambda parameters: object()
    return job.run()


def optimizes_twice(job: Job) -> list[float]:
    with job.pipeline() as pipe:
        second = torch.optim.AdamW(pipe.parameters(), 0.1)
        return job.loop(pipe, lambda pipe, step: second.step())


def steps_its_own_optimizer(job: Job) -> list[float]:
    return Job(job.rank, job.victim, has_opt=False).run()


def made_its_optimizer_before(job: Job) -> list[float]:
    job = Job(job.rank, job.victim, has_opt=False)
    optimizer = sgd(list(job.model.parameters()))
    with job.pipeline() as pipe:
        losses = []
        for batch in job.batches:
            losses.append(pipe.step(batch.args, batch.targets))
            optimizer.step()
        return losses


def clears_gradients_and_seeds(job: Job) -> list[float]:
    def before(pipe: Pipeline, step: int) -> None:
        job.model.zero_grad()
        torch.manual_seed(0)

    return job.run(before)


def evaluates_now_and_then(job: Job) -> list[float]:
    batch = job.batches[0]
    return job.run(lambda pipe, step: pipe.evaluate(batch.args, batch.targets) * 0 or None if step % 7 == 0 else None)


def has_two_pipelines(job: Job) -> list[float]:
    other = Job(job.rank, job.victim)
    with job.pipeline() as pipe, other.pipeline() as second:
        return job.loop(pipe, lambda _, step: second.step() * 0 or None if step < 5 else None)


def crosses_two_pipelines(job: Job) -> list[float]:
    other = Job(job.rank, job.victim)
    with job.pipeline() as pipe, other.pipeline() as second:
        for one in (pipe, second) if job.is_victim else (second, pipe):
            one.step()
    return []


def gives_one_model_to_two(job: Job) -> list[float]:
    with job.pipeline() as pipe, job.pipeline():
        return job.loop(pipe)


def has_joined_a_world(job: Job) -> list[float]:
    dist.init_process_group("gloo")
    losses = job.run()
    dist.barrier()  # still the program's own
    dist.destroy_process_group()
    return losses


def gives_its_group(job: Job) -> list[float]:
    dist.init_process_group("gloo")
    job.options["group"] = dist.new_group([0, 1])
    losses = job.run()
    dist.destroy_process_group()
    return losses


def gives_a_group_of_one(job: Job) -> list[float]:
    dist.init_process_group("gloo")
    job.options["group"] = [dist.new_group([rank]) for rank in range(NUM_RANKS)][job.rank]
    return job.run()


def goes_on_after_close(job: Job) -> list[float]:
    with job.pipeline() as pipe:
        pipe.step()
    return [pipe.step()]


def never_closes(job: Job) -> list[float]:
    return job.loop(job.pipeline())


def schedules_its_rate(job: Job) -> list[float]:
    with job.pipeline() as pipe:
        schedule = torch.optim.lr_scheduler.LambdaLR(pipe.optimizer, lambda step: 1.0)
        return job.loop(pipe, lambda _, step: schedule.step())


ALL, ONE = (-1,), (0, 1)
MISUSES: dict[str, tuple[Callable[[Job], list[float]], tuple[int, ...], bool]] = {
    f.__name__: (f, victims, fine)
    for f, victims, fine in (
        (nothing, ALL, True), (stops_early_and_stands, ONE, False), (closes_early, ONE, False),
        (returns_early_without_close, ONE, False), (raises_inside_the_block, ONE, False),
        (raises_without_a_block, ONE, False), (is_interrupted, ONE, False), (skips_a_step, ONE, False),
        (stands_still, ONE, False), (fails_in_its_loss, (-1,), False), (freezes, (-1, 0, 1), False),
        (unfreezes, (-1, 0), False), (reshapes, ONE, False), (brings_a_short_batch, (-1, 0, 1), False),
        (brings_a_longer_sequence, (-1, 1), False), (brings_another_type, ALL, False),
        (forgets_the_targets, ALL, False), (brings_only_what_it_needs, ALL, True), (evaluates_alone, ONE, False),
        (saves_alone, ONE, False), (steps_in_another_order, (0,), False), (clips_alone, ONE, False),
        (clips_behind_the_plans_optimizer, ALL, False), (clips_without_an_optimizer, ALL, False),
        (gives_no_optimizer, ALL, False), (gives_an_optimizer_to_a_plan_without, ALL, False),
        (optimizes_half, ALL, False), (optimizes_with_something_else, ALL, False), (optimizes_twice, ALL, True),
        (steps_its_own_optimizer, ALL, True), (made_its_optimizer_before, ALL, True),
        (clears_gradients_and_seeds, ALL, True), (evaluates_now_and_then, ALL, True), (has_two_pipelines, ALL, True),
        (crosses_two_pipelines, (0,), False), (gives_one_model_to_two, ALL, False), (has_joined_a_world, ALL, True),
        (gives_its_group, ALL, True), (gives_a_group_of_one, ALL, False), (goes_on_after_close, ALL, False),
        (never_closes, ALL, True), (schedules_its_rate, ALL, True),
    )
}  # fmt: skip
"""Name -> the loop, on which ranks it goes wrong (-1: on all alike), and whether it is as good as a plain loop."""

CASES = [(name, victim) for name, (_, victims, _) in MISUSES.items() for victim in victims]
