"""Plans altered at random in one or two places, as a hand or a bug might, and what real ranks make of them."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch.distributed as dist

from costmodel.errors import PenstockError
from executor import Pipeline
from executor.gradients.optimizer import timing_optimizer
from executor.observe.check import compare
from planner.plan import read_plan, write_plan
from tests.support.ranks import executor_jobs as jobs
from tests.support.ranks.rank_pool import RankPool

TIMEOUT_S = 10.0
NUM_RANKS = 3
ALLOWED = (3, 6, 7)
"""Exit codes of a refusal."""

REPLICAS = [(0, 1), (2,), (1, 2)]
BASES: dict[str, dict[str, Any]] = {
    "two_branch": {},
    "tied_gpt": {"ranks": REPLICAS, "schedule": "split"},
    "small_mmt": {"num_stages": 4, "ranks": [(0,), (1,), (2,), (1,)], "schedule": "recompute"},
    "frozen": {"optimizer": "momentum"},
    "masked": {"relay": True, "multiples": (1, 2, 4)},
    "gated": {
        "num_stages": 2,
        "ranks": [(0, 1, 2), (2, 0)],
        "optimizer": "adam",
        "configs": [{"data": 3, "zero": 1}, {"data": 2, "zero": 1}],
        "num_microbatches": 6,
    },
}
"""Model -> how its plan is made; each has something that an alteration can break."""

Body = dict[str, Any]
Alteration = Callable[[Random, Body], None]


@cache
def base(model: str, folder: str) -> str:
    path = Path(folder) / f"{model}.json"
    write_plan(path, jobs.make_plan(model, **BASES[model]))
    return path.read_text()


def _pick(rng: Random, rows: list[Any]) -> Any:
    return rng.choice(rows) if rows else None


def _operators(rng: Random, body: Body) -> None:
    """Move, drop, repeat or rename an operator."""
    stages = [stage["operators"] for stage in body["stages"]]
    source, target = rng.choice([row for row in stages if row]), rng.choice(stages)
    name = source.pop(rng.randrange(len(source)))
    how = rng.randrange(5)
    if how < 3:
        target.insert(rng.randint(0, len(target)), name)
    elif how == 3:
        target += [name, name]
    else:
        source.append(name + "_1")


def _tensors(rng: Random, body: Body) -> None:
    """Drop, repeat or exchange a tensor of an edge."""
    edge = rng.choice(body["edges"])
    names = [name for other in body["edges"] for name in other["tensors"]]
    how = rng.randrange(3)
    if how == 0 and edge["tensors"]:
        edge["tensors"].pop()
    else:
        edge["tensors"] = [*edge["tensors"][how - 1 :], rng.choice(names)]


def _edges(rng: Random, body: Body) -> None:
    """Drop, repeat or bend an edge, or change what it says of itself."""
    position = rng.randrange(len(body["edges"]))
    edge, count = body["edges"][position], len(body["stages"])
    how = rng.randrange(5)
    if how == 0:
        body["edges"].pop(position)
    elif how == 1:
        body["edges"].append({**edge, "to": rng.randrange(count)})
    elif how == 2:
        edge[rng.choice(("from", "to"))] = rng.randrange(count + 1)
    else:
        edge[rng.choice(("bytes", "p2p_ns"))] = rng.randrange(5000)


def _gradients(rng: Random, body: Body) -> None:
    """Say that nothing flows back, or that something does."""
    if rng.random() < 0.5:
        edge = rng.choice(body["edges"])
        edge["gradient"] = not edge["gradient"]
    else:
        cost = rng.choice(body["stages"])["cost"]
        cost["backward"] = not cost["backward"]


def _orders(rng: Random, body: Body) -> None:
    """Exchange, drop, repeat, move or misspell an action."""
    rows = [rank["actions"] for rank in body["ranks"]]
    row = rng.choice([row for row in rows if len(row) > 1])
    i = rng.randrange(len(row) - 1)
    how = rng.randrange(6)
    if how < 2:
        j = i + 1 if how else rng.randrange(len(row))
        row[i], row[j] = row[j], row[i]
    elif how == 2:
        row.pop(i)
    elif how == 3:
        row.insert(rng.randrange(len(row)), row[i])
    elif how == 4:
        rng.choice(rows).append(row.pop(i))
    else:
        text = row[i]
        place = rng.randrange(len(text))
        row[i] = text[:place] + rng.choice("0123456789FBIWR<>") + text[place + 1 :]


def _backward_missing(rng: Random, body: Body) -> None:
    """Take one whole backward away, and make a cost list of the wrong length, which once hid it."""
    stage = rng.randrange(len(body["stages"]))
    body["stages"][stage]["cost"]["forward_ns"] = [1000] * rng.choice((2, 3, 5))
    for rank in body["ranks"]:
        rank["actions"] = [text for text in rank["actions"] if text not in (f"{stage}B1", f"{stage}I1", f"{stage}W1")]


def _costs(rng: Random, body: Body) -> None:
    cost = rng.choice(body["stages"])["cost"]
    name = rng.choice([name for name in cost if name not in ("backward", "memory_terms")])
    cost[name] = rng.choice((0, 7, 10**6, [1000] * 4, [1000] * 3, -1, 1.5))


def _configurations(rng: Random, body: Body) -> None:
    stage = rng.choice(body["stages"])
    how = rng.randrange(4)
    if how == 0:
        stage["microbatch_multiple"] = rng.choice((1, 2, 3, 4))
    elif how == 1:
        stage["ranks"] = rng.sample(range(4), rng.randint(1, 3))
    else:
        name, values = rng.choice(
            (
                ("data", (1, 2, 3)),
                ("tensor", (2,)),
                ("context", (2,)),
                ("expert", (2,)),
                ("zero", (0, 1, 2, 4)),
                ("recompute", ("full", "selective", "none", "some")),
                ("offload", ("optimizer", "none")),
            )
        )
        stage["config"][name] = rng.choice(values)


def _optimizer(rng: Random, body: Body) -> None:
    """Turn the order of OPT or REDUCE on a rank round, or take some away."""
    kind = rng.choice(("OPT", "REDUCE"))
    row = rng.choice(body["ranks"])["actions"]
    places = [i for i, text in enumerate(row) if text.endswith(kind)]
    if rng.random() < 0.5:
        for i, text in zip(places, [row[i] for i in reversed(places)], strict=True):
            row[i] = text
    else:
        stage = rng.randrange(len(body["stages"]))
        for rank in body["ranks"]:
            rank["actions"] = [text for text in rank["actions"] if text != f"{stage}{kind}"]


def _training(rng: Random, body: Body) -> None:
    name, values = rng.choice(
        (
            ("dtype", ("float64", "float16", "bfloat16", "float32", "int3")),
            ("autocast", ("bfloat16", "float16", "float8")),
            ("optimizer", ("none", "sgd", "adam", "magic", "")),
        )
    )
    body["training"][name] = rng.choice(values)


def _batch(rng: Random, body: Body) -> None:
    name = rng.choice(("global", "microbatch_size", "microbatches"))
    body["batch"][name] = rng.choice((1, 2, 3, 4, 6, 8, 12))
    if rng.random() < 0.5:
        body["batch"]["global"] = body["batch"]["microbatch_size"] * body["batch"]["microbatches"]


def _figures(rng: Random, body: Body) -> None:
    how = rng.randrange(4)
    if how == 0:
        body["prediction"][rng.choice(("step_time_ns", "span_ns"))] += rng.choice((-1, 1, 1000))
    elif how == 1:
        body["search"][rng.choice(("lower_bound_ns", "objective", "best_step_time_ns"))] = rng.choice((0, 1, 10**6))
    elif how == 2:
        body["search"]["status"] = rng.choice(("optimal", "bounded", "heuristic", "lucky"))
    else:
        body["prediction"]["peak_memory_bytes"][0] += rng.choice((-1, 8))


def _identity(rng: Random, body: Body) -> None:
    how = rng.randrange(4)
    if how == 0:
        body["model"]["fingerprint"] = body["model"]["fingerprint"][::-1]
    elif how == 1:
        body["model"]["operators"] += rng.choice((-1, 1))
    elif how == 2:
        body["cluster"]["devices"][0]["type"] = "cuda"
    else:
        del body[rng.choice(sorted(body))]


ALTERATIONS: tuple[Alteration, ...] = (
    _operators, _tensors, _edges, _gradients, _orders, _backward_missing, _costs, _configurations, _optimizer,
    _training, _batch, _figures, _identity,
)  # fmt: skip


def altered(seed: int, folder: str) -> tuple[str, str]:
    """Return a model and the text of an altered plan of it."""
    rng = Random(seed)
    model = sorted(BASES)[seed % len(BASES)]
    body = copy.deepcopy(json.loads(base(model, folder)))
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            rng.choice(ALTERATIONS)(rng, body)
        except (KeyError, IndexError, ValueError):  # the first alteration has taken away what the second would change
            break
    return model, json.dumps(body)


def outcome(path: str, model: str) -> str:
    """Return what a rank makes of a plan file: ``exact``, ``wrong ...`` or the exit code of its refusal."""
    try:
        plan = read_plan(path)
        source = jobs.captured(model)
        with Pipeline(plan, source, optimizer=timing_optimizer(plan), timeout_s=TIMEOUT_S) as pipeline:
            pipeline.worker.keeps_gradients = True
            autocast = pipeline.worker.capture.model.autocast
            batch = replace(jobs.whole_batch(model, plan), autocast=autocast)
            pristine = {n: p.detach().clone() for n, p in source.model.module.named_parameters()}
            pipeline.step(batch.kwargs or batch.args, batch.targets)
            found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
            with_values(source.model.module, pristine)
    except PenstockError as error:
        return str(error.exit_code)
    exact = found.max_gradient_error <= (1e-5 if autocast is None else found.limit) and found.loss_error <= 1e-5
    return "exact" if exact else f"wrong by {found.max_gradient_error:.3g} in {found.worst_parameter}"


def with_values(module: Any, values: dict[str, Any]) -> None:
    """Take a step of the optimizer back: the captured model serves the next plan too."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(values[name])


def outcomes(seeds: list[int], folder: str) -> list[tuple[int, str]]:
    """Run altered plans one after the other on this rank."""
    found = []
    for seed in seeds:
        model, text = altered(seed, folder)
        path = Path(folder) / f"altered-{dist.get_rank()}.json"
        path.write_text(text)
        found.append((seed, outcome(str(path), model)))
    return found


def altered_plan_failures(num_cases: int, folder: str, first: int = 0, chunk: int = 50) -> list[str]:
    """Run altered plans on real ranks; return those that train wrong, hang, or end otherwise than by a refusal."""
    for model in BASES:
        base(model, folder)
    pool = RankPool(NUM_RANKS)
    answers, failures = run_in_parts(pool, outcomes, list(range(first, first + num_cases)), chunk, folder=folder)
    pool.close()
    return failures + unlike_or_wrong(answers)


Words = list[tuple[int, list[str]]]
"""Of each seed what every rank came to."""


def run_in_parts(
    pool: RankPool, run: Callable[..., Any], seeds: list[int], chunk: int, **options: object
) -> tuple[Words, list[str]]:
    """Run seeds on ranks, some at a time; return what ranks came to, and the seeds at which a rank ended."""
    answers: Words = []
    failures = []
    waiting = [seeds[i : i + chunk] for i in range(0, len(seeds), chunk)]
    while waiting:
        part = waiting.pop()
        try:
            rows = pool.run(run, seeds=part, **options)
        except AssertionError as error:  # one of them has ended a rank: find it
            half = len(part) // 2
            if half:
                waiting += [part[:half], part[half:]]
            else:
                failures.append(f"seed {part[0]}: {str(error)[-600:]}")
            continue
        answers += [(each[0][0], [word for _, word in each]) for each in zip(*rows, strict=True)]
    return answers, failures


def unlike_or_wrong(answers: Words) -> list[str]:
    """Return the seeds at which ranks came to different ends, trained wrong, or ended otherwise than by a refusal."""
    known = ("exact", *map(str, ALLOWED))
    return [f"seed {seed}: {words}" for seed, words in answers if len(set(words)) > 1 or words[0] not in known]
