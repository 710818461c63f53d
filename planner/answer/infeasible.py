"""No plan: why nothing was found, or the refusal of the candidate that is least over its limit, with the way out.

An answer is that no plan fits only where this is proved: by states alone, or because every configuration was priced or
is bounded. Else the limit was reached, and the answer tells what was tried.
"""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.errors import LimitReached, NoPlanFits, UsageError
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated, Run
from planner.question.targets import refused
from planner.search.bounders.memory_shortfall import memory_shortfall_bytes
from planner.search.state.result import SearchOutcome

SEARCH = ("ours", "chain", "single", "data-parallel")
"""Planners that search a space, the others make few plans."""


def nothing_found(outcome: SearchOutcome) -> Exception:
    """Return the refusal where not one candidate could be priced: what was fixed cannot be, or hosts have no room."""
    prepared = outcome.prepared
    problem, families, dropped = prepared.problem, prepared.families, prepared.dropped
    if families.not_run and not families.number:
        return NoPlanFits(refused(problem, families.not_run))
    if dropped.refused or dropped.bugs:
        return dropped.refused or RuntimeError(dropped.said)
    return UsageError(
        f"no plan of {problem.profile.graph.name} on {problem.num_devices} devices keeps to what is fixed "
        f"({', '.join(f'{name} {value}' for name, value in problem.space.to_json().items())}"
        f"{', and --pin' if problem.pins else ''}); fix less"
    )


def infeasible_error(outcome: SearchOutcome, least: Evaluated, searched: str) -> NoPlanFits:
    """Return the refusal of the candidate that is least over; nothing of what was `searched` is less."""
    prepared, found = outcome.prepared, least.candidate
    if why := outcome.pool.why_not_run(least):
        return NoPlanFits(refused(replace(prepared.problem, target=outcome.pool.aim), why))
    others = [each for each in outcome.pool.rungs() if not outcome.pool.runs(each)]
    if others:
        hint = f"; {others[0].strategy} fits, which {outcome.pool.aim} does not run: --target any prices it"
    else:
        hint = ""
    lacking = memory_shortfall_bytes(prepared)
    proved = outcome.impossible or lacking > 0
    searches = prepared.problem.planner in SEARCH
    every = f"for all {searched}" if searches else f"by all that --planner {prepared.problem.planner} makes"
    proof = f"; proved {every}" if proved else f"; {_looked_at(outcome)}"
    if lacking:
        proof += f": parameters, gradients and optimizer states alone need at least {lacking} bytes a device more"
    kind = NoPlanFits if proved else LimitReached
    if least.num_apart_violations:
        return kind(_not_apart(found.num_stages, least.num_apart_violations, proof))
    evaluator = prepared.evaluator(found.microbatch_size)
    run = evaluator.simulate(found)
    return kind(_no_room(found, run, evaluator.limits(run), proof + hint))


def _looked_at(outcome: SearchOutcome) -> str:
    """Say of how much a search that proves nothing has looked at how much."""
    every = outcome.prepared.families.number
    return (
        f"it is not proved that none fits: {min(outcome.num_seen, every)} of {every} combinations of degrees, options "
        "and micro-batch sizes were looked at, not every cut of them"
    )


def _no_room(candidate: Candidate, run: Run, limits: Sequence[int], rest: str) -> str:
    """Say which rank of a candidate is over its memory limit, by how much, what it holds, and the way out."""
    peaks = run.times.peak_memory_bytes
    worst = max(range(len(peaks)), key=lambda i: peaks[i] - limits[i])
    ranks = run.times.structure.schedule.graph.ranks
    cost = next(cost for cost, held in zip(run.priced.costs.stages, ranks, strict=True) if worst in held)
    terms = ", ".join(f"{name} {size}" for name, size in cost.memory_terms)
    return (
        f"no plan fits into memory: of what was simulated the least over peaks at {peaks[worst]} bytes on rank "
        f"{run.blocks[worst][0]} (of {candidate.num_stages} stages, micro-batch size {candidate.microbatch_size}), the "
        f"limit is {limits[worst]}, {peaks[worst] - limits[worst]} bytes less; its first stage holds {terms}, and "
        f"activations of {cost.activation_bytes} a micro-batch; recompute, shard (zero, tensor) or offload more, or "
        f"allow more memory, more devices or a smaller micro-batch{rest}"
    )


def _not_apart(num_stages: int, mixed: int, rest: str) -> str:
    """Say by how much a plan breaks the [[apart]] pins."""
    return (
        f"no plan that was found keeps to the [[apart]] pins: the nearest has {num_stages} stages and {mixed} pieces "
        "with pieces that they must be apart from; allow more stages (--devices, --max-stages) or time, take another "
        f"--planner, or give every [[stage]]{rest}"
    )
