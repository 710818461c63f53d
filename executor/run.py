"""The command's work: load, run the steps, compare, write the timeline, and put the figures together."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.models import load_model
from costmodel.errors import InvalidInput
from executor.check import LIMIT, Comparison, compare
from executor.matching import check_world
from executor.measure import gather_timeline
from executor.optimizer import planned_optimizer
from executor.pipeline import Pipeline
from planner.plan import Plan, read_plan
from simulator.timeline import write_timeline

FAR_OFF = 0.10
"""A prediction further than this from its step is reported."""


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
        model = load_model(arguments.model, plan.batch.global_size, arguments.seed)
        return replace(model, autocast=getattr(torch, arguments.autocast) if arguments.autocast else None)

    optimizer = planned_optimizer(plan)
    pipeline = Pipeline(plan, load(), timeout_s=arguments.timeout, optimizer=optimizer, emulate=arguments.emulate)
    pipeline.watch.catch_signals()
    pipeline.watch.answers_json = arguments.json and pipeline.rank == 0
    with pipeline:
        return _run(pipeline, arguments, load)


def _run(pipeline: Pipeline, arguments: argparse.Namespace, load: Callable[[], TrainingModel]) -> Answer:
    plan = pipeline.plan
    steps, comparison = [], None
    with _step_log(arguments.step_log if pipeline.rank == 0 else None) as log:
        for step in range(arguments.steps):
            steps.append(_timed_step(pipeline, step))
            loss = pipeline.total_loss()
            if pipeline.rank == 0:
                print(steps[-1].line(), file=sys.stderr, flush=True)
                log(steps[-1].to_json())
            if arguments.check and step == 0:
                reference = move(load(), pipeline.device) if pipeline.rank == 0 else None
                comparison = compare(pipeline.worker, loss, reference)
    if arguments.timeline:
        timeline = gather_timeline(pipeline.worker.measured(), pipeline.rank, pipeline.num_ranks)
        if timeline is not None:
            write_timeline(arguments.timeline, timeline, {"plan": arguments.plan, "model": arguments.model})
    return _answer(plan, [step.measured_ns for step in steps], loss.total / loss.weight, comparison)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step's time beside its prediction; the slowest rank is the one furthest above its planned compute."""

    step: int
    measured_ns: int
    predicted_ns: int
    slowest_rank: int

    @property
    def error(self) -> float:
        """The prediction's error: (predicted - measured) / measured."""
        return self.predicted_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    def line(self) -> str:
        """Return the line for people; the first step warms up, so it is not judged."""
        text = f"step {self.step}: {self.measured_ns / 1e6:.3f} ms (predicted {self.predicted_ns / 1e6:.3f} ms)"
        if self.step and abs(self.error) > FAR_OFF:
            text += f", an error of {self.error:+.0%}; rank {self.slowest_rank} is the slowest"
        return text

    def to_json(self) -> dict[str, object]:
        """Return the line of the log."""
        return {
            "step": self.step,
            "measured_ns": self.measured_ns,
            "predicted_ns": self.predicted_ns,
            "error_percent": 100 * self.error,
            "slowest_rank": self.slowest_rank,
        }


@contextmanager
def _step_log(path: str | None) -> Iterator[Callable[[dict[str, object]], None]]:
    """Yield what appends a JSON line to a file, or does nothing without one."""
    if path is None:
        yield lambda _: None
        return
    try:
        file = open(path, "w", buffering=1, encoding="utf-8")  # noqa: SIM115 - the name is checked before anything runs
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        yield lambda row: print(json.dumps(row), file=file)


def _timed_step(pipeline: Pipeline, step: int) -> StepTime:
    """Run a step that all ranks start together; it takes as long as the longest of them."""
    if pipeline.num_ranks > 1:
        dist.barrier()
    start = time.perf_counter_ns()
    pipeline.step()
    if pipeline.device.type == "cuda":
        torch.cuda.synchronize(pipeline.device)
    own = torch.tensor([time.perf_counter_ns() - start, pipeline.worker.excess_ns()])
    rows = [torch.zeros_like(own) for _ in range(pipeline.num_ranks)]
    if pipeline.num_ranks > 1:
        dist.all_gather(rows, own)
    else:
        rows = [own]
    slowest = max(range(len(rows)), key=lambda rank: int(rows[rank][1]))
    return StepTime(step, max(int(row[0]) for row in rows), pipeline.plan.prediction.step_time_ns, slowest)


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
