"""The table of planners, and the one way to call them: a problem in, a plan out.

Every planner returns the same kind of plan, priced, simulated and bounded the same way; only how candidates are
generated differs. Leaves out the command line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.strategies.model import NEVER
from planner.ask.problem import Problem, Report, divisors
from planner.ask.targets import RUNNERS, default_target, refusal
from planner.candidate.candidate import is_looped
from planner.candidate.evaluate import Evaluated
from planner.candidate.make import make
from planner.candidate.order import WITHIN_LIMIT
from planner.plan import Plan, SearchResult
from planner.plan.limited_by import LimitedBy
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.ladder import idle_devices, ladder
from planner.search.limits import Limits
from planner.search.ours import Search
from planner.search.outcome import Outcome
from planner.search.record import SearchRecord
from planner.search.refusal import no_plan, nothing_found
from planner.search.remedies import ways_out
from planner.search.rivals import alpa, graphpipe, pipedream, piper
from planner.search.rivals.equal_parts import Weigh, equal_parts, num_operators, parameter_bytes
from planner.search.rivals.megatron_uniform import megatron_uniform
from planner.search.rivals.rival import Rival, search
from planner.search.setting import Setting
from planner.search.whole_models import WholeModels
from planner.search.writing import announced, check_length, too_long


@dataclass(frozen=True, slots=True)
class FoundPlan:
    """A plan, and what is known of the search that found it, which no plan file holds."""

    plan: Plan
    record: SearchRecord


def plan(problem: Problem, progress: Report | None = None) -> Plan:
    """Return the plan that the problem's planner finds, as `find` does."""
    return find(problem, progress).plan


def find(problem: Problem, progress: Report | None = None) -> FoundPlan:
    """Return the plan that the problem's planner finds, with the record of its search.

    Parameters
    ----------
    problem : Problem
    progress : callable, optional
        Called with a line of text whenever something better is known.

    Raises
    ------
    UsageError
        For a planner that there is not, or choices that no candidate keeps.
    NoPlanFits
        When nothing that was found is within the memory limit (says which rank is over it, and by how much), or the
        target does not take what was found.
    """
    if problem.planner not in PLANNERS:
        raise UsageError(f"no planner is called {problem.planner!r}; there are {', '.join(PLANNERS)}")
    widened = "" if problem.target else default_target(problem)[1]
    if widened and progress:
        progress(widened)
    effort = problem.effort
    limits = Limits(effort.time_limit_s - effort.spent_s) if effort.deterministic_limit is None else None
    try:
        return _planned(problem, progress, limits)
    except NoPlanFits as error:
        if problem.planner not in ("ours", "chain"):
            raise
        raise type(error)(f"{error}{ways_out(problem, lambda changed: _planned(changed).plan, limits)}") from None


def _planned(problem: Problem, progress: Report | None = None, limits: Limits | None = None) -> FoundPlan:
    outcome = PLANNERS[problem.planner](problem, progress)
    found, record = _chosen(outcome, limits), outcome.incumbent.record
    record.dropped = outcome.setting.dropped.counts
    return FoundPlan(found, record)


def ours(problem: Problem, report: Report | None) -> Outcome:
    """Plan a graph of stages; what is to be proved ranges over what the target runs, and so it is named."""
    if problem.exact:
        problem = replace(problem, target=problem.target or default_target(problem)[0])
    return Search(problem, report).run()


def single(problem: Problem, report: Report | None) -> Outcome:
    """Put everything on one device."""
    return Search(_narrowed(problem, stages=1, data=1, tensor=1, context=1), report).run()


def data_parallel(problem: Problem, report: Report | None) -> Outcome:
    """Give every device a replica of the whole model: the most replicas that divide the batch, nothing sharded."""
    most = max(d for d in divisors(problem.global_batch) if d <= problem.num_devices)
    data, zero = problem.space.data or most, problem.space.zero or 0
    fixed = {"stages": 1, "data": data, "tensor": 1, "context": 1, "expert": 1, "zero": zero, "offload": "none"}
    return Search(_narrowed(problem, **fixed), report).run()


def uniform(problem: Problem, report: Report | None) -> Outcome:
    """Give every stage the same number of operators."""
    return _equal(problem, report, num_operators)


def parameters(problem: Problem, report: Report | None) -> Outcome:
    """Give every stage the same bytes of parameters."""
    return _equal(problem, report, parameter_bytes)


RIVALS = (
    Rival("pipedream", pipedream.propose, line=True),
    Rival("piper", piper.propose, line=True, limit=piper.LIMIT),
    Rival("alpa", alpa.propose, line=True),
    Rival("graphpipe", graphpipe.propose, line=False),
)
"""Planners that optimise an objective of their own."""
PLANNERS: dict[str, Callable[[Problem, Report | None], Outcome]] = {
    "ours": ours,
    "chain": ours,  # the same search for lines, tensors relayed from stage to stage (`Cuts.always_line`)
    "single": single,
    "data-parallel": data_parallel,
    "uniform": uniform,
    "parameters": parameters,
    "megatron-uniform": megatron_uniform,
    **{rival.name: partial(search, rival) for rival in RIVALS},
}
"""Every planner by its name."""


def _narrowed(problem: Problem, **fixed: object) -> Problem:
    """Fix choices that a planner makes by its nature.

    Raises
    ------
    UsageError
        Where a flag fixes another value.
    """
    space = problem.space
    wrong = [f"{name} {getattr(space, name)}" for name, value in fixed.items() if not space.allows(name, value)]
    if wrong:
        raise UsageError(
            f"--planner {problem.planner} means {', '.join(f'{name} {value}' for name, value in fixed.items())}, and "
            f"{', '.join(wrong)} is fixed; drop one of the two"
        )
    return replace(problem, space=replace(space, **fixed))  # type: ignore[arg-type]


def _equal(problem: Problem, report: Report | None, weigh: Weigh) -> Outcome:
    """Cut in equal parts; of what flags leave open, devices are stages and nothing else."""
    space = problem.space
    usual = {"data": 1, "tensor": 1, "context": 1, "expert": 1, "chunks": 1, "zero": 0, "recompute": "none",
             "offload": "none", "sequence_parallel": False}  # fmt: skip
    fixed = {name: value for name, value in usual.items() if getattr(space, name) is None}
    if space.stages is not None and space.data is None:
        left = problem.num_devices // (space.stages * (space.tensor or 1) * (space.context or 1))
        fixed["data"] = max(1, left)
    narrowed = replace(problem, space=replace(space, **fixed))  # type: ignore[arg-type]
    setting = Setting(narrowed)
    incumbent = Incumbent(narrowed, narrowed.target or default_target(narrowed)[0], setting.tears, report)
    equal_parts(setting, incumbent, weigh)
    bound_ns = min(map(setting.closed_form_ns, setting.families.all), default=0)
    return Outcome(setting, incumbent, bound_ns, {}, LimitedBy.EXHAUSTED, True)


def _chosen(outcome: Outcome, limits: Limits | None) -> Plan:
    """Return the plan of the first choice that the target takes, with its ladder."""
    if not outcome.incumbent.found:
        raise nothing_found(outcome)
    searches = outcome.setting.problem.planner in ("ours", "chain")
    return _headline(outcome, WholeModels(outcome.setting, outcome.incumbent, offers=searches, limits=limits))


MOST_NOT_RUN = 6
"""Plans of several stages that are made to learn that no trainer runs them, before those of one stage alone are."""


def _headline(outcome: Outcome, whole: WholeModels) -> Plan:
    """Return the first choice that the target takes and that some trainer runs; where none is, the first it takes.

    What a faster one that nobody runs would gain stands in the plan beside it (`best_unrun`). Whoever asks for a proof,
    or for what another planner does, gets just that.
    """
    setting, incumbent, old = outcome.setting, outcome.incumbent, outcome.old_plan
    problem, not_taken = setting.problem, ""
    asks_who_runs = problem.planner in ("ours", "chain") and not problem.exact and problem.target not in RUNNERS
    passed_over: list[Evaluated] = []
    num_made = 0
    most = [outcome.baselines.get("chain"), old.never_above_ns if old else None]
    for chosen in incumbent.choices(min((ns for ns in most if ns is not None), default=None)):
        if not chosen.fits or (passed_over and old and chosen.step_time_ns > (old.never_above_ns or NEVER)):
            break  # no answer is slower than an old plan that stands
        pipelined, looks_on = chosen.candidate.num_stages > 1, bool(passed_over)
        if asks_who_runs and (
            not incumbent.somebody_may_run(chosen)
            or (looks_on and pipelined and num_made >= MOST_NOT_RUN)
            or (looks_on and too_long(chosen.num_actions, chosen.copies))
        ):
            passed_over.append(chosen)
            continue
        found = _made(outcome, chosen, not_taken, passed_over)
        why = refusal(problem, found) if found else str(setting.dropped.refused or setting.dropped.said)
        if found and not why and (found.runs_on or not asks_who_runs):
            return _with_ladder(outcome, chosen, found, whole)
        if found and not why:
            passed_over.append(chosen)
            num_made += pipelined
        not_taken = not_taken or why
    for chosen in passed_over:
        found = _made(outcome, chosen, not_taken, ())
        if found:
            return _with_ladder(outcome, chosen, found, whole)
    if setting.dropped.bugs:
        raise RuntimeError(setting.dropped.said)
    if not_taken:
        raise NoPlanFits(not_taken)
    raise no_plan(outcome, incumbent.best, scope(setting))


def _made(outcome: Outcome, chosen: Evaluated, not_taken: str, passed_over: Sequence[Evaluated]) -> Plan | None:
    """Make the plan of a choice, None where it cannot be made.

    Others were preferred to it that the target does not take, or nobody runs.
    """
    check_length(chosen)
    outcome.incumbent.announce(announced(chosen))
    faster = [each for each in passed_over if each.step_time_ns < chosen.step_time_ns]
    unrun = min(faster, key=lambda each: each.rank, default=None)
    found = None
    with outcome.setting.dropped.candidate():
        found = make(
            outcome.setting.evaluator(chosen.candidate.microbatch_size),
            chosen.candidate,
            _result(outcome, chosen, chosen if not_taken else outcome.incumbent.best),
            _reason(outcome, chosen, _why_preferred(outcome, not_taken, bool(unrun))),
        )
    if found is None or not unrun:
        return found
    told = {"step_time_ns": unrun.step_time_ns, "strategy": unrun.strategy}
    return replace(found, extra={**found.extra, "best_unrun": told})


def _with_ladder(outcome: Outcome, chosen: Evaluated, found: Plan, whole: WholeModels) -> Plan:
    """Add the ladder, what became of the old plan, and what bugs cost."""
    old, dropped = outcome.old_plan, outcome.setting.dropped
    rungs = ladder(outcome.setting, outcome.incumbent, chosen, found, whole)
    outcome.incumbent.announce(dropped.said)
    extra = {**({"from": old.to_json()} if old else {}), **({"bugs": dropped.bugs} if dropped.bugs else {})}
    return replace(found, rungs=rungs, extra={**found.extra, **extra})


def _result(outcome: Outcome, chosen: Evaluated, best: Evaluated) -> SearchResult:
    """Bound the choice; a bound above it is a bug of ours, which must not cost the plan.

    `best` is the fastest that the target takes, as far as is known.
    """
    step_ns = chosen.step_time_ns
    best_ns = min(best.step_time_ns, step_ns)
    bound_ns, looped_ns, halved_ns = outcome.lower_bound_ns, outcome.looped_bound_ns, outcome.halved_bound_ns
    if bound_ns is not None and looped_ns is not None and is_looped(chosen.candidate.places):
        bound_ns, looped_ns = min(bound_ns, looped_ns), None
    if bound_ns is not None and halved_ns is not None and chosen.candidate.schedule == WITHIN_LIMIT:
        bound_ns, halved_ns = min(bound_ns, halved_ns), None
    wrong = bound_ns is not None and bound_ns > best_ns
    status = "baseline" if outcome.setting.problem.planner != "ours" else "bounded"
    if (
        status == "bounded"
        and bound_ns == step_ns
        and all(beside is None or beside >= step_ns for beside in (looped_ns, halved_ns))
    ):
        status = "optimal"
    return SearchResult(
        "heuristic" if wrong or (bound_ns is None and status == "bounded") else status,
        step_ns,
        None if wrong else bound_ns,
        outcome.bound_scope or scope(outcome.setting) + _left_out(looped_ns, halved_ns, best_ns),
        outcome.baselines,
        best_ns,
        LimitedBy.BROKEN_BOUND if wrong else outcome.limited_by,
        *(outcome.estimate if outcome.estimate and outcome.estimate[1] else (None, None)),
    )


def _left_out(looped_ns: int | None, halved_ns: int | None, best_ns: int) -> str:
    """Say what the bound leaves out."""
    parts = (
        ("one stage a rank: of several a rank", looped_ns),
        ("whole backwards: of split ones", halved_ns),
    )
    return "".join(
        f"; {what} it is only proved that they take at least {ns / 1e6:.3f} ms"
        for what, ns in parts
        if ns is not None and ns < best_ns
    )


def scope(setting: Setting) -> str:
    """Say what the bound ranges over."""
    problem, families = setting.problem, setting.families
    if setting.pinned_partition:
        num = len(setting.pinned.places)
        return f"orders of the micro-batches of {num} pinned stages on these ranks, schedule {problem.schedule}"
    degrees = families.degrees
    sizes = sorted({size for config in degrees for size in problem.microbatch_sizes_of(config.data)})
    fixed = problem.space.to_json()
    several = any(config.data * config.context > 1 for config in degrees)
    choices = [config for config in families.choices if several or config.zero == 0]
    values: dict[str, set[object]] = {
        **{name: {getattr(config, name) for config in degrees} for name in ("data", "tensor", "context", "expert")},
        **{name: {getattr(config, name) for config in choices} for name in ("zero", "recompute", "offload")},
        "chunks": {number for config in degrees for number in families.numbers_of_chunks(config)},
    }
    free = [name for name, known in values.items() if len(known) > 1]
    numbers = ((config, max(families.numbers_of_chunks(config))) for config in degrees)
    most = max((setting.cuts(Family(config, sizes[0], number)).num_stages for config, number in numbers), default=1)
    most = min(most, problem.max_stages or most)
    replicas = "" if problem.exact else " or replicas by stage"
    num_orders = len(families.orders)
    ordered = f" taken in {num_orders} orders" if num_orders > 1 else ""
    text = (
        f"cuts between {len(setting.atoms)} atoms of {len(problem.profile.graph.operators)} operators, at most {most} "
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


def _why_preferred(outcome: Outcome, not_taken: str, unrun: bool) -> str:
    """Say why a plan is chosen that is slower than another."""
    if not_taken:
        return f"taken by --target {outcome.setting.problem.target}, unlike that"
    return "a trainer runs it, unlike that" if unrun else "simpler"


def _reason(outcome: Outcome, chosen: Evaluated, preferred: str) -> str:
    """Say why a plan was chosen; `preferred` is why it was to a faster one, where there is one."""
    best = outcome.incumbent.best
    text = "the fastest plan found"
    if chosen.step_time_ns > best.step_time_ns:
        slower = 100 * (chosen.step_time_ns / best.step_time_ns - 1)
        text = (
            f"{slower:.2f} % slower than the fastest plan found ({best.strategy}, {best.candidate.num_stages} stages, "
            f"{best.candidate.schedule}), and {preferred}: {chosen.strategy}, {chosen.candidate.num_stages} stages, "
            f"{chosen.candidate.schedule}"
        )
    idle = idle_devices(outcome.setting.problem, outcome.incumbent, chosen)
    return "; ".join(filter(None, (text, idle, _stands_on(chosen))))


def _stands_on(chosen: Evaluated) -> str:
    """Say which devices the ranks of a plan are that leaves out some before others."""
    used = sorted({rank for place in chosen.candidate.places for rank in place.ranks})
    if used == list(range(len(used))):
        return ""
    return f"its ranks are, in this order, the devices {', '.join(map(str, used))} of the cluster, counted from 0"
