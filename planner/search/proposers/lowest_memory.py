"""The candidate that holds least on its fullest rank, of the families that promise it: what a problem needs at least.

Of each way to divide operators and batch those count that shard, run again and offload most. They come in order of an
estimate: states spread over the most places, and what as many micro-batches keep as are in flight there. The first few
are cut evenly, by work and by bytes, and simulated. An upper bound on the least: it proves
that something fits, never that nothing does. Leaves out time, several stages a place, and replicas that differ.
"""

from collections.abc import Generator, Iterator
from itertools import chain, product, takewhile
from random import Random

from costmodel.stages.config import StageConfig
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.question.targets import default_target
from planner.search.bounders.memory_shortfall import exceeds_host_memory
from planner.search.budget import Deadline
from planner.search.proposers.enumeration import every_partition
from planner.search.proposers.local_search import improve, perturb
from planner.search.space.bottleneck_partition import bottleneck_partition
from planner.search.space.family import Family
from planner.search.space.partitions import FamilyPartitions
from planner.search.state.pool import CandidatePool
from planner.search.state.prepared import PreparedProblem
from planner.search.state.record import LOWEST_MEMORY
from planner.search.subsolver import Subsolver

FEW_ACTIONS, MOST_ACTIONS = 5_000, 50_000
"""Up to the first a plan is simulated at once; above the second that, and to write it, takes seconds: it is tried when
others were."""
NUM_OF_DEGREES, NUM_SIMULATED = 3, 16
"""Families that are estimated of each way to divide, and simulated of all."""
SHARES = 1, 2, 4
"""Of the most stages, all, half and a quarter are tried: with fewer stages fewer hold what skips them. Each of these,
and what improves the best of them, has an equal part of the time left."""
NUM_SHORT = 3
"""Those that fit, of the fewest actions, which take least time to be written."""
NUM_IMPROVED, NUM_MOVES, SHAKES = 3, 60, (4, 30)
"""Candidates of least memory that are improved, moves of atoms of each, and (random changes, moves after each)."""


def lowest_memory_candidates(prepared: PreparedProblem, seconds: float) -> list[tuple[Family, Evaluated]]:
    """Return candidates that fit, those of fewest actions, with their families; the one of lowest peak where none does.

    Nothing where none can be placed.
    """
    problem, limits = prepared.problem, Deadline(seconds)
    pool = CandidatePool(problem, problem.target or default_target(problem)[0], prepared.layer_alignment)
    found: dict[Family, Evaluated] = {}
    families = _promising(prepared, pool)

    def simulate(family: Family, partition: Partition) -> None:
        cuts = prepared.cuts(family)
        under = cuts.evaluate_under(partition, cuts.schedules[:1], line=cuts.always_line)
        row = [each for each in (*under, found.get(family)) if each and pool.runs(each)]
        found.update({family: min(row, key=lambda each: each.sort_key)} if row else {})

    for number, share in enumerate(SHARES):
        looking = Deadline(limits.remaining_s / (1 + len(SHARES) - number))
        for family in families:
            fits = any(each.fits for each in found.values())
            if found and (looking.expired or (fits and (share > 1 or _num_actions(prepared, family) > MOST_ACTIONS))):
                break
            for partition in _partitions(prepared, prepared.cuts(family), share):
                if found and looking.expired:
                    break
                simulate(family, partition)
    if found and not any(each.fits for each in found.values()):
        rng = Random(problem.effort.seed)  # noqa: S311 - a search, not a secret
        for family in sorted(found, key=lambda family: found[family].sort_key)[:NUM_IMPROVED]:
            found[family] = _least_cut(prepared.cuts(family), found[family], rng, limits)
    fit = dict.fromkeys(each.candidate.partition for each in found.values() if each.fits)
    for family, partition in product(families, fit):  # with more replicas the same stages hold no more
        if max(partition) < prepared.cuts(family).num_stages and not limits.expired:
            simulate(family, partition)
    fitting = sorted((row for row in found.items() if row[1].fits), key=lambda row: row[1].num_actions)
    return fitting[:NUM_SHORT] or sorted(found.items(), key=lambda row: row[1].sort_key)[:1]


def _least_cut(cuts: FamilyPartitions, start: Evaluated, rng: Random, limits: Deadline) -> Evaluated:
    """Return the least of all cuts, where they are few, or what moves and random changes lead to."""
    known, every = start.candidate, every_partition(cuts)
    if not every:
        return perturb(cuts, improve(cuts, start, NUM_MOVES, limits), rng, SHAKES, limits)
    tried = takewhile(lambda _: not limits.expired, every)
    under = chain.from_iterable(cuts.evaluate_under(each, (known.schedule,), line=known.line) for each in tried)
    return min([start, *under], key=lambda each: each.sort_key)


def _promising(prepared: PreparedProblem, pool: CandidatePool) -> list[Family]:
    """Return families of one stage a place that are likely to hold least, the likeliest of few actions first."""
    saving = sorted(_saving(prepared, pool), key=lambda family: _estimate_bytes(prepared, family))[:NUM_SIMULATED]
    return sorted(saving, key=lambda family: max(FEW_ACTIONS, _num_actions(prepared, family)))


def _num_actions(prepared: PreparedProblem, family: Family) -> int:
    return prepared.cuts(family).about_actions(_places(prepared, family))


def _estimate_bytes(prepared: PreparedProblem, family: Family) -> float:
    """Return what a rank holds where states and activations are spread evenly over places and ranks.

    What a stage keeps that runs again is one micro-batch while it does.
    """
    families, config = prepared.families, family.config
    smallest = min(prepared.problem.microbatch_sizes)
    sample_bytes = families.kept_bytes(Family(StageConfig(), smallest)) / smallest
    places = _places(prepared, family)
    in_flight = min(families.microbatches_per_replica(family), places) if config.recompute == "none" else 1
    kept = sample_bytes * family.microbatch_size * in_flight / (config.tensor * config.context)
    return (families.states_bytes(family) + kept) / places


def _saving(prepared: PreparedProblem, pool: CandidatePool) -> list[Family]:
    """Return the families that shard, run again and offload most, a few for each way to divide operators and batch.

    Those alone that the target runs.
    """
    recompute, offload = ("none", "selective", "full"), ("none", "activations", "optimizer", "parameters")
    rows: dict[tuple[int, ...], list[Family]] = {}
    usual = prepared.problem.space.chunks or 1
    for family in chain.from_iterable(group for group in prepared.families.groups() if usual in group.chunks):
        if family.chunks != usual or exceeds_host_memory(prepared, family):
            continue
        config = family.config
        pipelined = prepared.families.max_pipeline_stages(family) > 1
        if pool.runs_config(config, pipelined=pipelined):
            rows.setdefault(config.division, []).append(family)

    def saved(family: Family) -> tuple[int, ...]:
        config = family.config
        return (offload.index(config.offload), config.zero, recompute.index(config.recompute), -family.microbatch_size)

    return [family for row in rows.values() for family in sorted(row, key=saved, reverse=True)[:NUM_OF_DEGREES]]


def _places(prepared: PreparedProblem, family: Family) -> int:
    return max(1, min(prepared.cuts(family).num_places, len(prepared.atoms) // family.chunks))


def _partitions(prepared: PreparedProblem, cuts: FamilyPartitions, share: int) -> Iterator[Partition]:
    """Yield even cuts into a share of the most stages, or as many as are fixed: by layers, work and bytes."""
    if prepared.pinned_partition:
        yield prepared.pinned_partition
        return
    num_stages = min(cuts.fixed_stages or cuts.num_stages, len(cuts.atoms)) // share
    if share > 1 and (cuts.fixed_stages or num_stages < 2):
        return
    layers = prepared.equal_layers(num_stages)
    if layers:
        yield layers
    order, sizes = prepared.orders[0], cuts.atoms.trained_bytes
    both = [
        work * max(1, sum(sizes)) + size * sum(cuts.works_ns) for work, size in zip(cuts.works_ns, sizes, strict=True)
    ]
    for amounts in (cuts.works_ns, sizes, both):
        stages = bottleneck_partition([[amounts[atom] for atom in order]] * num_stages)
        if stages:
            found = dict(zip(order, stages, strict=True))
            yield tuple(found[atom] for atom in range(len(order)))


class LowestMemory(Subsolver):
    """The candidate of lowest memory, once, where cuts were found and none fits."""

    name, kind = LOWEST_MEMORY, "first"
    _done = False

    def steps(self) -> Generator[None]:
        """Offer the candidates of lowest memory."""
        if self.state.pool.found and not (self._done or self.state.has_plan()):
            self._done = True
            for family, each in lowest_memory_candidates(self.state.prepared, self.slice.remaining_s):
                self.state.bounds.know(family)
                self.state.pool.offer([each])
            yield
