"""Question `memory` (Show 5): what a stage holds at its highest, against the plan's estimate and bound.

A Llama stack in four stages, planned from its profile, under 1F1B, under 1F1B with recompute, and with the backward
split. The first and the last rank run their planned order alone on the device, by the executor's own program, with a
transport that makes up what neighbours would send, where the order posts its receive; they take what is sent at once.
Leaves out the optimizer, and what torch's allocator does not hand out.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.gpu.setting import SUBJECTS, Row, Setting, Verdict, percent, within
from costmodel.capture.capture import capture
from executor.communication.packing import empty_message, pack
from executor.communication.transport import Pending, Transport
from executor.communication.wiring import Template
from executor.context import RankContext
from executor.program import Instruction, Program
from executor.worker import Worker
from planner.answer.decide import plan as make_plan
from planner.plan import Plan
from planner.question.problem import Problem
from planner.question.space import Space

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
    worker = Worker(RankContext(plan, captured, rank, setting.device))
    return {"case": case, "rank": rank, "actions": len(worker.context.order), **held(setting, worker)}


def held(setting: Setting, worker: Worker) -> Row:
    """Run a rank's order alone and hold what it takes at its highest against its plan."""
    names = {name for stage in worker.stages.values() for name in stage.part.parameters}
    own = sum(worker.capture.parameter(name).nbytes for name in names)
    with setting.growth() as growth:
        run_alone(worker)
        setting.wait()
        measured = growth() + own
    prediction, rank = worker.context.plan.prediction, worker.context.rank
    point, upper = prediction.peak_memory_bytes[rank], prediction.peak_memory_upper_bytes[rank]
    return {
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


def run_alone(worker: Worker) -> int:
    """Run a rank's order with made-up messages; returns how many actions there were."""
    instructions = bound_alone(worker)
    for instruction in instructions:
        instruction.execute(instruction.collect() if instruction.collect is not None else None)
    return len(instructions)


def bound_alone(worker: Worker) -> tuple[Instruction, ...]:
    """Return a rank's order, bound to a transport without other ranks."""
    context = worker.context
    program = Program(context, worker.wiring, worker.stages, Alone(context.device), lambda _: None, lambda _: None)
    return program.bind(context.order)


class Alone(Transport):
    """A transport without other ranks: what is received is there at once, and so is what is sent."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, peer: int, tensors: Sequence[torch.Tensor], tag: int) -> None:
        """Make the message."""
        pack(tensors)

    def receive(self, peer: int, templates: tuple[Template, ...], tag: int) -> Pending:
        """Make room for a message, and one up."""
        message, tensors = empty_message(templates, self.device)
        message.fill_(0.01)
        return Pending(peer, None, tensors)

    def wait(self, pending: Pending) -> list[torch.Tensor]:
        """Return the tensors."""
        return pending.tensors


def verdicts(found: list[Row]) -> list[Verdict]:
    """Judge point estimates and the bound."""
    kept = all(row["below_upper"] for row in found)
    return [*within("point estimate of the peak", found, "point_%", 3), ("the upper bound is never exceeded", kept)]
