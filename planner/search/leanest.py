"""The candidate that holds least on its fullest rank, of the families that promise it: what a problem needs at least.

Of each way to divide operators and batch those count that shard, run again and offload most. They come in order of an
estimate: states spread over the most places, and what as many micro-batches keep as are in flight there. The first few
are cut evenly, by work and by bytes, and simulated. An upper bound on the least: it proves
that something fits, never that nothing does. Leaves out time, several stages a place, and replicas that differ.
"""

from collections.abc import Iterator
from dataclasses import replace

from costmodel.stages.config import StageConfig
from planner.ask.problem import Problem
from planner.ask.targets import default_target
from planner.candidate.evaluate import Evaluated
from planner.graph.atoms import Partition
from planner.search.balanced import balanced
from planner.search.cuts import Cuts
from planner.search.family import Family
from planner.search.improve import improve
from planner.search.incumbent import Incumbent
from planner.search.limits import Limits
from planner.search.setting import Setting

NUM_OF_DEGREES, NUM_SIMULATED, NUM_MOVES = 3, 16, 60
"""Families that are estimated of each way to divide, and simulated of all; moves of atoms that the best gets."""


def leanest(problem: Problem, seconds: float) -> list[tuple[Family, Evaluated]]:
    """Return the candidate with the lowest peak that was found, and its family; nothing where none can be placed.

    Its `excess_bytes` are over the problem's own limits.
    """
    limits = Limits(seconds)
    setting = Setting(replace(problem, memory_limit_bytes=1))  # what is over it by least holds least
    runs = Incumbent(problem, problem.target or default_target(problem)[0], setting.tears).runs
    best: Evaluated | None = None
    for family in _promising(setting):
        cuts = setting.cuts(family)
        for partition in _partitions(setting, cuts):
            found = [each for each in cuts.under(partition, cuts.schedules[:1], line=cuts.always_line) if runs(each)]
            best = min([*found, *([best] if best else [])], key=lambda each: each.rank, default=None)
        if limits.over:
            break
    if best is None:
        return []
    family = setting.family_of[best.candidate]
    best = improve(setting.cuts(family), best, NUM_MOVES, limits)
    return [(family, Setting(problem).evaluator(family.microbatch_size).evaluate(best.candidate))]


def _promising(setting: Setting) -> list[Family]:
    """Return the families of one stage a place that are likely to hold least, the likeliest first."""
    return sorted(_saving(setting), key=lambda family: _estimate_bytes(setting, family))[:NUM_SIMULATED]


def _estimate_bytes(setting: Setting, family: Family) -> float:
    """Return what a rank holds where states and activations are spread evenly over places and ranks.

    What a stage keeps that runs again is one micro-batch while it does.
    """
    families, config = setting.families, family.config
    smallest = min(setting.problem.microbatch_sizes)
    sample_bytes = families.kept_bytes(Family(StageConfig(), smallest)) / smallest
    places = _places(setting, family)
    in_flight = min(families.rounds(family), places) if config.recompute == "none" else 1
    kept = sample_bytes * family.microbatch_size * in_flight / (config.tensor * config.context)
    return (families.states_bytes(family) + kept) / places


def _saving(setting: Setting) -> list[Family]:
    """Return the families that shard, run again and offload most, a few for each way to divide operators and batch."""
    recompute, offload = ("none", "selective", "full"), ("none", "activations", "optimizer", "parameters")
    rows: dict[tuple[int, ...], list[Family]] = {}
    for family in setting.families.all:
        config = family.config
        if family.chunks == (setting.problem.space.chunks or 1):
            degrees = config.data, config.tensor, config.sequence, config.context, config.expert
            rows.setdefault(degrees, []).append(family)

    def saved(family: Family) -> tuple[int, ...]:
        config = family.config
        return (offload.index(config.offload), config.zero, recompute.index(config.recompute), -family.microbatch_size)

    return [family for row in rows.values() for family in sorted(row, key=saved, reverse=True)[:NUM_OF_DEGREES]]


def _places(setting: Setting, family: Family) -> int:
    return max(1, min(setting.cuts(family).num_places, len(setting.atoms) // family.chunks))


def _partitions(setting: Setting, cuts: Cuts) -> Iterator[Partition]:
    """Yield even cuts into the most stages, or as many as are fixed: by layers, work, and bytes of parameters."""
    if setting.pinned_partition:
        yield setting.pinned_partition
        return
    num_stages = min(cuts.fixed_stages or cuts.num_stages, len(cuts.atoms))
    layers = setting.equal_layers(num_stages)
    if layers:
        yield layers
    order, sizes = setting.orders[0], cuts.atoms.trained_bytes
    both = [
        work * max(1, sum(sizes)) + size * sum(cuts.works_ns) for work, size in zip(cuts.works_ns, sizes, strict=True)
    ]
    for amounts in (cuts.works_ns, sizes, both):
        stages = balanced([[amounts[atom] for atom in order]] * num_stages)
        if stages:
            found = dict(zip(order, stages, strict=True))
            yield tuple(found[atom] for atom in range(len(order)))
