"""The ladder: the best plan of every strategy that was searched, who runs it, and why it was chosen or lost.

Where no plan of a rung's strategy fits, the rung has the plan that exceeds memory least. Leaves out how the plans were
found.
"""

from dataclasses import dataclass

from planner.answer.counterfactuals import Counterfactuals, gibibytes
from planner.answer.whole_models import WholeModels
from planner.candidate.evaluate import Evaluated
from planner.candidate.make import make
from planner.plan import Plan, Rung, SearchResult
from planner.plan.fitting import DOES_NOT_FIT, FITS, fitting_of
from planner.plan.rung import RUNGS, cost_of_million
from planner.question.problem import Problem
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem

NOT_ALL = "not-looked-at: of what was tried the least is "
"""Of a strategy that may still fit: not every micro-batch size and way to recompute was priced."""
MOST_MIXTURES = 6
"""Mixtures of several strategies that are listed, the fastest, and the fastest with each strategy that these lack."""


def ladder(
    prepared: PreparedProblem, pool: CandidatePool, chosen: Evaluated, plan: Plan, whole: WholeModels
) -> tuple[Rung, ...]:
    """Return the rungs, single strategies first and the simplest of them first, then mixtures by time.

    A strategy's own line is the plan that the target runs, where there is one; a faster one that it does not run
    follows. Those that do not fit come last.
    """
    found = sorted(pool.rungs(), key=lambda each: not pool.runs(each))
    kept: dict[str, Evaluated] = {chosen.strategy: chosen}
    faster: dict[str, Evaluated] = {}
    for each in found:
        best = kept.setdefault(each.strategy, each)
        if best is not each and each.step_time_ns < best.step_time_ns:
            faster[each.strategy] = each
    single = [kept[name] for name in RUNGS if name in kept]
    mixed = sorted((e for name, e in kept.items() if name not in RUNGS), key=lambda e: e.sort_key)
    listed = [*single, *mixed[:MOST_MIXTURES]]
    for name in RUNGS:
        using = [[each for each in some if name in each.strategy.split("+")] for some in (listed, mixed)]
        if not using[0]:
            listed += using[1][:1]
    if chosen not in listed:
        listed.append(chosen)
    others = [faster[each.strategy] for each in listed if each.strategy in faster]
    rungs = _Rungs(prepared, pool, chosen, plan, Counterfactuals(prepared, pool, chosen))
    made: list[Rung] = []
    for each in (*listed, *others):
        with prepared.dropped.candidate():
            made.append(rungs.of(each))
    with prepared.dropped.candidate():
        made += rungs.that_do_not_fit(whole)
    return tuple(made)


@dataclass(frozen=True)
class _Rungs:
    """What a rung is held against: the chosen plan, and changes of the problem."""

    prepared: PreparedProblem
    pool: CandidatePool
    chosen: Evaluated
    plan: Plan
    counterfactuals: Counterfactuals

    def of(self, each: Evaluated) -> Rung:
        """Return the rung of a plan that fits."""
        made = self.plan if each is self.chosen else _made(self.prepared, each)
        tighter = fitting_of(self.plan) == FITS != fitting_of(made)
        peak, text = max(made.prediction.peak_memory_bytes), why(self.pool, each, self.chosen, made, tighter=tighter)
        return self._rung(each, peak, made.runs_on, text, self._counterfactual(each, made), fitting_of(made))

    def that_do_not_fit(self, whole: WholeModels) -> list[Rung]:
        """Return the rungs of strategies that nothing was found to fit on; no trainer runs these plans here.

        A rung tells that nothing of its strategy fits where all of it was priced.
        """
        found = whole.misfits()
        return [
            self._rung(
                row[0],
                self._peak_bytes(row[0]),
                (),
                f"{'' if name in whole.priced else NOT_ALL}over the memory by {gibibytes(row[0].excess_bytes)}: "
                f"{_how(row[0])}",
                self.counterfactuals.with_memory(row),
                DOES_NOT_FIT,
            )
            for name, row in ((name, found[name]) for name in RUNGS if name in found)
        ]

    def _peak_bytes(self, each: Evaluated) -> int:
        """Return what the fullest rank holds, without making the plan, which may have very many actions."""
        evaluator = self.prepared.evaluator(each.candidate.microbatch_size)
        return max(evaluator.shortest(each.candidate).times.peak_memory_bytes)

    def _rung(
        self, each: Evaluated, peak_bytes: int, runs_on: tuple[str, ...], why: str, better_if: str, fits: str
    ) -> Rung:
        problem, candidate = self.prepared.problem, each.candidate
        devices = sorted({rank for place in candidate.places for rank in place.ranks})
        return Rung(
            each.strategy,
            each.step_time_ns,
            problem.global_batch * 1e9 / each.step_time_ns if each.step_time_ns else 0.0,
            peak_bytes,
            runs_on,
            why,
            candidate.num_devices,
            each.excess_bytes,
            cost_of_million(problem.machines, devices, each.step_time_ns / problem.global_batch),
            better_if,
            fits,
        )

    def _counterfactual(self, each: Evaluated, made: Plan) -> str:
        if each is self.chosen or (self.plan.runs_on and not made.runs_on):
            return ""
        if not self.pool.runs(each):
            return "--target any" if each.step_time_ns < self.chosen.step_time_ns else ""
        if each.step_time_ns <= self.chosen.step_time_ns:
            lead = self.chosen.step_time_ns / each.step_time_ns - 1
            least = self.pool.problem.near - 1
            return f"a lead of {100 * least:g} %, not {lead:.2%}" if lead <= least else ""
        return self.counterfactuals.under_other_conditions(each)


def _made(prepared: PreparedProblem, each: Evaluated) -> Plan:
    result = SearchResult("heuristic", each.step_time_ns, None, "one rung of a ladder", {}, each.step_time_ns)
    return make(prepared.evaluator(each.candidate.microbatch_size), each.candidate, result, "", lowered=False)


def why(pool: CandidatePool, each: Evaluated, chosen: Evaluated, made: Plan, *, tighter: bool = False) -> str:
    """Return why a rung was chosen, or why it lost: one that is `tighter` may not fit, and the chosen plan fits."""
    how = _how(each)
    if each is chosen:
        return f"chosen: {how}"
    against = _against(each.step_time_ns, chosen.step_time_ns)
    if not pool.runs(each):
        takers = ", ".join(made.runs_on) or "no trainer known here"
        return f"{against}, and {pool.aim} does not run it ({takers}): {how}"
    if each.step_time_ns <= chosen.step_time_ns:
        lost = "no trainer known here runs it" if not made.runs_on else "may not fit" if tighter else "less simple"
        return f"{against}, and {lost}: {how}"
    return f"{against}: {how}"


def _against(step_ns: int, chosen_ns: int) -> str:
    """Say how much faster or slower than the chosen plan a step is."""
    if step_ns == chosen_ns:
        return "as fast"
    part = abs(step_ns / chosen_ns - 1)
    return f"{part:.{2 if part < 0.01 else 1}%} {'faster' if step_ns < chosen_ns else 'slower'}"


def _how(each: Evaluated) -> str:
    """Say how a candidate uses its devices."""
    found = each.candidate
    config = found.places[0].config
    parts = [f"{found.num_stages} stages"] if found.num_stages > 1 else []
    chunks = found.num_stages // len({place.ranks for place in found.places})
    parts += [f"{chunks} a device"] if chunks > 1 else []
    degrees = {place.config.division for place in found.places}
    if len(degrees) > 1:
        parts.append("replicas " + ", ".join(str(place.config.data) for place in found.places))
    else:
        names = ("data", "tensor", "context", "expert")
        parts += [f"{name} {getattr(config, name)}" for name in names if getattr(config, name) > 1]
        inner = f"experts in {config.expert_tensor} parts" if config.expert_tensor > 1 else "whole experts"
        parts += [inner] * (config.expert_tensor != config.tensor)
    grouped = f" in groups of {config.shard_group}" if config.shard_group else ""
    parts += [f"ZeRO-{config.zero}{grouped}"] if config.zero else []
    parts += [f"{config.recompute} recompute"] if config.recompute != "none" else []
    parts += [f"{config.offload} offloaded"] if config.offload != "none" else []
    parts.append(f"micro-batches of {found.microbatch_size}")
    return ", ".join(parts)


def idle_devices(problem: Problem, pool: CandidatePool, chosen: Evaluated) -> str:
    """Say which devices stay idle, and what the best plan that uses all takes; nothing where all are used."""
    used = chosen.candidate.num_devices
    if used == problem.num_devices:
        return ""
    every = [
        each
        for each in pool.found.values()
        if each.fits and pool.runs(each) and each.candidate.num_devices == problem.num_devices
    ]
    text = f"uses {used} of {problem.num_devices} devices"
    if not every:
        return f"{text}; no plan that uses all was found to fit"
    best = min(every, key=lambda each: each.sort_key)
    slower = best.step_time_ns / chosen.step_time_ns - 1
    return (
        f"{text}; the best plan that uses all ({best.strategy}) is {slower:.1%} slower"
        if slower > 0
        else (f"{text}; the best plan that uses all ({best.strategy}) is {-slower:.2%} faster")
    )
