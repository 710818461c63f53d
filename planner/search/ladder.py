"""The ladder: the best plan of every strategy that was searched, who runs it, and why it was chosen or lost.

Leaves out how the plans were found.
"""

from planner.ask.problem import Problem
from planner.candidate.evaluate import Evaluated
from planner.candidate.make import make
from planner.plan import Plan, Rung, SearchResult
from planner.plan.rung import RUNGS
from planner.search.incumbent import Incumbent
from planner.search.setting import Setting

MOST_MIXTURES = 6
"""Mixtures of several strategies that are listed, the fastest; every single strategy is."""


def ladder(setting: Setting, incumbent: Incumbent, chosen: Evaluated, plan: Plan) -> tuple[Rung, ...]:
    """Return the rungs, single strategies first and the simplest of them first, then mixtures by time.

    A strategy's own line is the plan that the target runs, where there is one; a faster one that it does not run
    follows.
    """
    found = sorted(incumbent.rungs(), key=lambda each: not incumbent.runs(each))
    kept: dict[str, Evaluated] = {chosen.strategy: chosen}
    faster: dict[str, Evaluated] = {}
    for each in found:
        best = kept.setdefault(each.strategy, each)
        if best is not each and each.step_time_ns < best.step_time_ns:
            faster[each.strategy] = each
    single = [kept[name] for name in RUNGS if name in kept]
    mixed = sorted((e for name, e in kept.items() if name not in RUNGS), key=lambda e: e.rank)
    listed = [*single, *mixed[:MOST_MIXTURES]]
    if chosen not in listed:
        listed.append(chosen)
    others = [faster[each.strategy] for each in listed if each.strategy in faster]
    return tuple(_rung(setting, incumbent, each, chosen, plan) for each in (*listed, *others))


def _rung(setting: Setting, incumbent: Incumbent, each: Evaluated, chosen: Evaluated, plan: Plan) -> Rung:
    problem = setting.problem
    made = plan if each is chosen else _made(setting, each)
    return Rung(
        each.strategy,
        each.step_time_ns,
        problem.global_batch * 1e9 / each.step_time_ns if each.step_time_ns else 0.0,
        max(made.prediction.peak_memory_bytes),
        made.runs_on,
        why(problem, incumbent, each, chosen, made),
        each.candidate.num_devices,
    )


def _made(setting: Setting, each: Evaluated) -> Plan:
    result = SearchResult("heuristic", each.step_time_ns, None, "one rung of a ladder", {}, each.step_time_ns)
    return make(setting.evaluator(each.candidate.microbatch_size), each.candidate, result, "", lowered=False)


def why(problem: Problem, incumbent: Incumbent, each: Evaluated, chosen: Evaluated, made: Plan) -> str:
    """Return why a rung was chosen, or why it lost."""
    how = _how(each)
    if each is chosen:
        return f"chosen: {how}"
    slower = each.step_time_ns / chosen.step_time_ns - 1
    if not incumbent.runs(each):
        takers = ", ".join(made.runs_on) or "no trainer known here"
        gain = f"{-slower:.1%} faster" if slower < 0 else f"{slower:.1%} slower"
        return f"{gain}, and {incumbent.aim} does not run it ({takers}): {how}"
    if slower <= 0:
        return f"{-slower:.2%} faster, and less simple: {how}"
    return f"{slower:.1%} slower: {how}"


def _how(each: Evaluated) -> str:
    """Say how a candidate uses its devices."""
    found = each.candidate
    config = found.places[0].config
    parts = [f"{found.num_stages} stages"] if found.num_stages > 1 else []
    degrees = {(p.config.data, p.config.tensor, p.config.context, p.config.expert) for p in found.places}
    if len(degrees) > 1:
        parts.append("replicas " + ", ".join(str(place.config.data) for place in found.places))
    else:
        names = ("data", "tensor", "context", "expert")
        parts += [f"{name} {getattr(config, name)}" for name in names if getattr(config, name) > 1]
    parts += [f"ZeRO-{config.zero}"] if config.zero else []
    parts += [f"{config.recompute} recompute"] if config.recompute != "none" else []
    parts += [f"{config.offload} offloaded"] if config.offload != "none" else []
    parts.append(f"micro-batches of {found.microbatch_size}")
    return ", ".join(parts)


def idle_devices(problem: Problem, incumbent: Incumbent, chosen: Evaluated) -> str:
    """Say which devices stay idle, and what the best plan that uses all takes; nothing where all are used."""
    used = chosen.candidate.num_devices
    if used == problem.num_devices:
        return ""
    every = [
        each
        for each in incumbent.found.values()
        if each.fits and incumbent.runs(each) and each.candidate.num_devices == problem.num_devices
    ]
    text = f"uses {used} of {problem.num_devices} devices"
    if not every:
        return f"{text}; no plan that uses all was found to fit"
    best = min(every, key=lambda each: each.rank)
    slower = best.step_time_ns / chosen.step_time_ns - 1
    return (
        f"{text}; the best plan that uses all ({best.strategy}) is {slower:.1%} slower"
        if slower > 0
        else (f"{text}; the best plan that uses all ({best.strategy}) is {-slower:.2%} faster")
    )
