"""Question `stages`: each rank of a four-stage plan alone, its memory and the time of each kind of its actions.

Goes on where `benchmarks.gpu.memory` ends: all four ranks, by the plan's own order, timed as well.
"""

from collections import defaultdict
from statistics import median

import torch

from benchmarks.gpu import memory
from benchmarks.gpu.call.errand import Errand
from benchmarks.gpu.setting import Row, Setting, Subject, percent
from costmodel.capture.capture import Capture, capture
from costmodel.capture.clock import Clock
from costmodel.stages.costs import at
from executor.context import RankContext
from executor.worker import Worker
from planner.plan import Plan

ROUNDS = 3
"""Of which the first warms up."""


def stages(_: Errand, setting: Setting, subject: Subject) -> list[Row]:
    """Return a row for each case and rank; none for another model than the planned one."""
    if subject.name not in memory.MODELS:
        return []
    plans = {case: memory.planned(setting, case) for case in memory.CASES}
    batch = next(iter(plans.values())).batch
    setting.free()
    loaded = setting.load(subject, batch.global_size)
    captured = capture(loaded, batch.microbatch_size)
    found: list[Row] = []
    for case, plan in plans.items():
        for rank in range(memory.NUM_STAGES):
            setting.free()
            again = case == "recompute"
            found.append({"case": case, "rank": rank, **_row(setting, plan, captured, rank, again)})
            loaded.module.zero_grad(set_to_none=True)
    return found


def _row(setting: Setting, plan: Plan, captured: Capture, rank: int, again: bool) -> Row:
    room = _room(setting)
    worker = Worker(RankContext(plan, captured, rank, setting.device))
    held = memory.held(setting, worker)
    drop = room - _room(setting)
    busy, kinds = _timed(setting.clock, worker)
    cost, count = plan.stages[rank].cost, plan.batch.num_microbatches
    times = {"F": cost.forward_ns, "I": cost.backward_input_ns, "W": cost.backward_weight_ns, "R": cost.recompute_ns}
    planned = {kind: count * at(ns, 0) for kind, ns in times.items()}
    planned["B"] = planned["I"] + planned["W"]
    # a B that recomputes holds its R: judged together
    inside = planned["R"] if again and "R" not in kinds else 0
    return {
        **held,
        "device_mib": round(drop / 2**20, 1),
        "busy_ms": round(busy / 1e6, 2),
        **{f"{kind}_ms": round(ns / 1e6, 2) for kind, ns in kinds.items()},
        **{f"{kind}_%": percent(planned[kind] / ns) for kind, ns in kinds.items() if planned[kind]},
        "compute_%": percent((sum(planned[kind] for kind in kinds) + inside) / sum(kinds.values())),
    }


def _room(setting: Setting) -> int:
    """Return the device's free bytes as the driver counts them; 0 on a CPU."""
    return torch.cuda.mem_get_info(setting.device)[0] if setting.full else 0


def _timed(clock: Clock, worker: Worker) -> tuple[float, dict[str, float]]:
    """Return the medians in ns of a rank's whole order, and of all actions of each kind in it."""
    instructions, busy, sums = memory.bound_alone(worker), [], []
    for _ in range(ROUNDS):
        clock.wait()
        spans, first = [], clock.mark()
        for one in instructions:
            received = one.collect() if one.collect is not None else None
            start = clock.mark()
            one.execute(received)
            spans.append((one.action.kind.name, start, clock.mark()))
        last = clock.mark()
        clock.wait()
        by_kind: dict[str, int] = defaultdict(int)
        for kind, start, end in spans:
            by_kind[kind] += clock.span_ns(start, end)
        sums.append(by_kind)
        busy.append(clock.span_ns(first, last))
        for stage in worker.stages.values():
            stage.losses.clear()
    kinds = [kind for kind in ("F", "B", "I", "W", "R") if sums[0].get(kind)]
    return median(busy[1:]), {kind: median(one[kind] for one in sums[1:]) for kind in kinds}
