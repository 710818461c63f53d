"""Plans of divided stages altered at random in what version 2 has: units, sums, borders, modules, shared parameters.

What the checker passes, the executor runs: exact, or refused by all ranks alike before a wrong step.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.capture.works import with_works
from costmodel.errors import PenstockError
from costmodel.stages.config import StageConfig
from executor import Pipeline
from executor.gradients.optimizer import timing_optimizer
from executor.observe.check import compare
from executor.plan_match.matching import check_gate, check_target
from planner.candidate.gathering import with_gathering
from planner.plan import Plan, read_plan, write_plan
from tests.properties.altered_plans import (
    ALLOWED,
    ALTERATIONS,
    TIMEOUT_S,
    Alteration,
    Body,
    run_in_parts,
    unlike_or_wrong,
)
from tests.support.loops.loop_models import Tower, mse, vectors
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards
from tests.support.ranks.rank_pool import RankPool

MODEL = "tests.properties.altered_divided_plans:tower"
NUM_RANKS = 2
BASES: dict[str, dict[str, Any]] = {
    "zero-3": {"configs": [{"data": 2, "zero": 3}]},
    "zero-2 recomputed": {"configs": [{"data": 2, "zero": 2, "recompute": "full"}]},
    "zero-3 split": {"configs": [{"data": 2, "zero": 3}], "schedule": split_backwards},
    "zero-3 twice": {"configs": [{"data": 2, "zero": 3}, {"data": 2, "zero": 2}], "reduce": "step"},
    "tensor": {"configs": [{"tensor": 2}]},
    "zero-1": {"configs": [{"data": 2, "zero": 1}, {"data": 2, "zero": 1}]},
}


def tower(batch: int = 8) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return Tower(), *((x,) if i == 0 else x for i, x in enumerate(vectors(1, batch)[0])), mse


@cache
def captured() -> Capture:
    return capture(load_model(MODEL, 8), 2)


def base(name: str) -> Plan:
    options = {"optimizer": "momentum", **BASES[name]}
    configs = [StageConfig(**row) for row in options.pop("configs")]
    groups = in_equal_runs(captured().operators, len(configs))
    if configs[0].tensor == 1:
        return plan_by_hand(captured(), groups, ranks=[(0, 1)] * len(configs), configs=configs, **options)
    plan = plan_by_hand(captured(), groups, ranks=[(0,)], configs=[StageConfig()], **options)
    graph = with_works(operator_graph(captured(), (2,)), captured())
    sizes, count = [tensor.size_bytes[0] for tensor in graph.tensors], plan.batch.num_microbatches
    stage = replace(plan.stages[0], ranks=(0, 1), config=configs[0])
    from costmodel.machines.cluster_parts import Host

    known = plan.prediction
    return replace(
        plan,
        cluster=replace(plan.cluster, hosts=(Host("cpu", 2),)),
        stages=(with_gathering(stage, graph, range(len(graph.operators)), count, sizes),),
        orders=plan.orders * 2,
        prediction=replace(
            known,
            peak_memory_bytes=known.peak_memory_bytes * 2,
            peak_memory_upper_bytes=known.peak_memory_upper_bytes * 2,
        ),
    )


def _units(rng: Random, body: Body) -> None:
    """Drop, repeat, nest, rename or exchange the units of a stage."""
    stage = rng.choice(body["stages"])
    units = stage.setdefault("units", [])
    how = rng.randrange(6)
    if how == 0 and units:
        units.pop(rng.randrange(len(units)))
    elif how == 1 and units:
        units.append(rng.choice(units))
    elif how == 2 and units:
        units.append(rng.choice(units) + rng.choice((".up", ".norm", ".down")))
    elif how == 3:
        units.append(rng.choice(("layers", "head", "layers.7", "", "nothing", "layers.0", "layers.3")))
    elif how == 4 and units:
        units[rng.randrange(len(units))] = rng.choice(("layers.0", "layers.3", "head"))
    else:
        rng.shuffle(units)


def _collectives(rng: Random, body: Body) -> None:
    """Halve, double, drop or repeat what a stage gathers and sums."""
    stage = rng.choice(body["stages"])
    rows = stage.setdefault("collectives", [])
    if not rows or rng.random() < 0.1:
        rows.append({"kind": rng.choice(("all_gather", "all_reduce", "reduce_scatter")), "count": 3, "bytes": 96})
        return
    row, how = rng.choice(rows), rng.randrange(5)
    key = rng.choice([key for key in row if isinstance(row[key], int)])
    if how == 0:
        row[key] //= 2
    elif how == 1:
        row[key] *= 2
    elif how == 2:
        row[key] += rng.choice((-1, 1))
    elif how == 3:
        rows.remove(row)
    else:
        row["kind"] = rng.choice(("all_gather", "all_reduce", "reduce_scatter", "all_to_all"))


def _reduces(rng: Random, body: Body) -> None:
    rng.choice(body["stages"])["reduce"] = rng.choice(("step", "microbatch", "never"))


def _modules(rng: Random, body: Body) -> None:
    """Drop, exchange or rename modules, or name some where the plan names none."""
    stage = rng.choice(body["stages"])
    rows = stage.setdefault("modules", [])
    if rows and rng.random() < 0.5:
        rows.pop(rng.randrange(len(rows)))
    else:
        rows.append(rng.choice(("layers.0", "head", "tail")))


def _borders(rng: Random, body: Body) -> None:
    for edge in body["edges"][:1]:
        edge["border"] = rng.choice(("shard(1)", "shard(-1)", "replicate", "shard(0)"))


def _degrees(rng: Random, body: Body) -> None:
    """Give a stage another degree or ZeRO; by a coin with the ranks that it then has."""
    config = rng.choice(body["stages"])["config"]
    name = rng.choice(("zero", "zero", "tensor", "sequence", "data", "expert", "context"))
    config[name] = rng.randrange(4) if name == "zero" else rng.choice((1, 2))
    if rng.random() < 0.5:
        config["data"], config["tensor"] = rng.choice(((1, 2), (2, 1)))


def _shared(rng: Random, body: Body) -> None:
    stage = rng.choice(body["stages"])
    stage["shared"] = rng.choice(([], ["head.weight"], ["layers.0.up.weight"], ["none"]))


TWICE = (_units, _collectives)
OWN: tuple[Alteration, ...] = (*TWICE, *TWICE, _reduces, _modules, _borders, _degrees, _shared)


def altered(seed: int, folder: str) -> str:
    """Return the text of an altered plan."""
    rng = Random(seed)
    name = sorted(BASES)[seed % len(BASES)]
    body = copy.deepcopy(json.loads((Path(folder) / f"{name}.json").read_text()))
    for number in range(rng.choice((1, 1, 1, 2))):
        choose: Callable[[Random, Body], None] = rng.choice(OWN if number == 0 or rng.random() < 0.7 else ALTERATIONS)
        try:
            choose(rng, body)
        except (KeyError, IndexError, ValueError):  # the first alteration has taken away what the second would change
            break
    return json.dumps(body)


def gate(path: str) -> str:
    """Return the exit code with which a plan is refused before any rank runs, nothing where it passes."""
    try:
        plan = read_plan(path)
        check_target(plan)
        check_gate(plan, captured())
    except PenstockError as error:
        return str(error.exit_code)
    return ""


def outcome(path: str) -> str:
    """Return what a rank makes of a plan file: ``exact``, ``wrong ...`` or the exit code of its refusal."""
    try:
        plan = read_plan(path)
        size = plan.batch.global_size
        with Pipeline(plan, load_model(MODEL, size), optimizer=timing_optimizer(plan), timeout_s=TIMEOUT_S) as pipeline:
            pipeline.worker.keeps_gradients = True
            batch = replace(load_model(MODEL, size), autocast=pipeline.worker.capture.model.autocast)
            pipeline.step(batch.args, batch.targets)
            found = compare(pipeline.worker, batch if pipeline.rank == 0 else None)
    except PenstockError as error:
        return str(error.exit_code)
    exact = found.max_gradient_error <= (1e-5 if batch.autocast is None else found.limit) and found.loss_error <= 1e-5
    return "exact" if exact else f"wrong by {found.max_gradient_error:.3g} in {found.worst_parameter}"


def outcomes(seeds: list[int], folder: str) -> list[tuple[int, str]]:
    """Run altered plans one after the other on this rank."""
    found = []
    for seed in seeds:
        path = Path(folder) / f"altered-{dist.get_rank()}.json"
        path.write_text(altered(seed, folder))
        found.append((seed, outcome(str(path))))
    return found


def results(num_cases: int, num_runs: int, folder: str, chunk: int = 6) -> tuple[list[str], dict[str, int]]:
    """Give altered plans to the gate, run so many of those that pass; return failures, and how many ended how."""
    counts: dict[str, int] = {}
    passed, failures = [], []
    for name in BASES:
        path = Path(folder) / f"{name}.json"
        write_plan(path, base(name))
        if gate(str(path)):
            failures.append(f"{name}: the plan itself is refused with {gate(str(path))}")
    for seed in range(num_cases):
        path = Path(folder) / "altered.json"
        path.write_text(altered(seed, folder))
        code = gate(str(path))
        counts[code or "passes"] = counts.get(code or "passes", 0) + 1
        if not code:
            passed.append(seed)
        elif code not in map(str, ALLOWED):
            failures.append(f"seed {seed}: the gate ends with {code}")
    pool = RankPool(NUM_RANKS, get_context("spawn"))
    answers, ended = run_in_parts(pool, outcomes, passed[:num_runs], chunk, folder=folder)
    pool.close()
    for _, words in answers:
        counts[words[0]] = counts.get(words[0], 0) + 1
    return failures + ended + unlike_or_wrong(answers), counts


def altered_plan_failures(num_cases: int, folder: str) -> list[str]:
    """Return the altered plans that train wrong, hang, or end otherwise than by a refusal; 3 of 20 are run."""
    return results(num_cases, max(6, 3 * num_cases // 20), folder)[0]
