"""The command's work: load, run the steps, compare, write the timeline, and put the figures together."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from costmodel.capture.batches import TrainingModel, move
from costmodel.capture.models import load_model
from costmodel.errors import InvalidInput
from executor.gradients.optimizer import timing_optimizer
from executor.observe.check import Difference, compare, deterministic
from executor.observe.measure import gather_timeline
from executor.observe.observer import Observer
from executor.pipeline import Pipeline
from executor.plan_match.agreement import telling_others
from executor.plan_match.matching import check_world, planned_for_here
from executor.plan_match.options import LEAST_TIMEOUT_S
from executor.plan_match.precision import planned_dtype
from planner.plan import Plan
from simulator.timeline import write_timeline

FAR_OFF = 0.10
"""A prediction further than this from its step is reported."""

CHECK_PATIENCE = 10
"""Timeouts for which rank 0 may run the reference while the others wait for it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What the command prints, and its exit code."""

    numbers: dict[str, Any]
    exit_code: int
    verdict: str


def run_plan(arguments: argparse.Namespace) -> RunResult:
    """Run the plan that the arguments name on this rank."""
    torch.set_num_threads(arguments.threads)
    with telling_others(arguments.timeout or LEAST_TIMEOUT_S):
        plan = planned_for_here(arguments.plan)
        check_world(plan)
        pipeline = _pipeline(plan, arguments)
    with pipeline:
        pipeline.watch.catch_signals()
        pipeline.watch.answers_json = arguments.json and pipeline.rank == 0
        return _run(pipeline, arguments)


def _pipeline(plan: Plan, arguments: argparse.Namespace) -> Pipeline:
    return Pipeline(
        plan,
        _load(plan, arguments),
        optimizer=timing_optimizer(plan),
        timeout_s=arguments.timeout,
        emulate=arguments.emulate,
        seed=arguments.seed,
    )


def _load(plan: Plan, arguments: argparse.Namespace) -> TrainingModel:
    """Build the model in the plan's precision, as the profiler did.

    One call makes the whole step's batch, so that its micro-batches differ; each rank reads what it needs.
    """
    model = load_model(arguments.model, plan.batch.global_size, arguments.seed)
    autocast = getattr(torch, arguments.autocast) if arguments.autocast else None
    device = next((p.device for p in model.module.parameters()), torch.device("cpu"))
    return replace(move(model, device, planned_dtype(plan)), autocast=autocast)


def _run(pipeline: Pipeline, arguments: argparse.Namespace) -> RunResult:
    plan, worker = pipeline.plan, pipeline.worker
    observer = worker.observer or pipeline.observe()
    worker.keeps_gradients = arguments.check
    steps, checked, loss = [], None, 0.0
    with _step_log(arguments.step_log if pipeline.rank == 0 else None) as log:
        for step in range(arguments.steps):
            with deterministic() if arguments.check and step == 0 else nullcontext():
                timed, loss = _timed_step(pipeline, step, observer)
            steps.append(timed)
            if pipeline.rank == 0:
                print(timed.line(), file=sys.stderr, flush=True)
                log(timed.to_json())
            if arguments.check and step == 0:
                checked = _check(pipeline, arguments)
    if arguments.timeline:
        with pipeline.together("writing the timeline"):
            timeline = gather_timeline(observer.measured(), pipeline.groups)
        if timeline is not None:
            write_timeline(arguments.timeline, timeline, {"plan": arguments.plan, "model": arguments.model})
    exact = _tried_exactly(plan, arguments, checked) if checked and _rounds(plan, checked) else None
    return _answer(plan, [step.measured_ns for step in steps], loss, checked, exact)


def _check(pipeline: Pipeline, arguments: argparse.Namespace) -> Difference:
    """Compare the last step with one process; collective."""
    with pipeline.together("the check", CHECK_PATIENCE):
        own = _load(pipeline.plan, arguments) if pipeline.rank == 0 else None
        reference = None
        if own is not None:
            reference = replace(move(own, pipeline.device), autocast=pipeline.worker.capture.model.autocast)
        return compare(pipeline.worker, reference)


def _rounds(plan: Plan, checked: Difference) -> bool:
    """Whether an error above the limit may be rounding: not where the step ran in float64 already."""
    return checked.max_gradient_error > checked.limit and plan.training.dtype != "float64"


def _tried_exactly(plan: Plan, arguments: argparse.Namespace, checked: Difference) -> Difference | str:
    """Repeat the check in float64, or return why that cannot be done: what was found before stands either way."""
    if not int(os.environ.get("RANK", "0")):
        text = f"gradient error {checked.max_gradient_error:.3g} ({checked.worst_parameter}), above {checked.limit:g}"
        print(f"check: {text}; the step is repeated in float64", file=sys.stderr, flush=True)
    try:
        return _check_exactly(plan, arguments)
    except Exception as error:  # a model that computes in one type alone, whatever it says of another
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_exactly(plan: Plan, arguments: argparse.Namespace) -> Difference:
    """Run the first step again in float64, by the plan and by one process, and compare them; collective."""
    exactly = replace(plan, training=replace(plan.training, dtype="float64", autocast=""))
    arguments = argparse.Namespace(**{**vars(arguments), "autocast": None, "emulate": False})
    with _pipeline(exactly, arguments) as pipeline:
        pipeline.worker.keeps_gradients = True
        with deterministic():
            pipeline.step()
        return _check(pipeline, arguments)


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


def _timed_step(pipeline: Pipeline, step: int, observer: Observer) -> tuple[StepTime, float]:
    """Run a step that all ranks start together, and return its loss; it takes as long as the longest of them."""
    groups = pipeline.groups
    with pipeline.together("the start of a step"):
        groups.all_gather_bytes(b"")
    start = time.perf_counter_ns()
    loss = pipeline.step()
    if pipeline.device.type == "cuda":
        torch.cuda.synchronize(pipeline.device)
    own = [time.perf_counter_ns() - start, observer.excess_ns()]
    with pipeline.together("the end of a step"):
        rows = [json.loads(row) for row in groups.all_gather_bytes(json.dumps(own).encode())]
    slowest = max(range(len(rows)), key=lambda rank: int(rows[rank][1]))
    predicted_ns = pipeline.plan.prediction.step_time_ns
    return StepTime(step, max(row[0] for row in rows), predicted_ns, slowest), loss


def _answer(
    plan: Plan, times: list[int], loss: float, checked: Difference | None, exact: Difference | str | None
) -> RunResult:
    numbers: dict[str, Any] = {
        "step_time_ns": int(statistics.median(times[1:] or times)),
        "predicted_step_time_ns": plan.prediction.step_time_ns,
        "steps": len(times),
        "step_times_ns": times,
        "loss": loss,
        "max_gradient_error": None,
        "loss_error": None,
    }
    if checked is None:
        return RunResult(numbers, 0, "")
    numbers |= {
        "max_gradient_error": checked.max_gradient_error,
        "loss_error": checked.loss_error,
        "worst_parameter": checked.worst_parameter,
    }
    verdict = f"gradient error {checked.max_gradient_error:.3g} ({checked.worst_parameter or 'every parameter'})"
    allowed = f"at most {checked.limit:g} is allowed"
    if checked.max_gradient_error <= checked.limit:
        return RunResult(numbers, 0, f"check: {verdict}, {allowed}")
    if exact is None:
        return RunResult(numbers, 7, f"check failed: {verdict}, {allowed}")
    if isinstance(exact, str):
        return RunResult(numbers, 7, f"check failed: {verdict}, {allowed}; in float64 the step cannot run ({exact})")
    numbers["max_gradient_error_float64"] = exact.max_gradient_error
    again = f"{verdict}, above {checked.limit:g}; the same step in float64 has {exact.max_gradient_error:.3g}"
    if exact.max_gradient_error <= exact.limit:
        return RunResult(numbers, 0, f"check: {again}: rounding, no wrong gradient")
    return RunResult(numbers, 7, f"check failed: {again} ({exact.worst_parameter}), {allowed}: a wrong gradient")
