"""What sums of gradients take at least where a stage has more replicas than the slowest link leaves together.

More single devices than a block of the faster link holds lie in two blocks or more, and all of the stage's gradients
cross between them. Per byte nothing is faster than two whole blocks: of n ranks some block holds n / 2 or fewer, which
bounds what they get of the link, and a ring of n sends 2 (n - 1) / n of the bytes over it, so that a byte takes
4 (n - 1) / n^2 of what it takes on a rank's share, which falls up to two whole blocks; beyond, their part stays and
2 (n - 1) / n rises. Trees and switches send more blocks no less than two. Leaves out sums within a block, measured
links, more than two of them, and devices or shares of links that differ.
"""

from math import inf

from costmodel.machines.cluster import Cluster
from costmodel.machines.collectives import best_rate
from costmodel.stages.strategies.states import SCATTERED
from planner.search.solvers.relaxation.build import LARGEST_NS
from planner.search.solvers.relaxation.data import NO_SUMS, FarSums
from planner.search.space.partitions import FamilyPartitions


def far_sums(cuts: FamilyPartitions) -> FarSums:
    """Return the sums of stages that have replicas of one device each."""
    problem, zero = cuts.evaluator.problem, cuts.family.config.zero
    machines = problem.machines
    together = machines.groups[-2].group if len(machines.groups) > 1 else 1
    if not _is_slow(machines, together, problem.num_devices):
        return NO_SUMS
    blocks = tuple(range(2 * together))
    rate = best_rate(machines, "reduce_scatter" if zero else "all_reduce", blocks) if zero <= SCATTERED else 0.0
    wider = problem.training.gradient_width(4) / problem.training.width(4)
    gathered = best_rate(machines, "all_gather", blocks) * (0 < zero <= SCATTERED and problem.optimizer != "none")
    overlap = cuts.families.models(cuts.family.microbatch_size)[0].overlap
    least = (max(0, int((size * wider - 1) * rate + (size - 1) * gathered) - 2) for size in cuts.atoms.trained_bytes)
    return FarSums(together, overlap.least_exposed, tuple(least))


def _is_slow(machines: Cluster, together: int, count: int) -> bool:
    """Whether blocks of alike devices are joined by one link that is slower for a whole block than a device's own."""
    inner, outer = machines.groups[:-1], machines.groups[-1]
    if machines.links or len(machines.devices) > 1 or len(inner) > 1 or outer.group or not 0 < 2 * together <= count:
        return False
    shares = {machines.flow_gbs(rank, outer) for rank in range(count)}
    scale_up = all(machines.link_kind(link) != "network" for link in inner)
    own = [machines.flow_gbs(rank, link) for link in inner for rank in range(count)]
    return len(shares) == 1 and scale_up and together * min(shares) <= min(own, default=inf)


def in_units(cuts: FamilyPartitions, found: FarSums) -> FarSums:
    """Return them in the units of `planner.search.solvers.relaxation.build.cut_data`, rounded down."""
    scale = max(1, sum(cuts.works_ns) // LARGEST_NS) * max(cuts.evaluator.problem.speeds)
    return found._replace(ns=tuple(int(ns / scale) for ns in found.ns))
