"""What the judge promises of every schedule, tried on random ones; `benchmarks.reliability` tries more of them."""

from random import Random

from costmodel.errors import InvalidInput
from costmodel.stages.costs import Costs
from simulator.actions import Kind
from simulator.bounds import bound_of
from simulator.bubbles import bubble_causes
from simulator.critical_path import critical_path
from simulator.engine import simulate
from simulator.lowering import close_step, lower
from simulator.schedule import Schedule
from simulator.timeline import Timeline
from simulator.validation import validate_schedule
from tests.support.random_cases import random_case
from tests.support.random_stage_graphs import random_costs, random_schedule

TRANSFERS = ("latency", "blocking", "links")
OPTIMIZERS = ("independent", "global-norm", "post-validated")


def random_closed(rng: Random) -> tuple[Schedule, Costs]:
    """Random costs with a random legal order, some of them frugal with memory, closed at random."""
    num_microbatches = rng.choice((1, 2, 3, 4, 6, 8))
    costs = random_costs(rng, num_microbatches, one_stage_a_rank=rng.random() < 0.5)
    share = rng.choice((0.0, 0.5, 1.0))
    split = frozenset(s for s in range(len(costs.stages)) if rng.random() < share)
    lean = rng.choice((None, 1.0))
    schedule = random_schedule(rng, costs, num_microbatches, split, lean=lean)
    reduces = [rng.random() < 0.5 for _ in costs.stages]
    return close_step(schedule, reduces, optimizer=rng.random() < 0.5), costs


def bound_failures(num_cases: int) -> list[str]:
    """No bound is above the step of a schedule of its family, with that schedule's own peak as the limit."""
    failures = []
    for seed in range(num_cases):
        rng = Random(f"bound {seed}")
        schedule, costs = random_closed(rng)
        speeds = [rng.choice((0.7, 1.0, 1.3)) for _ in range(costs.num_ranks)] if rng.random() < 0.3 else []
        timeline = simulate(schedule, costs, rng.choice(TRANSFERS), rng.choice(OPTIMIZERS), speeds)
        free = bound_of(schedule, costs, None, speeds).ns
        limited = bound_of(schedule, costs, max(timeline.peak_memory_bytes), speeds).ns
        if not free <= limited <= timeline.step_time_ns:
            failures.append(f"seed {seed}: {free} <= {limited} <= {timeline.step_time_ns}")
    return failures


def any_case_failures(num_cases: int) -> list[str]:
    """The same for whatever the engine takes: slices, R, updates anywhere, lowered lists with late receives."""
    failures = []
    for seed in range(num_cases):
        case = random_case(Random(f"any {seed}"))
        schedule, costs = case.schedule, case.costs
        try:
            timeline = simulate(schedule, costs, case.p2p, case.optimizer_mode, case.speeds)
        except InvalidInput:
            continue  # scrambled on purpose
        if not _ends_in_order(schedule):
            continue  # the engine takes it, the validator does not
        limit = max(timeline.peak_memory_bytes)
        if bound_of(schedule, costs, limit, case.speeds).ns > timeline.step_time_ns:
            failures.append(f"seed {seed}: bound")
        failures += [f"seed {seed}: {what}" for what in _sums_that_fail(schedule, costs, timeline)]
    return failures


def _ends_in_order(schedule: Schedule) -> bool:
    """Whether on each rank a stage's REDUCE follows its backwards, and its OPT both."""
    turn = {Kind.B: 0, Kind.I: 0, Kind.W: 0, Kind.REDUCE: 1, Kind.OPT: 2}
    for order in schedule.orders:
        for stage in range(schedule.graph.num_stages):
            turns = [turn[action.kind] for action in order if action.stage == stage and action.kind in turn]
            if turns != sorted(turns):
                return False
    return True


def account_failures(num_cases: int) -> list[str]:
    """Lowered lists are legal and change no time; idle time and critical path add up."""
    failures = []
    for seed in range(num_cases):
        rng = Random(f"account {seed}")
        schedule, costs = random_closed(rng)
        before = simulate(schedule, costs)
        lowered = lower(schedule, before)
        if validate_schedule(lowered) or simulate(lowered, costs).spans != before.spans:
            failures.append(f"seed {seed}: lowering")
        timeline = simulate(schedule, costs, rng.choice(TRANSFERS), rng.choice(OPTIMIZERS))
        failures += [f"seed {seed}: {what}" for what in _sums_that_fail(schedule, costs, timeline)]
    return failures


def _sums_that_fail(schedule: Schedule, costs: Costs, timeline: Timeline) -> list[str]:
    idle = timeline.num_ranks * timeline.step_time_ns - timeline.compute_ns
    causes = sum(bubble_causes(schedule, costs, timeline).totals.values())
    chain = sum(link.time_ns for link in critical_path(schedule, timeline))
    wrong = [] if causes == idle else [f"causes {causes} of {idle} idle"]
    return wrong if chain == timeline.step_time_ns else [*wrong, f"chain {chain} of {timeline.step_time_ns}"]
