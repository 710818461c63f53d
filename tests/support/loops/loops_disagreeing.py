"""Loops in which one rank has another plan, code, option or batch than the other: all ranks must refuse it alike."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.support.loops.loop_models import Tower, mse, vectors
from tests.support.loops.user_loops import RANKS, REFUSALS, STEPS, Job, UserLoop, add_loop, sgd

Case = Callable[[Job, bool], None]


def _train(job: Job, model: nn.Module | None = None, loss: Any = mse, **options: Any) -> None:
    batches = vectors(STEPS)
    job.start(model or Tower(), loss, *batches[0], **options)
    for x, y in batches:
        job.step(x, y)


PLANS: dict[str, dict[str, Any]] = {
    "is_cut_elsewhere": {"cuts": [0.25]},
    "has_another_schedule": {"schedule": "gpipe"},
    "has_fewer_microbatches": {"num_microbatches": 2, "microbatch_size": 4},
    "recomputes": {"recompute": True},
    "has_replicas": {"num_stages": 1, "ranks": [(0, 1)]},
    "has_four_stages": {"num_stages": 4, "ranks": [(0,), (1,), (0,), (1,)]},
    "is_for_three_ranks": {"num_stages": 3},
    "splits_backwards": {"split": True},
    "puts_ranks_the_other_way_round": {"ranks": [(1,), (0,)]},
}
"""What the plan of one rank has."""


class _Scaled(Tower):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


class _WithTable(Tower):
    def __init__(self, table: list[float]) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.tensor(self.table).sum() * x)


class _Branching(Tower):
    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.branches and x.sum() > 0:
            x = x * 2
        return super().forward(x)


def _tower(change: Callable[[Tower], Any], other: bool) -> Tower:
    model = Tower()
    if other:
        change(model)
    return model


def _eps(model: Tower) -> None:
    model.layers[1].norm.eps = 1e-2  # type: ignore[union-attr]


def _freeze(model: Tower) -> None:
    model.layers[0].up.weight.requires_grad_(False)  # type: ignore[union-attr]


def _buffer(model: Tower) -> None:
    model.register_buffer("extra", torch.zeros(3))


def _doubled(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * mse(output, target)


CODE: dict[str, tuple[Case, str]] = {
    "scales_otherwise": (
        lambda job, other: _train(job, _Scaled(1.5 if other else 1.0)),
        "differs .* the program .first",
    ),
    "has_another_constant": (
        lambda job, other: _train(job, _WithTable([0.1, 0.2 if other else 0.3])),
        "differs .* the program .first",
    ),
    "has_one_block_more": (lambda job, other: _train(job, Tower(5 if other else 4)), "the plan is for the model"),
    "has_another_eps": (lambda job, other: _train(job, _tower(_eps, other)), "differs .* the program"),
    "freezes_a_weight": (lambda job, other: _train(job, _tower(_freeze, other)), "plan|parameters"),
    "has_a_buffer_more": (lambda job, other: _train(job, _tower(_buffer, other)), "the parameters"),
    "has_another_loss": (lambda job, other: _train(job, loss=_doubled if other else mse), "the loss"),
    "cannot_be_captured": (lambda job, other: _train(job, _Branching(other)), "cannot capture"),
    "casts": (
        lambda job, other: _train(job, **({"autocast": torch.bfloat16} if other and not job.is_plain else {})),
        "the inputs|autocast",
    ),
}


def _with_option(name: str, mine: Any, others: Any, job: Job, other: bool) -> None:
    given = {} if job.is_plain else {name: mine if other else others}
    _train(job, plan={"optimizer": "momentum"}, **given)


def _with_optimizer(make: Callable[[Any], Any], job: Job, other: bool) -> None:
    _train(job, plan={"optimizer": "momentum"}, optimizer=make if other else sgd)


def _broken(parameters: Any) -> torch.optim.Optimizer:
    raise KeyError("no such group")


SGD = torch.optim.SGD
OPTIONS: dict[str, tuple[Case, str]] = {
    "clips_otherwise": (partial(_with_option, "max_norm", 0.5, 1e6), "option max_norm"),
    "does_not_clip": (partial(_with_option, "max_norm", None, 1e6), "option max_norm"),
    "has_another_seed": (partial(_with_option, "seed", 1, 0), "option seed"),
    "has_another_timeout": (partial(_with_option, "timeout_s", 21.0, 20.0), "option timeout_s"),
    "emulates": (partial(_with_option, "emulate", True, False), "option emulate"),
    "has_another_rate": (partial(_with_optimizer, lambda p: SGD(p, 0.1, momentum=0.9)), "option lr of the optimizer"),
    "has_another_momentum": (partial(_with_optimizer, lambda p: SGD(p, 0.05, momentum=0.8)), "option momentum"),
    "decays": (partial(_with_optimizer, lambda p: SGD(p, 0.05, momentum=0.9, weight_decay=0.1)), "weight_decay"),
    "has_another_optimizer": (partial(_with_optimizer, lambda p: torch.optim.AdamW(p, 0.05)), "option optimizer"),
    "fails_to_make_its_optimizer": (partial(_with_optimizer, _broken), "no such group"),
    "has_no_optimizer": (partial(_with_option, "optimizer", None, sgd), "none is given"),
}


def _batches(change: Callable[[int, torch.Tensor, torch.Tensor], Any], job: Job, other: bool, **plan: Any) -> None:
    batches = vectors(STEPS)
    job.start(Tower(), mse, *batches[0], plan=plan)
    for number, (x, y) in enumerate(batches):
        job.step(*(change(number, x, y) if other else (x, y)))


def _shuffled(number: int, x: torch.Tensor, y: torch.Tensor) -> Any:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
    return x[order], y[order]


def _next_one(number: int, x: torch.Tensor, y: torch.Tensor) -> Any:
    return vectors(STEPS + 1)[number + 1]


REPLICAS = {"num_stages": 1, "ranks": [(0, 1)]}
BATCHES: dict[str, tuple[Case, str]] = {
    "shuffles_by_itself": (partial(_batches, _shuffled), "a step has one batch"),
    "shuffles_by_itself_among_replicas": (partial(_batches, _shuffled, **REPLICAS), "a step has one batch"),
    "shuffles_its_second_epoch": (
        partial(_batches, lambda number, x, y: _shuffled(number, x, y) if number > 3 else (x, y)),
        "a step has one batch",
    ),
    "is_one_batch_ahead": (partial(_batches, _next_one), "a step has one batch"),
    "skips_a_batch_later": (
        partial(_batches, lambda number, x, y: _next_one(number, x, y) if number > 3 else (x, y)),
        "a step has one batch",
    ),
    "has_other_targets": (partial(_batches, lambda number, x, y: (x, y.roll(1, 0))), "targets: rank 1 was given"),
    "adds_noise_of_its_own": (partial(_batches, lambda number, x, y: (x + 0.1, y)), "input 0: rank 1 was given"),
    "reads_its_half_twice": (
        partial(_batches, lambda number, x, y: (torch.cat([x[4:], x[4:]]), torch.cat([y[4:], y[4:]])), **REPLICAS),
        "a step has one batch",
    ),
}


def _plan_case(options: dict[str, Any], victim: int) -> Callable[[Job], None]:
    from tests.support.plans_by_hand import split_backwards, with_recompute

    made = {{"recompute": "schedule", "split": "schedule"}.get(key, key): value for key, value in options.items()}
    if "recompute" in options or "split" in options:
        made["schedule"] = with_recompute if "recompute" in options else split_backwards
    return lambda job: _train(job, plans={victim: made})


def _run(case: Case, victim: int, job: Job) -> None:
    case(job, job.rank == victim)


for _victim in (0, 1):
    for _name, _options in PLANS.items():
        _words = "differs from rank 0 in the plan|is for 3 ranks"
        add_loop(UserLoop(f"plan_of_rank_{_victim}_{_name}", RANKS, _plan_case(_options, _victim), _words))
    for _cases, _what in ((CODE, "code"), (OPTIONS, "option"), (BATCHES, "batch")):
        for _name, (_case, _words) in _cases.items():
            _codes = (1,) if "fails" in _name else REFUSALS
            _run_it = partial(_run, _case, _victim)
            add_loop(UserLoop(f"{_what}_of_rank_{_victim}_{_name}", RANKS, _run_it, _words, _codes))
