"""No plan: the refusal of the candidate that is least over, with what binds, by how much, and the way out."""

from collections.abc import Sequence
from dataclasses import replace

from costmodel.errors import NoPlanFits
from planner.ask.targets import refused
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluated, Run
from planner.search.lacking import lacking_bytes
from planner.search.outcome import Outcome


def no_plan(outcome: Outcome, least: Evaluated, searched: str) -> NoPlanFits:
    """Return the refusal of the candidate that is least over; nothing of what was `searched` is less."""
    setting, found = outcome.setting, least.candidate
    if why := outcome.incumbent.why_not_run(least):
        return NoPlanFits(refused(replace(setting.problem, target=outcome.incumbent.aim), why))
    others = [each for each in outcome.incumbent.rungs() if not outcome.incumbent.runs(each)]
    if others:
        hint = f"; {others[0].strategy} fits, which {outcome.incumbent.aim} does not run: --target any prices it"
    else:
        hint = ""
    lacking = lacking_bytes(setting)
    proof = f"; proved for all {searched}" if outcome.impossible or lacking else ""
    if lacking:
        proof += f": parameters, gradients and optimizer states alone need at least {lacking} bytes a device more"
    if least.num_mixed:
        return _not_apart(found.num_stages, least.num_mixed, proof)
    evaluator = setting.evaluator(found.microbatch_size)
    run = evaluator.simulate(found)
    return _no_room(found, run, evaluator.limits(run), proof + hint)


def _no_room(candidate: Candidate, run: Run, limits: Sequence[int], proof: str) -> NoPlanFits:
    """Return the refusal of a candidate over the memory limit: which rank, by how much, what it holds, the way out."""
    peaks = run.times.peak_memory_bytes
    worst = max(range(len(peaks)), key=lambda i: peaks[i] - limits[i])
    ranks = run.times.structure.schedule.graph.ranks
    cost = next(cost for cost, held in zip(run.priced.costs.stages, ranks, strict=True) if worst in held)
    terms = ", ".join(f"{name} {size}" for name, size in cost.memory_terms)
    return NoPlanFits(
        f"no plan fits into memory: of what was simulated the least over peaks at {peaks[worst]} bytes on rank "
        f"{run.blocks[worst][0]} (of {candidate.num_stages} stages, micro-batch size {candidate.microbatch_size}), the "
        f"limit is {limits[worst]}, {peaks[worst] - limits[worst]} bytes less; its first stage holds {terms}, and "
        f"activations of {cost.activation_bytes} a micro-batch; recompute, shard (zero, tensor) or offload more, or "
        f"allow more memory, more devices or a smaller micro-batch{proof}"
    )


def _not_apart(num_stages: int, mixed: int, proof: str) -> NoPlanFits:
    """Return the refusal of a plan that breaks the [[apart]] pins."""
    return NoPlanFits(
        f"no plan that was found keeps to the [[apart]] pins: the nearest has {num_stages} stages and {mixed} pieces "
        "beside some that they are to be apart from; allow more stages (--devices, --max-stages) or time, take another "
        f"--planner, or give every [[stage]]{proof}"
    )
