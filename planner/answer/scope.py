"""What is proved of a choice: its bound, and in words what that ranges over.

Leaves out where bounds come from.
"""

from planner.candidate.candidate import is_looped
from planner.candidate.evaluate import Evaluated
from planner.candidate.order import WITHIN_LIMIT
from planner.plan import SearchResult
from planner.plan.limited_by import LimitedBy
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from planner.search.state.result import SearchBound, SearchOutcome


def result(outcome: SearchOutcome, chosen: Evaluated, best: Evaluated) -> SearchResult:
    """Bound the choice; a bound above it is a bug of ours, which must not cost the plan.

    `best` is the fastest that the target takes, as far as is known.
    """
    step_ns = chosen.step_time_ns
    best_ns = min(best.step_time_ns, step_ns)
    candidate = chosen.candidate
    bound = outcome.bound.over(looped=is_looped(candidate.places), split_backward=candidate.schedule == WITHIN_LIMIT)
    wrong = bound.ns is not None and bound.ns > best_ns
    status = "baseline" if outcome.prepared.problem.planner != "ours" else "bounded"
    if status == "bounded" and bound.proves(step_ns):
        status = "optimal"
    return SearchResult(
        "heuristic" if wrong or (bound.ns is None and status == "bounded") else status,
        step_ns,
        None if wrong else bound.ns,
        bound.scope or scope(outcome.prepared) + _left_out(bound, best_ns),
        outcome.baselines,
        best_ns,
        LimitedBy.BROKEN_BOUND if wrong else outcome.limited_by,
        *(outcome.estimate if outcome.estimate and outcome.estimate[1] else (None, None)),
    )


def _left_out(bound: SearchBound, best_ns: int) -> str:
    """Say what the bound leaves out."""
    parts = (
        ("one stage a rank: of several a rank", bound.looped_ns),
        ("whole backwards: of split ones", bound.split_backward_ns),
    )
    return "".join(
        f"; {what} it is only proved that they take at least {ns / 1e6:.3f} ms"
        for what, ns in parts
        if ns is not None and ns < best_ns
    )


def scope(prepared: PreparedProblem) -> str:
    """Say what the bound ranges over."""
    problem, families = prepared.problem, prepared.families
    if prepared.pinned_partition:
        num = len(prepared.pinned.places)
        return f"orders of the micro-batches of {num} pinned stages on these ranks, schedule {problem.schedule}"
    degrees = families.degrees
    sizes = sorted({size for config in degrees for size in problem.microbatch_sizes_of(config.data)})
    fixed = problem.space.to_json()
    several = any(config.data * config.context > 1 for config in degrees)
    choices = [config for config in families.choices if several or config.zero == 0]
    values: dict[str, set[object]] = {
        **{name: {getattr(config, name) for config in degrees} for name in ("data", "tensor", "context", "expert")},
        "expert_tensor": {config.expert_tensor == config.tensor for config in degrees},
        **{name: {getattr(config, name) for config in choices} for name in ("zero", "recompute", "offload")},
        "shard_group": {group for config in degrees for group in families.shard_groups(config)}
        if any(config.zero for config in choices)
        else set(),
        "chunks": {number for config in degrees for number in families.numbers_of_chunks(config)},
    }
    free = [name for name, known in values.items() if len(known) > 1]
    numbers = ((config, max(families.numbers_of_chunks(config))) for config in degrees)
    most = max((prepared.cuts(Family(config, sizes[0], number)).num_stages for config, number in numbers), default=1)
    most = min(most, problem.max_stages or most)
    replicas = "" if problem.exact else " or replicas by stage"
    num_orders = len(families.arrangements)
    ordered = f" taken in {num_orders} orders" if num_orders > 1 else ""
    text = (
        f"cuts between {len(prepared.atoms)} atoms of {len(problem.profile.graph.operators)} operators, at most {most} "
        f"stages on {problem.num_devices} devices{ordered}, all configured alike{replicas}, "
        f"micro-batch size {' or '.join(map(str, sizes))}, "
        + (f"any {', '.join(free)}" if free else "no strategy within stages")
        + ("; fixed: " + ", ".join(f"{name} {value}" for name, value in fixed.items()) if fixed else "")
        + f"; schedule {' or '.join(problem.schedules) if problem.exact else problem.schedule}"
    )
    if problem.pins:
        pins = problem.pins
        text += f", pins: {len(pins.together)} together, {len(pins.apart)} apart, {len(pins.stages)} stages"
    limits = [limit for limit in problem.memory_limits_bytes if limit]
    return f"{text}, {max(limits)} bytes a rank" if limits else text
