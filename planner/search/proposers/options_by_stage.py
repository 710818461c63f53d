"""Options that differ by stage: degrees, ZeRO, recompute, offload, each stage in its own way on the ranks that it has.

Each stage of a pipeline is priced in every way that differs from its own in one option. Of those that hold as many
micro-batches as it has in flight it takes the one with which its ranks are done soonest; where none does, the one that
holds least. All stages change, or the one that is done last alone; the simulator judges. Leaves out stages that share
ranks, and plans whose orders were sought for their times.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from costmodel.stages.config import StageConfig
from costmodel.stages.costs import StageCost, largest
from planner.candidate.candidate import Candidate, StagePlacement, is_looped
from planner.candidate.evaluate import Evaluated, Run
from planner.candidate.fit import NO_LIMIT
from planner.search.space.family import FamilySpace
from planner.search.space.open_choices import allows_options_by_stage
from planner.search.state.prepared import PreparedProblem
from planner.search.subsolver import SearchState, Subsolver

NUM_STARTS, MOST_STAGES = 8, 16
"""Plans that are varied, and stages that they have at most."""
RECOMPUTED = ("recompute", "recomputed_operators")
DEGREES = ("data", "tensor", "sequence", "context", "expert", "expert_tensor")
OPTIONS = (DEGREES, ("zero", "shard_group"), RECOMPUTED, ("offload",))
"""What is changed of a configuration at a time."""


class OptionsByStage(Subsolver):
    """The best pipelines, with each stage run in the way that is best for it."""

    name, kind = "options by stage", "first"

    @classmethod
    def supports(cls, state: SearchState) -> bool:
        """Whether stages may be configured differently."""
        return allows_options_by_stage(state.problem, state.prepared.pinned)

    def steps(self) -> Generator[None]:
        """Vary one plan after the other."""
        pool = self.state.pool
        ranked = sorted(pool.found.values(), key=lambda each: each.sort_key)
        for found in islice(filter(_is_plain, ranked), NUM_STARTS):
            if found.candidate not in self.done:
                self.done.add(found.candidate)
                with self.state.prepared.dropped.candidate():
                    self.state.offer_by_stage(with_best_options(self.state.prepared, found.candidate))
                yield


def _is_plain(found: Evaluated) -> bool:
    """Whether it has several stages, each on ranks of its own, in orders that follow from their number."""
    candidate = found.candidate
    return 1 < candidate.num_stages <= MOST_STAGES and not candidate.orders and not is_looped(candidate.places)


def with_best_options(prepared: PreparedProblem, found: Candidate) -> Iterator[Evaluated]:
    """Yield a candidate with the best options of each stage, then with those of the stage that is done last."""
    run = prepared.evaluator(found.microbatch_size).shortest(found)
    stages = [_StageOptions(prepared, found, run, stage) for stage in range(found.num_stages)]
    best = [stage.best() for stage in stages]
    last = max(range(found.num_stages), key=lambda stage: stages[stage].own_ns)
    alone = (*found.places[:last], best[last], *found.places[last + 1 :])
    for places in dict.fromkeys((tuple(best), alone)):
        if places != found.places:
            yield from prepared.evaluated(replace(found, places=places))


class _StageOptions:
    """The ways to run one stage of a candidate that was simulated."""

    def __init__(self, prepared: PreparedProblem, found: Candidate, run: Run, stage: int) -> None:
        self._prepared, self._found, self._stage = prepared, found, stage
        self._place, own, blocks = found.places[stage], run.priced.costs.stages[stage], run.priced.costs.ranks[stage]
        peak = max(run.times.peak_memory_bytes[block // run.replicas] for block in blocks)
        self._in_flight = max(0, peak - own.static_bytes) / max(1, largest(own.activation_bytes))
        limits = prepared.problem.memory_limits_bytes
        self._limit = min(limits[rank] or NO_LIMIT for rank in self._place.ranks)
        self._own = own
        self.own_ns = self._taken_ns(self._place, own)

    def best(self) -> StagePlacement:
        """Return the place with the best configuration; its own one of equals."""
        known = [(self._place, self._own), *self._priced()]
        return min(known, key=lambda each: self._key(*each))[0]

    def _priced(self) -> Iterator[tuple[StagePlacement, StageCost]]:
        """Yield the other ways to run the stage with what they cost."""
        found, stage, pricer = self._found, self._stage, self._prepared.evaluator(self._found.microbatch_size).pricer
        for config in configs_like(self._prepared.families, self._place.config):
            place = replace(self._place, config=config)
            places = (*found.places[:stage], place, *found.places[stage + 1 :])
            with self._prepared.dropped.candidate():
                yield place, pricer.price(found.partition, places, found.line).costs.stages[stage]

    def _key(self, place: StagePlacement, cost: StageCost) -> tuple[float, float]:
        held = cost.static_bytes + self._in_flight * largest(cost.activation_bytes)
        return max(0.0, held - self._limit), self._taken_ns(place, cost)

    def _taken_ns(self, place: StagePlacement, cost: StageCost) -> int:
        """Return what the ranks of a stage take of the whole step."""
        count = self._prepared.evaluator(self._found.microbatch_size).num_microbatches
        rounds = -(-count // (place.config.data * place.microbatch_multiple))
        return rounds * (largest(cost.forward_ns) + cost.whole_backward_ns) + cost.reduce_ns + cost.optimizer_ns


def configs_like(families: FamilySpace, config: StageConfig) -> Iterator[StageConfig]:
    """Yield configurations on as many ranks that differ in one option, of those that the space and the target allow.

    Operators that are named to run again stay named where another option changes.
    """
    for other in families.configs_on(config):
        changed = [names for names in OPTIONS if _differs(config, other, names)]
        if len(changed) == 1:
            yield replace(config, **{name: getattr(other, name) for name in changed[0]})


def _differs(config: StageConfig, other: StageConfig, names: Sequence[str]) -> bool:
    if names is RECOMPUTED and config.recomputed_operators and other.recompute == "none":
        return False
    return any(getattr(config, name) != getattr(other, name) for name in names)
