"""Naming a value that a free search chose: the space shrinks to where its plan was, so nothing may get slower.

Held against the plan chosen, which may be up to 1 % slower than a less simple one that the name then leaves out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

from costmodel.stages.config import StageConfig
from planner.answer.decide import plan
from planner.plan import Plan
from planner.question.effort import Effort
from planner.question.problem import Problem
from tests.support.described_models import described
from tests.support.random_profiles import branches, random_profile, u_net, with_shared_storages

QUICK = Effort(600.0, 0.0)
"""Everything but the solver's process, and no clock."""
DEGREES = ("data", "tensor", "context", "expert")


def problem_of(seed: int) -> Problem:
    """A made-up graph, or a small described model, on two to four devices."""
    rng = Random(seed)
    made_up = (
        lambda: random_profile(rng, rng.randint(3, 6), latency_ns=rng.choice((0, 300, 2000))),
        lambda: with_shared_storages(rng, random_profile(rng, rng.randint(3, 6), host_ns=rng.choice((0, 200)))),
        lambda: branches(rng.choice((2, 3)), rng.choice((1, 2))),
        lambda: u_net(rng.choice((2, 3))),
        lambda: described(rng.choice(("gpt2", "gpt2", "mixtral"))),
    )
    profile = rng.choice(made_up)()
    return Problem(
        profile, None, rng.choice((2, 2, 3)), rng.choice((4, 8)), optimizer=rng.choice(("none", "adam")),
        target=rng.choice(("any", "executor" if not profile.extra else "any")), effort=QUICK,
    )  # fmt: skip


def named(problem: Problem, found: Plan) -> Iterator[tuple[str, Problem]]:
    """Yield the problem with each single value of a plan named."""
    yield "schedule", replace(problem, schedule=found.schedule)
    yield "micro-batch size", replace(problem, microbatch_size=found.batch.microbatch_size)
    configs = {stage.config for stage in found.stages}
    if len(configs) > 1:
        return  # replicas by stage: no flag says them
    (config,) = configs
    places = len({stage.ranks for stage in found.stages})
    values = {"stages": places, "chunks": len(found.stages) // places, **_values(config)}
    for name, value in values.items():
        yield f"{name} {value}", replace(problem, space=replace(problem.space, **{name: value}))


def _values(config: StageConfig) -> dict[str, object]:
    found: dict[str, object] = {name: getattr(config, name) for name in DEGREES}
    zero = {"zero": config.zero} if config.data * config.context > 1 or not config.zero else {}
    return {**found, **zero, "recompute": config.recompute, "offload": config.offload}


def naming_failures(seeds: Iterable[int]) -> list[str]:
    """Names that made the best plan slower, or that the scope does not say."""
    failures = []
    for seed in seeds:
        problem = problem_of(seed)
        free = plan(problem)
        for name, fixed in named(problem, free):
            found = plan(fixed)
            best_ns, free_ns = found.search.best_step_time_ns, free.search.objective
            if best_ns > free_ns:
                failures.append(f"{seed}, {name}: {best_ns} ns at best, {free_ns} unnamed")
            if name.startswith(tuple(problem.space.__dataclass_fields__)) and name not in found.search.scope:
                failures.append(f"{seed}, {name}: not in the scope {found.search.scope!r}")
    return failures
