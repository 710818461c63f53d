"""The table of planners, and the one way to call them: a problem in, a plan out.

Every planner returns the same kind of plan, simulated and bounded the same way; only how the cut is
chosen differs. Leaves out the command line.
"""

from collections.abc import Callable

from costmodel.errors import NoPlanFits, UsageError
from costmodel.stages.strategies.training import DTYPES
from planner import baselines
from planner.assemble import assemble
from planner.job import plan_job
from planner.pinned import plan_pinned
from planner.plan import Plan, SearchResult
from planner.problem import Problem, Report
from planner.search.evaluate import Candidate, Evaluator
from planner.search.incumbent import Incumbent
from planner.search.ours import Search, chain_search
from planner.search.setting import Setting
from planner.targets import LINE_TARGETS, refusal


def plan(problem: Problem, progress: Report | None = None) -> Plan:
    """Return the plan that the problem's planner finds, or that its pins describe whole.

    Parameters
    ----------
    problem : Problem
    progress : callable, optional
        Called with a line of text whenever something better is known.

    Raises
    ------
    UsageError
        For a planner that there is not.
    NoPlanFits
        When nothing that was found is within the memory limit (says which rank is over it, and by how much), or the
        target does not take what was found.
    """
    if problem.planner not in PLANNERS:
        raise UsageError(f"no planner is called {problem.planner!r}; there are {', '.join(PLANNERS)}")
    if problem.choices.any:
        return plan_job(problem, progress)
    _check_searchable(problem)
    if problem.pins and problem.pins.stages:
        found = plan_pinned(problem, problem.pins)
    elif problem.planner == "ours" and problem.target in LINE_TARGETS:
        found = chain(problem, progress)
    else:
        found = PLANNERS[problem.planner](problem, progress)
    refused = refusal(problem.target, found, problem.profile)
    if refused:
        raise NoPlanFits(refused)
    return found


def _check_searchable(problem: Problem) -> None:
    """Refuse what a search does not price: several profiles, another precision than the profile's."""
    if problem.other_profiles:
        raise UsageError(
            f"{1 + len(problem.other_profiles)} profiles, and a search plans with one; fix the job's choices "
            "(--stages, --data, ...), or give one"
        )
    profiled, asked = DTYPES.get(problem.profile.dtype.removeprefix("torch."), ""), problem.choices.precision
    if asked not in (None, profiled):
        raise UsageError(
            f"--precision {asked}, and a search plans in the profile's ({problem.profile.dtype}); profile the model in "
            f"{asked}, or fix the job's choices too (--stages, --data, ...)"
        )


def ours(problem: Problem, report: Report | None) -> Plan:
    """Plan a graph of stages."""
    found = Search(problem, report).run()
    proof = f"; proved for all {found.setting.scope}" if found.impossible else ""
    _check_fits(found.evaluator, found.choice, proof)
    step_time_ns, bound_ns = found.choice.step_time_ns, found.lower_bound_ns
    result = SearchResult(
        status="optimal" if step_time_ns == bound_ns else "bounded",
        objective=step_time_ns,
        lower_bound_ns=bound_ns,
        scope=found.setting.scope,
        baselines=found.baselines,
        best_step_time_ns=found.best.step_time_ns,
        limited_by=found.limited_by,
    )
    return assemble(found.evaluator, found.choice, result, _reason(found.choice, found.best))


def chain(problem: Problem, report: Report | None) -> Plan:
    """Plan stages in one line."""
    setting = Setting(problem)
    return _baseline(setting, chain_search(list(setting.evaluators.values()), report))


def single(problem: Problem, report: Report | None) -> Plan:
    """Put everything on one device."""
    return _baseline(*baselines.single(problem, report))


def uniform(problem: Problem, report: Report | None) -> Plan:
    """Give every stage the same number of operators."""
    return _baseline(*baselines.equal_parts(problem, report, baselines.num_operators))


def parameters(problem: Problem, report: Report | None) -> Plan:
    """Give every stage the same bytes of parameters."""
    return _baseline(*baselines.equal_parts(problem, report, baselines.parameter_bytes))


PLANNERS: dict[str, Callable[[Problem, Report | None], Plan]] = {
    "ours": ours,
    "chain": chain,
    "single": single,
    "uniform": uniform,
    "parameters": parameters,
}
"""Every planner by its name."""


def _baseline(setting: Setting, found: Incumbent) -> Plan:
    choice, best = found.choice(), found.best
    evaluator = setting.evaluators[choice.microbatch_size]
    _check_fits(evaluator, choice)
    result = SearchResult(
        status="baseline",
        objective=choice.step_time_ns,
        lower_bound_ns=min(setting.closed_forms_ns.values()),
        scope=setting.scope,
        best_step_time_ns=best.step_time_ns,
    )
    return assemble(evaluator, choice, result, _reason(choice, best))


def _reason(choice: Candidate, best: Candidate) -> str:
    if choice.step_time_ns == best.step_time_ns:
        return "the fastest plan found"
    slower = 100 * (choice.step_time_ns / best.step_time_ns - 1)
    return (
        f"{slower:.2f} % slower than the fastest plan found ({best.num_stages} stages, {best.schedule}), and simpler: "
        f"{choice.num_stages} stages, {choice.schedule}"
    )


def _check_fits(evaluator: Evaluator, candidate: Candidate, proof: str = "") -> None:
    """Refuse a plan over the memory limit, with what binds and by how much."""
    if candidate.fits:
        return
    if candidate.num_mixed:
        raise NoPlanFits(
            f"no plan that was found keeps to the [[apart]] pins: the nearest has {candidate.num_stages} stages and "
            f"{candidate.num_mixed} pieces beside some that they are to be apart from; allow more stages (--devices, "
            f"--max-stages) or time, take another --planner, or give every [[stage]]{proof}"
        )
    peaks = evaluator.simulate(candidate.partition, candidate.schedule, candidate.shape).times.peak_memory_bytes
    limits = evaluator.problem.memory_limits_bytes
    rank = max(range(len(peaks)), key=lambda r: peaks[r] - limits[r] if limits[r] else 0)
    raise NoPlanFits(
        f"no plan fits into memory: the least that was found peaks at {peaks[rank]} bytes on rank {rank} (of "
        f"{candidate.num_stages} stages, micro-batch size {candidate.microbatch_size}), the limit is {limits[rank]}, "
        f"{candidate.excess_bytes} bytes less; allow more memory, more devices or a smaller micro-batch{proof}"
    )
