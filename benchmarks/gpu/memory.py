"""Question `memory` (Show 5): what a stage holds at its highest, against the plan's estimate and bound.

A Llama stack in four stages, planned from its profile, under 1F1B, under 1F1B with recompute, and with the backward
split. The first and the last rank run their planned order alone on the device, with made-up messages: what neighbours
would send has the same shapes. Leaves out the optimizer, and what torch's allocator does not hand out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.setting import SUBJECTS, Row, Setting, Verdict, percent, within
from costmodel.capture.capture import capture
from executor.stage import Stage
from executor.wiring import Wire
from executor.worker import Worker
from planner.ask.problem import Problem
from planner.ask.space import Space
from planner.plan import Plan
from planner.search.planners import plan as make_plan
from simulator.actions import Action, Kind

MODELS = ("llama3",)
NUM_STAGES, NUM_MICROBATCHES = 4, 8
CASES = {
    "1f1b": (Space(stages=NUM_STAGES), "1f1b"),
    "recompute": (Space(stages=NUM_STAGES, recompute="full"), "1f1b"),
    "split": (Space(stages=NUM_STAGES), "zb-h1"),
}
"""Name -> what the plan fixes, and its schedule."""


def rows(setting: Setting) -> Iterator[Callable[[], Row]]:
    """Yield what measures each case on the first and the last rank."""
    if not setting.chosen(MODELS):
        return
    for case in CASES:
        for rank in (0, NUM_STAGES - 1):
            yield lambda case=case, rank=rank: _row(setting, case, rank)  # type: ignore[misc]


def _row(setting: Setting, case: str, rank: int) -> Row:
    plan = planned(setting, case)
    setting.free()
    model = setting.load(SUBJECTS["llama3"], plan.batch.global_size)
    captured = capture(model, plan.batch.microbatch_size)
    worker = Worker(plan, captured, rank, setting.device)
    names = {name for stage in worker.stages.values() for name in stage.part.parameters}
    own = sum(captured.parameter(name).nbytes for name in names)
    with setting.growth() as growth:
        num_actions = sum(_run(worker, action) for action in worker.order)
        measured = growth() + own
    point, upper = plan.prediction.peak_memory_bytes[rank], plan.prediction.peak_memory_upper_bytes[rank]
    return {
        "case": case,
        "rank": rank,
        "actions": num_actions,
        "measured_mib": round(measured / 2**20, 1),
        "point_mib": round(point / 2**20, 1),
        "upper_mib": round(upper / 2**20, 1),
        "point_%": percent(point / measured),
        "below_upper": measured <= upper,
    }


def planned(setting: Setting, case: str) -> Plan:
    """Return the plan of a case, from the profile at its smallest micro-batch."""
    profile = setting.profile(SUBJECTS["llama3"])
    choices, schedule = CASES[case]
    size = profile.microbatch_sizes[0]
    batch = size * NUM_MICROBATCHES
    return make_plan(
        Problem(
            profile,
            None,
            NUM_STAGES,
            batch,
            size,
            schedule,
            "none",
            planner="uniform",
            space=choices,
            target="executor",
        )
    )


def _run(worker: Worker, action: Action) -> int:
    """Run one compute action with made-up messages; returns 1, for any other 0."""
    stage = worker.stages[action.stage]
    if action.kind is Kind.F:
        stage.forward(action.microbatch, [_message(wire, worker) for wire in stage.incoming])
    elif action.kind is Kind.B:
        stage.backward(action.microbatch, _gradients(stage, worker))
    elif action.kind is Kind.I:
        stage.input_backward(action.microbatch, _gradients(stage, worker))
    elif action.kind is Kind.W:
        stage.weight_backward(action.microbatch)
    elif action.kind is Kind.R:
        stage.recompute(action.microbatch)
    else:
        return 0
    return 1


def _message(wire: Wire, worker: Worker) -> list[torch.Tensor]:
    return [_made_up(shape, dtype, worker.device) for shape, dtype in wire.templates[1]]


def _gradients(stage: Stage, worker: Worker) -> list[list[torch.Tensor]]:
    wanted = [[wire.templates[1][position] for position in wire.gradients] for wire in stage.outgoing]
    return [[_made_up(shape, dtype, worker.device) for shape, dtype in row] for row in wanted]


def _made_up(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full(shape, 0.01, device=device).to(dtype)


def verdicts(found: list[Row]) -> list[Verdict]:
    """Judge point estimates and the bound."""
    kept = all(row["below_upper"] for row in found)
    return [*within("point estimate of the peak", found, "point_%", 3), ("the upper bound is never exceeded", kept)]
