"""Profiling and running by turns, in the same processes: a machine whose pace drifts is as slow for both.

In a round both ranks measure one round of the profiler at once, each the company that the other will be, then run one
step of every plan. Both sides go by the wall's clock, which other work and the machine's own pace move alike. The
profile that comes out is one that the profiler made before with operators' times put together anew, from all rounds but
the first; memory, links, the optimizer's step and the division of backwards stay. Leaves out the search.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from costmodel.model.profile import OperatorTimes, Profile
from costmodel.profiling.measure.assemble import Round, assemble
from planner.plan import read_plan
from tests.support.ranks.rank_pool import RankPool

WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Turns:
    """What the rounds gave: the profiler's rounds of both ranks, and the steps of each plan, ns.

    `operators` and `trained` (parameters) name what the rounds' lists hold, in order.
    """

    operators: tuple[str, ...]
    trained: tuple[str, ...]
    rounds: tuple[Round, ...]
    steps: tuple[tuple[int, ...], ...]

    def profile(self, old: Profile) -> Profile:
        """Return a profile of one micro-batch size alone, the old one's, with the times of these rounds."""
        if self.operators != tuple(operator.name for operator in old.graph.operators):
            raise AssertionError("the ranks captured other operators than the profile has")
        shares = {name: _weight_share(times) for name, times in zip(self.operators, old.times, strict=True)}
        found = assemble(old.graph, [self.rounds], [shares])
        times = tuple(
            replace(times, working_bytes=before.working_bytes)
            for times, before in zip(found.times, old.times, strict=True)
        )
        whole = replace(
            old.whole, step_ns=found.step_ns, loss_ns=found.loss_ns, accumulate_ns=sum(found.accumulate_ns),
            split=found.split,
        )  # fmt: skip
        added = dict(zip(self.trained, found.accumulate_ns, strict=True))
        return replace(old, times=times, whole=whole, accumulate_of=added)

    def step_ns(self, index: int) -> int:
        """Return the median step of a plan."""
        return round(median(self.steps[index]))


def _weight_share(times: OperatorTimes) -> float:
    both = times.backward_input_ns[0] + times.backward_weight_ns[0]
    return times.backward_weight_ns[0] / both if both else 0.0


def take_turns(plans: Sequence[Path], model: str, num_rounds: int) -> Turns:
    """Return what so many rounds gave; all plans are for as many ranks."""
    pool = RankPool(len(read_plan(plans[0]).orders))
    try:
        found = pool.run(_turns, plans=[str(path) for path in plans], model=model, num_rounds=num_rounds)
    finally:
        pool.close()
    rounds = tuple(Round.from_list(row) for _, rows, _ in found for row in rows)
    sides = zip(*(rows for _, _, rows in found), strict=True)
    steps = tuple(tuple(max(times) for times in zip(*rows, strict=True)) for rows in sides)
    operators, trained = found[0][0]
    return Turns(operators, trained, rounds, steps)


def _turns(
    plans: Sequence[str], model: str, num_rounds: int
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], list[list[Any]], list[list[int]]]:
    """Run on one rank; returns operators and trained parameters, its rounds, and its step times of each plan."""
    import torch
    import torch.distributed as dist

    from costmodel.capture.batches import take
    from costmodel.capture.capture import capture
    from costmodel.capture.clock import HostClock
    from costmodel.capture.models import load_model
    from costmodel.profiling.measure.rounds import Rounds
    from costmodel.profiling.measure.timing import measure_mark_cost, trained_parameters
    from executor import Pipeline
    from executor.gradients.optimizer import timing_optimizer

    read = [read_plan(path) for path in plans]
    batch, clock = read[0].batch, HostClock()
    alone = capture(load_model(model, batch.microbatch_size), batch.microbatch_size)
    bench = Rounds(
        alone, take(alone.model, batch.microbatch_size), clock, measure_mark_cost(clock, torch.device("cpu"))
    )
    source = capture(load_model(model, batch.global_size), batch.microbatch_size)
    rounds: list[list[Any]] = []
    times: list[list[int]] = [[] for _ in plans]
    with ExitStack() as stack:
        pipelines = [stack.enter_context(Pipeline(plan, source, optimizer=timing_optimizer(plan))) for plan in read]
        for number in range(-WARM_UP_ROUNDS, num_rounds):
            dist.barrier()
            measured = bench.measure(number)
            if number >= 0:
                rounds.append(measured)
            for row, pipeline in zip(times, pipelines, strict=True):
                dist.barrier()
                start = time.perf_counter_ns()
                pipeline.step()
                if number >= 0:
                    row.append(time.perf_counter_ns() - start)
    return (tuple(alone.operators), tuple(trained_parameters(alone, alone.operators))), rounds, times
