"""From atoms and their costs to the cut problem.

Everything is rounded down, times and bytes alike, and counted only where it is sure to take place: the
cut problem is a relaxation of the simulated one. Leaves out the solver.
"""

from collections.abc import Sequence

from planner.search.cut.data import CutData
from planner.search.cut.memory import held, unit_bytes
from planner.search.cut.transfers import least_host_ns, transfers
from planner.search.evaluate import Evaluator

LARGEST_NS = 1 << 18
"""Work of one micro-batch in units at most: coarse sums are much quicker to search, 100 atoms lose 0.02 %."""
IN_FLIGHT = {"graph-1f1b": "depth", "1f1b": "line", "gpipe": "all"}
"""How many micro-batches a stage keeps, by schedule; others may keep as few as one."""


def cut_data(evaluator: Evaluator, least_ns: int, binding: bool) -> CutData:
    """Return the cut problem of one micro-batch size.

    Parameters
    ----------
    least_ns : int
        A valid lower bound on the step time.
    binding : bool
        Whether the memory limit has to be modelled.
    """
    problem, atoms, model = evaluator.problem, evaluator.atoms, evaluator.pricing.model
    fastest = max(problem.speeds)
    unit_ns = max(1, sum(evaluator.work_ns) // LARGEST_NS)
    scale = unit_ns * fastest
    levels, crossings = transfers(evaluator)
    closing, accumulate = _shares(evaluator)
    forward = [sum(model.forward_ns[o] for o in row) for row in atoms.members]
    operators = model.profile.graph.operators
    backward = [
        accumulate[i]
        + sum(model.backward_input_ns[o] + model.backward_weight_ns[o] for o in row if operators[o].trainable)
        for i, row in enumerate(atoms.members)
    ]
    return CutData(
        num_stages=problem.num_stages,
        num_microbatches=evaluator.num_microbatches,
        unit_ns=unit_ns,
        forward=_down(forward, scale),
        backward=_down(backward, scale),
        closing=_down(closing, scale),
        precedence=tuple((u, v) for u, row in enumerate(atoms.reduction) for v in row),
        sinks=tuple(a for a, row in enumerate(atoms.successors) if not row),
        waists=atoms.waists,
        gradient_waists=atoms.gradient_waists,
        crossings=crossings,
        levels=tuple(level // unit_ns for level in levels),
        held=held(evaluator) if binding else (),
        limit=-(-max(problem.memory_limits_bytes) // unit_bytes(evaluator)) if binding else 0,
        in_flight=IN_FLIGHT.get(problem.schedules[0], "one"),
        least=least_ns // unit_ns,
        host=_down((least_host_ns(evaluator),), scale)[0],
        apart=evaluator.apart,
    )


def _down(values: Sequence[int], scale: float) -> tuple[int, ...]:
    return tuple(int(value / scale) if scale != 1 else value for value in values)


def _shares(evaluator: Evaluator) -> tuple[list[int], list[int]]:
    """Optimizer step and gradient accumulation of each atom; a shared parameter counts with its first reader.

    Readers without gradient do not count: their stage may have no backward at all.
    """
    model, atoms = evaluator.pricing.model, evaluator.atoms
    graph, whole = model.profile.graph, model.profile.whole
    total = sum(p.size_bytes for p in graph.parameters if p.trainable)
    closing, accumulate = [0] * len(atoms), [0] * len(atoms)
    seen: set[str] = set()
    for position, operator in enumerate(graph.operators):
        for name in operator.parameters if operator.trainable else ():
            parameter = graph.parameter_index[name]
            if name not in seen and parameter.trainable:
                atom = atoms.atom_of[position]
                accumulate[atom] += model.accumulation.at_least(name)
                if model.optimizer != "none":
                    closing[atom] += whole.optimizer_ns * parameter.size_bytes // total
            seen.add(name)
    return closing, accumulate
