"""What one model is asked: the questions of `benchmarks.gpu`, its kernels and stages, pass by pass on its turns."""

import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu import execution, parts, profiles, whole
from benchmarks.gpu.call.agenda import PASSES, Agenda
from benchmarks.gpu.call.alone import stages
from benchmarks.gpu.call.errand import Answer, Errand
from benchmarks.gpu.call.kernels import kernels
from benchmarks.gpu.call.measuring import setting_for
from benchmarks.gpu.setting import SUBJECTS, Row, Setting, Subject, percent
from costmodel.profiling import run, session
from costmodel.profiling.device import describe_settings


def ask_model(errand: Errand) -> None:
    """Ask what the plan asks of it; the profile waits for its turn by itself, once the model is captured."""
    setting, subject = setting_for(errand), SUBJECTS[errand.name]
    for number, names in enumerate(PASSES[: Agenda(errand.plan).passes()[errand.name]]):
        if number:
            errand.await_turn(number)
        for name in names.split(","):
            errand.ask(name, partial(_QUESTIONS[name], errand, setting, subject))
            setting.free()
        errand.tell(str(number))


def _profile(errand: Errand, setting: Setting, subject: Subject) -> Row:
    """Profile: captured beside others, measured alone."""
    measured_alone = partial(_on_its_turn, errand)
    session.Session.profile = measured_alone(session.Session.profile)  # type: ignore[method-assign]
    run.profile_in_blocks = measured_alone(run.profile_in_blocks)  # type: ignore[attr-defined]
    run.load_model = partial(_drawn_on, errand.device, run.load_model)  # type: ignore[attr-defined]
    start = time.perf_counter()
    found = setting.profile(subject)
    errand.tell("ready")
    unscaled: Any = found.extra["unscaled"]
    row = {
        "prepared_and_measured_s": round(time.perf_counter() - start, 1),
        **profiles.described(found),
        "optimizer_ms": round(found.whole.optimizer_ns / 1e6, 2),
        "accumulate_ms": round(found.whole.accumulate_ns / 1e6, 2),
        "driver_after": describe_settings(setting.device).get("driver"),
        "fingerprint": found.graph.fingerprint[:12],
    }
    for key in ("kernel_ns", "host_ns", "wall_ns"):
        if unscaled.get(key):
            row[key.replace("_ns", "_ms")] = [round(ns / 1e6, 2) for ns in unscaled[key]]
    if found.whole.split:
        row["split"] = [str(ratio) for ratio in found.whole.split]
    return row


def _on_its_turn(errand: Errand, measure: Callable[..., Any]) -> Callable[..., Any]:
    """Return what says that the model is captured, and measures it once it has the device."""

    def waits(*words: Any, **named: Any) -> Any:
        errand.tell("ready")
        errand.await_turn(0)
        return measure(*words, **named)

    return waits


def _drawn_on(device: str, load: Callable[..., Any], *words: Any) -> Any:
    """Load a model whose values are drawn on the device: 2.8 billion take one CPU thread some 20 s."""
    try:
        with torch.device(device):
            return load(*words)
    except RuntimeError:
        traceback.print_exc()
    return load(*words)


def _one_stage(_: Errand, setting: Setting, subject: Subject) -> Row:
    """Hold the executor against the plain loop, and both against what the profile predicts of its micro-batches."""
    row = dict(execution.one_stage(setting, subject.name))
    found = setting.profile(subject)
    size = subject.sizes[0] if setting.full else 1
    if size in found.microbatch_sizes:
        step_ns = found.whole.step_ns[found.microbatch_sizes.index(size)]
        predicted = execution.NUM_MICROBATCHES * step_ns / 1e6
        row["predicted_ms"] = round(predicted, 3)
        row["predicted_against_ours_%"] = percent(predicted / row["ours_ms"])
        row["predicted_against_plain_%"] = percent(predicted / row["plain_ms"])
    return row


def _rows_of(question: ModuleType, _: Errand, setting: Setting, __: Subject) -> list[Row]:
    """Return all rows of a question of `benchmarks.gpu`; none where it leaves the model out."""
    found = [measure() for measure in question.rows(setting)]
    return [row for rows in found for row in (rows if isinstance(rows, list) else [rows])]


_QUESTIONS: Mapping[str, Callable[[Errand, Setting, Subject], Answer]] = {
    "profile": _profile,
    "whole": partial(_rows_of, whole),
    "kernels": kernels,
    "one_stage": _one_stage,
    "stages": stages,
    "parts": partial(_rows_of, parts),
}
