"""From the cuts of a family and their costs to the cut problem.

Everything is rounded down, times and bytes alike, and counted only where it is sure to take place: the
cut problem is a relaxation of the simulated one. Leaves out the solver.
"""

from collections.abc import Sequence

from costmodel.model.whole_model import SplitRatios
from planner.search.solvers.relaxation.data import CutData
from planner.search.solvers.relaxation.memory import held, limit_bytes, unit_bytes
from planner.search.solvers.relaxation.transfers import far_message, least_host_ns, transfers
from planner.search.space.partitions import FamilyPartitions

LARGEST_NS = 1 << 18
"""Work of one micro-batch in units at most: coarse sums are much quicker to search, 100 atoms lose 0.02 %."""
IN_FLIGHT = {"graph-1f1b": "depth", "1f1b": "line", "gpipe": "all"}
"""How many micro-batches a stage keeps, by schedule; others may keep as few as one."""


def cut_data(cuts: FamilyPartitions, least_ns: int, binding: bool) -> CutData:
    """Return the cut problem of a family whose operators stay whole.

    Parameters
    ----------
    least_ns : int
        A valid lower bound on the step time.
    binding : bool
        Whether the memory limit has to be modelled.
    """
    atoms = cuts.atoms
    fastest = max(cuts.evaluator.problem.speeds)
    unit_ns = max(1, sum(cuts.works_ns) // LARGEST_NS)
    scale = unit_ns * fastest
    levels, crossings = transfers(cuts)
    far_ns, together = far_message(cuts)
    forward, backward, trained = times_of_atoms(cuts)
    remade = cuts.family.config.recompute == "full" and cuts.evaluator.problem.training.whole_stages
    again = trained if remade else []
    ratios = cuts.evaluator.orders.ratios if cuts.splits_backward else SplitRatios()
    return CutData(
        num_stages=cuts.num_stages,
        num_microbatches=cuts.num_microbatches,
        unit_ns=unit_ns,
        forward=_down([int(ns * ratios.forward) for ns in forward], scale),
        backward=_down([int(ns * ratios.backward) for ns in backward], scale),
        closing=_down(closings_of_atoms(cuts), scale),
        precedence=tuple((u, v) for u, row in enumerate(atoms.reduction) for v in row),
        sinks=tuple(a for a, row in enumerate(atoms.successors) if not row),
        bottlenecks=atoms.bottlenecks,
        gradient_bottlenecks=atoms.gradient_bottlenecks,
        crossings=crossings,
        levels=tuple(level // unit_ns for level in levels),
        held=held(cuts) if binding else (),
        limit=-(-limit_bytes(cuts) // unit_bytes(cuts)) if binding else 0,
        in_flight=IN_FLIGHT.get(cuts.schedules[0], "one"),
        least=least_ns // unit_ns,
        host=_down((least_host_ns(cuts),), scale)[0],
        apart=cuts.evaluator.apart,
        again=_down([int(ns * ratios.forward) for ns in again], scale),
        split=cuts.splits_backward,
        far=far_ns // unit_ns,
        together=together,
    )


def added_units(cuts: FamilyPartitions) -> tuple[int, ...]:
    """Return what of each atom's B adds up gradients, in the units of `cut_data`, rounded up."""
    scale = max(1, sum(cuts.works_ns) // LARGEST_NS) * max(cuts.evaluator.problem.speeds)
    ratio = cuts.evaluator.orders.ratios.backward if cuts.splits_backward else 1.0
    return tuple(int(-(-ns * ratio // scale)) + 1 if ns else 0 for ns in cuts.accumulation_ns)


def _down(values: Sequence[int], scale: float) -> tuple[int, ...]:
    return tuple(int(value / scale) if scale != 1 else value for value in values)


def times_of_atoms(cuts: FamilyPartitions) -> tuple[list[int], list[int], list[int]]:
    """Return F and B of each atom of one micro-batch at least, and F of those of its operators that have a backward."""
    atoms, operators = cuts.atoms, cuts.atoms.graph.operators
    measured = [model.measured for model in cuts.families.models(cuts.family.microbatch_size)]
    forward_ns = [min(column) for column in zip(*(m.forward_ns for m in measured), strict=True)]
    backward_ns = [
        min(a + b for a, b in column)
        for column in zip(
            *(list(zip(m.backward_input_ns, m.backward_weight_ns, strict=True)) for m in measured), strict=True
        )
    ]
    trained = [[o for o in row if operators[o].trainable] for row in atoms.members]
    backward = [
        added + sum(backward_ns[o] for o in row) for added, row in zip(cuts.accumulation_ns, trained, strict=True)
    ]
    forward, again = ([sum(forward_ns[o] for o in row) for row in rows] for rows in (atoms.members, trained))
    return forward, backward, again


def closings_of_atoms(cuts: FamilyPartitions) -> list[int]:
    """Optimizer step of each atom.

    A step that is not the profile's does not count; where replicas share it, less than a byte of each stage is rounded
    off on its ranks.
    """
    problem, atoms, config = cuts.evaluator.problem, cuts.atoms, cuts.family.config
    graph, whole = problem.profile.graph, problem.profile.whole
    steps = problem.optimizer != "none" and not problem.training.precision
    if not steps or config.offload != "none" or len(set(problem.device_names)) > 1:
        return [0] * len(atoms)
    total = sum(p.size_bytes for p in graph.parameters if p.trainable)
    shards = config.num_sharers if config.zero else 1
    sizes = [max(0, size - shards * (shards > 1)) for size in atoms.trained_bytes]
    return [whole.optimizer_ns * size // (total * shards) if size else 0 for size in sizes]
