"""Ways out where no plan fits: the changes that help, the cheapest first, each verified by planning again.

Dropping what a flag or pin fixes costs nothing, nor does memory that devices have and a limit withholds; then come
devices with more memory, more devices, and memory of hosts to offload to. Leaves out changes of two kinds at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import ceil, log2

from costmodel.errors import PenstockError, UsageError
from costmodel.stages.config import StageConfig
from planner.plan import Plan
from planner.question.effort import Effort
from planner.question.problem import AUTO, Problem
from planner.search.budget import FIXES_S, Deadline
from planner.search.proposers.lowest_memory import lowest_memory_candidates
from planner.search.space.dropped import Dropped
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem

SECONDS, PLAN_SECONDS = 1.0, 2.0
"""Looking for the least memory, and planning again."""
LEAST_SECONDS = 0.5
"""Seconds for feasibility fixes, however little time is left, unless the search overran its limit by as much."""
MOST_TIMES = 16
"""Times as many devices up to which more of them are tried."""
UNTRIED = "; no change that helps was verified in the time that there was"
MARGIN = 1.02
"""Factor on the least memory found before it is named: a short search may miss the least by some bytes."""
GIB = 2**30

TryPlan = Callable[[Problem], Plan]


def feasibility_fixes(problem: Problem, try_plan: TryPlan, whole: Deadline | None = None) -> str:
    """Return in words what would fit, or what was tried in vain; it begins with "; ".

    Parameters
    ----------
    problem : Problem
    try_plan : function
        Plans a changed problem.
    whole : Deadline, optional
        The deadline of the command; `FIXES_S` where it has none.
    """
    if whole and whole.passed_s > LEAST_SECONDS:
        return UNTRIED
    limits = Deadline(max(LEAST_SECONDS, whole.remaining_s) if whole else FIXES_S)

    dropped = Dropped()

    def first(kind: Callable[[Problem], Iterator[tuple[str, Problem]]]) -> list[str]:
        fitting = (text for text, changed in kind(problem) if not limits.expired and _fits(changed, try_plan, limits))
        with dropped.candidate():
            return list(islice(fitting, 1))
        return []

    found = first(_free) or first(_memory) + first(_devices) + first(_hosts)
    said = f"; {dropped.said}" if dropped.bugs else ""
    if found:
        return f"; verified by planning again, a plan fits {', or '.join(found)}{said}"
    if limits.expired:
        return UNTRIED
    return (
        "; tried in vain: every choice free, memory of hosts to offload to, and up to "
        f"{MOST_TIMES} times as many devices, where the cluster has them{said}"
    )


def _fits(problem: Problem, try_plan: TryPlan, limits: Deadline) -> bool:
    """Whether a plan of a changed problem is found in a short time."""
    try:
        if not any(
            each.fits
            for _, each in lowest_memory_candidates(PreparedProblem(problem), min(SECONDS, limits.remaining_s))
        ):
            return False
        try_plan(replace(problem, effort=Effort(min(PLAN_SECONDS, limits.remaining_s), seed=problem.effort.seed)))
    except PenstockError:
        return False
    return True


def _free(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem without each single thing that is fixed, then without all of them."""
    space, names = problem.space, list(problem.space.to_json())
    fixed = [(_flag(name), replace(problem, space=replace(space, **{name: None}))) for name in names]
    if problem.microbatch_size is not None:
        fixed.append(("--microbatch-size", replace(problem, microbatch_size=None)))
    if problem.schedule != AUTO:
        fixed.append(("--schedule", replace(problem, schedule=AUTO)))
    if problem.max_stages is not None:
        fixed.append(("--max-stages", replace(problem, max_stages=None)))
    if problem.pins:
        fixed.append(("--pin", replace(problem, pins=None)))
    yield from ((f"without {name}", changed) for name, changed in fixed)
    if len(fixed) > 1:
        none = replace(space, **dict.fromkeys(names))
        free = replace(problem, space=none, microbatch_size=None, schedule=AUTO, max_stages=None, pins=None)
        yield f"without {', '.join(name for name, _ in fixed)}", free


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _memory(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem with as much memory as the leanest candidate needs."""
    found = [
        each
        for _, each in lowest_memory_candidates(PreparedProblem(problem), SECONDS)
        if each.excess_bytes and not each.num_apart_violations
    ]
    if not found:
        return
    least = found[0]
    most = min(filter(None, problem.memory_limits_bytes))
    size = f"{ceil(MARGIN * (most + least.excess_bytes) * 100 / GIB) / 100:.2f}"
    needed = round(float(size) * GIB)
    devices = [device.memory_bytes for device in problem.machines.devices if device.name in problem.device_names]
    larger = tuple(replace(each, memory_bytes=max(each.memory_bytes, needed)) for each in problem.machines.devices)
    changed = replace(problem, memory_limit_bytes=needed, cluster=replace(problem.machines, devices=larger))
    if all(needed <= memory for memory in devices if memory):
        yield f"with --memory-limit {size}", changed
    else:
        yield f"on devices with {size} GiB", changed


def _hosts(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem with hosts whose memory holds all states, and with twice as much: powers of two of GiB."""
    machines, alone = problem.machines, Family(StageConfig(), min(problem.microbatch_sizes))
    share = PreparedProblem(problem).families.states_bytes(alone) / problem.num_devices
    least = ceil(log2(max(1, *(share * host.devices for host in machines.hosts)) / GIB))
    for size in (2**least, 2 ** (least + 1)):
        hosts = tuple(replace(host, memory_bytes=max(host.memory_bytes, round(size * GIB))) for host in machines.hosts)
        if hosts != machines.hosts:
            changed = replace(problem, cluster=replace(machines, hosts=hosts))
            yield f"with memory_gib = {size} in each [[host]], to offload to", changed


def _devices(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield the problem on twice as many devices, and so on, as far as a given cluster has them."""
    times = 2
    while times <= MOST_TIMES:
        try:
            yield (
                f"with --devices {times * problem.num_devices}",
                replace(problem, num_devices=times * problem.num_devices),
            )
        except UsageError:  # the cluster has no more, or pins name every rank
            return
        times *= 2
