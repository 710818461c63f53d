"""The candidate that holds least on its fullest rank, of the families that promise it: what a problem needs at least.

Of each way to divide operators and batch those count that shard, run again and offload most. They come in order of an
estimate: states spread over the most places, and what as many micro-batches keep as are in flight there. The first few
are cut evenly, by work and by bytes, and simulated. An upper bound on the least: it proves
that something fits, never that nothing does. Leaves out time, several stages a place, and replicas that differ.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import chain, product
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
"""Of the most stages, all, half and a quarter are tried: with fewer stages fewer hold what skips them."""
NUM_SHORT = 3
"""Those that fit, of the fewest actions, which take least time to be written."""
NUM_IMPROVED, NUM_MOVES, NUM_SHAKES, MOVES_AFTER = 3, 60, 4, 30
"""Candidates of least memory that are improved, moves of atoms of each, random changes, and moves after each."""


class LeastHeld:
    """The search for the candidate of lowest memory, in pieces.

    Parameters
    ----------
    prepared : PreparedProblem
    until : Deadline
        Of all pieces.
    """

    def __init__(self, prepared: PreparedProblem, until: Deadline) -> None:
        self._prepared, self._until = prepared, until
        problem = prepared.problem
        self._pool = CandidatePool(problem, problem.target or default_target(problem)[0], prepared.layer_alignment)
        self._found: dict[Family, Evaluated] = {}

    @property
    def best(self) -> list[tuple[Family, Evaluated]]:
        """Candidates that fit, those of fewest actions, with their families; the one of lowest peak where none does."""
        fitting = sorted((row for row in self._found.items() if row[1].fits), key=lambda row: row[1].num_actions)
        return fitting[:NUM_SHORT] or sorted(self._found.items(), key=lambda row: row[1].sort_key)[:1]

    def pieces(self) -> Iterator[None]:
        """Look at one cut or improve one candidate, and yield, until all is done."""
        families = _promising(self._prepared, self._pool)
        for family, share in product(families, SHARES):
            if self._fits and (share > 1 or _num_actions(self._prepared, family) > MOST_ACTIONS):
                continue
            for partition in _partitions(self._prepared, self._prepared.cuts(family), share):
                self._simulate(family, partition)
                yield
        if not self._fits:
            yield from self._improved()
        fit = dict.fromkeys(each.candidate.partition for each in self._found.values() if each.fits)
        for family, partition in product(families, fit):  # with more replicas the same stages hold no more
            if max(partition) < self._prepared.cuts(family).num_stages:
                self._simulate(family, partition)
                yield

    @property
    def _fits(self) -> bool:
        return any(each.fits for each in self._found.values())

    def _simulate(self, family: Family, partition: Partition) -> None:
        cuts = self._prepared.cuts(family)
        self._offer(family, cuts.evaluate_under(partition, cuts.schedules[:1], line=cuts.always_line))

    def _offer(self, family: Family, under: Iterable[Evaluated]) -> None:
        row = [each for each in (*under, self._found.get(family)) if each and self._pool.runs(each)]
        self._found.update({family: min(row, key=lambda each: each.sort_key)} if row else {})

    def _improved(self) -> Iterator[None]:
        """Try all cuts of the best families, where they are few, or what moves and random changes lead to."""
        rng = Random(self._prepared.problem.effort.seed)  # noqa: S311 - a search, not a secret
        for family in sorted(self._found, key=lambda family: self._found[family].sort_key)[:NUM_IMPROVED]:
            cuts, known = self._prepared.cuts(family), self._found[family].candidate
            every = every_partition(cuts)
            for each in every:
                self._offer(family, cuts.evaluate_under(each, (known.schedule,), line=known.line))
                yield
            if not every:
                self._offer(family, [improve(cuts, self._found[family], NUM_MOVES, self._until)])
                yield
                for _ in range(NUM_SHAKES):
                    self._offer(family, [perturb(cuts, self._found[family], rng, (1, MOVES_AFTER), self._until)])
                    yield


def lowest_memory_candidates(prepared: PreparedProblem, seconds: float) -> list[tuple[Family, Evaluated]]:
    """Return what `LeastHeld.best` is after some seconds; nothing where nothing can be placed."""
    until = Deadline(seconds)
    search = LeastHeld(prepared, until)
    for _ in search.pieces():
        if until.expired and search.best:
            break
    return search.best


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
        """Offer what fits as it is found, and in the end the least that was found."""
        if not self.state.pool.found or self._done or self.state.has_plan():
            return
        search = LeastHeld(self.state.prepared, self.state.limits)
        for _ in search.pieces():
            self._offer([row for row in search.best if row[1].fits])
            yield
        self._done = True
        self._offer(search.best)

    def _offer(self, rows: list[tuple[Family, Evaluated]]) -> None:
        for family, each in rows:
            if each.candidate not in self.done:
                self.done.add(each.candidate)
                self.state.bounds.know(family)
                self.state.pool.offer([each])
