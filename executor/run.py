"""The command's work: load, run the steps, compare, write the timeline, and put the figures together."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from costmodel.profiling.batches import TrainingModel, move
from costmodel.profiling.models import load_model
from executor.check import LIMIT, Comparison, compare
from executor.matching import check_world
from executor.measure import gather_timeline
from executor.pipeline import Pipeline
from planner.plan import Plan, read_plan
from simulator.timeline import write_timeline


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command prints, and its exit code."""

    numbers: dict[str, Any]
    exit_code: int
    verdict: str


def run_plan(arguments: argparse.Namespace) -> Answer:
    """Run the plan that the arguments name on this rank."""
    torch.set_num_threads(arguments.threads)
    plan = read_plan(arguments.plan)
    check_world(plan)

    def load() -> TrainingModel:
        # One call makes the whole step's batch, so that its micro-batches differ; each rank reads what it needs.
        return load_model(arguments.model, plan.batch.global_size, arguments.seed)

    pipeline = Pipeline(plan, load(), timeout_s=arguments.timeout, emulate=arguments.emulate)
    pipeline.watch.catch_signals()
    pipeline.watch.answers_json = arguments.json and pipeline.rank == 0
    with pipeline:
        return _run(pipeline, arguments, load)


def _run(pipeline: Pipeline, arguments: argparse.Namespace, load: Callable[[], TrainingModel]) -> Answer:
    plan = pipeline.plan
    times, comparison = [], None
    for step in range(arguments.steps):
        times.append(_timed_step(pipeline))
        loss = pipeline.total_loss()
        _say(pipeline, f"step {step}: {times[-1] / 1e6:.3f} ms (predicted {plan.prediction.step_time_ns / 1e6:.3f} ms)")
        if arguments.check and step == 0:
            reference = move(load(), pipeline.device) if pipeline.rank == 0 else None
            comparison = compare(pipeline.worker, loss, reference)
    if arguments.timeline:
        timeline = gather_timeline(pipeline.worker.measured(), pipeline.rank, pipeline.num_ranks)
        if timeline is not None:
            write_timeline(arguments.timeline, timeline, {"plan": arguments.plan, "model": arguments.model})
    return _answer(plan, times, loss.total / loss.weight, comparison)


def _timed_step(pipeline: Pipeline) -> int:
    """Return a step's time in ns: the longest over all ranks, which start together."""
    if pipeline.num_ranks > 1:
        dist.barrier()
    start = time.perf_counter_ns()
    pipeline.step()
    if pipeline.device.type == "cuda":
        torch.cuda.synchronize(pipeline.device)
    taken = torch.tensor([time.perf_counter_ns() - start])
    if pipeline.num_ranks > 1:
        dist.all_reduce(taken, dist.ReduceOp.MAX)
    return int(taken)


def _say(pipeline: Pipeline, line: str) -> None:
    if pipeline.rank == 0:
        print(line, file=sys.stderr, flush=True)


def _answer(plan: Plan, times: list[int], loss: float, comparison: Comparison | None) -> Answer:
    numbers: dict[str, Any] = {
        "step_time_ns": int(statistics.median(times[1:] or times)),
        "predicted_step_time_ns": plan.prediction.step_time_ns,
        "steps": len(times),
        "step_times_ns": times,
        "loss": loss,
        "max_gradient_error": None,
        "loss_error": None,
    }
    if comparison is None:
        return Answer(numbers, 0, "")
    numbers |= {
        "max_gradient_error": comparison.max_gradient_error,
        "loss_error": comparison.loss_error,
        "worst_parameter": comparison.worst_parameter,
    }
    verdict = f"gradient error {comparison.max_gradient_error:.3g} ({comparison.worst_parameter or 'every parameter'})"
    if comparison.max_gradient_error <= LIMIT:
        return Answer(numbers, 0, f"check: {verdict}, at most {LIMIT:g} is allowed")
    return Answer(numbers, 7, f"check failed: {verdict}, at most {LIMIT:g} is allowed")
