"""The cut problem in whole numbers: all that the solver's process needs, as JSON.

Times are in units of `unit_ns`, bytes in units of `unit_bytes`, each rounded so that a bound stays a bound:
times down, transfers down, memory down. Bytes count a storage or parameter once a stage. Leaves out what
a bound must not count: reductions, contention, the order of actions.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from costmodel.cost_model import OPTIMIZER_STATES
from planner.search.evaluate import Evaluator

LARGEST_NS = 1 << 18
"""Work of one micro-batch in units at most: coarse sums are much quicker to search, 100 atoms lose 0.02 %."""
LARGEST_BYTES = 1 << 20
MOST_LEVELS = 6
"""Transfer times that are told apart; each tensor counts with the largest level that it reaches."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What flows from one atom to another: the level of its transfer time, and whether a gradient comes back."""

    producer: int
    consumer: int
    level: int
    gradient: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a stage holds if one of these atoms is in it; once, or for each micro-batch in flight.

    `received` marks a tensor of another stage: held unless its producer `producer` is in the stage too.
    """

    size: int
    atoms: tuple[int, ...]
    in_flight: bool
    producer: int = -1


@dataclass(frozen=True, slots=True)
class CutData:
    """A cut problem.

    Attributes
    ----------
    num_stages, num_microbatches : int
    unit_ns : int
    forward, backward, closing : tuple of int
        F, B and optimizer step of each atom.
    precedence : tuple of (int, int)
        Atoms that must not stand in a later stage than others (transitive reduction).
    sinks : tuple of int
        Atoms that nothing reads.
    waists, gradient_waists : tuple of int
        Atoms that every other atom leads to or comes from; and those to which, besides, all that comes before
        them leads by tensors that carry a gradient.
    crossings : tuple of Crossing
    levels : tuple of int
        Transfer times, rising; the first is the least between ranks.
    held : tuple of Held
    limit : int
        Largest memory limit of a rank; 0 when it cannot bind.
    in_flight : str
        Micro-batches in flight: ``depth`` (the longest path to a sink), ``line`` (stages from this one on),
        ``all``.
    least : int
        A bound that is known already.
    """

    num_stages: int
    num_microbatches: int
    unit_ns: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    closing: tuple[int, ...]
    precedence: tuple[tuple[int, int], ...]
    sinks: tuple[int, ...]
    waists: tuple[int, ...]
    gradient_waists: tuple[int, ...]
    crossings: tuple[Crossing, ...]
    levels: tuple[int, ...]
    held: tuple[Held, ...]
    limit: int
    in_flight: str
    least: int = 0

    @property
    def num_atoms(self) -> int:
        """How many atoms there are."""
        return len(self.forward)

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "CutData":
        """Read it back."""
        body = json.loads(text)
        crossings = tuple(Crossing(**crossing) for crossing in body.pop("crossings"))
        held = tuple(Held(h["size"], tuple(h["atoms"]), h["in_flight"], h["producer"]) for h in body.pop("held"))
        precedence = tuple((u, v) for u, v in body.pop("precedence"))
        rest: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
        return cls(crossings=crossings, held=held, precedence=precedence, **rest)


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
    levels, crossings = _crossings(evaluator)
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
        held=_held(evaluator) if binding else (),
        limit=-(-max(problem.memory_limits_bytes) // _unit_bytes(evaluator)) if binding else 0,
        in_flight=IN_FLIGHT.get(problem.schedules[0], "one"),
        least=least_ns // unit_ns,
    )


def _down(values: Sequence[int], scale: float) -> tuple[int, ...]:
    return tuple(int(value / scale) if scale != 1 else value for value in values)


def _crossings(evaluator: Evaluator) -> tuple[list[int], tuple[Crossing, ...]]:
    """Return the levels in ns, and each pair of atoms joined by tensors with the largest level that these reach."""
    atoms, model = evaluator.atoms, evaluator.pricing.model
    tensors = model.profile.graph.tensors
    least = {f.tensor: least_transfer_ns(evaluator, model.tensor_bytes(tensors[f.tensor])) for f in atoms.flows}
    levels = _levels(sorted(set(least.values())))
    pairs: dict[tuple[int, int], tuple[int, bool]] = {}
    for flow in atoms.flows:
        reached = sum(level <= least[flow.tensor] for level in levels) - 1
        for consumer in flow.consumers:
            level, gradient = pairs.get((flow.producer, consumer), (0, False))
            pairs[flow.producer, consumer] = max(level, reached), gradient or tensors[flow.tensor].gradient
    everywhere = all(gradient for _, gradient in pairs.values())
    kept = [
        Crossing(u, v, level, gradient)
        for (u, v), (level, gradient) in pairs.items()
        # Where a longer way leads, a direct one of the least level adds nothing to any path.
        if level or not everywhere or v in atoms.reduction[u]
    ]
    return levels, tuple(kept)


def _levels(times: list[int]) -> list[int]:
    """Choose a few of the distinct times, the least among them."""
    step = -(-len(times) // MOST_LEVELS)
    return times[::step] if times else [0]


def least_transfer_ns(evaluator: Evaluator, size_bytes: int) -> int:
    """Least time between two of the ranks of a message that holds at least so many bytes."""
    cluster, ranks = evaluator.problem.machines, range(evaluator.problem.num_devices)
    if cluster.links and "p2p" in cluster.links.classes:
        link = cluster.links.classes["p2p"]
        starts = [r.min_bytes for r in link.ranges if r.min_bytes > size_bytes]
        return min(link.time_ns(size) for size in (size_bytes, *starts))
    return min((cluster.p2p_ns(i, j, size_bytes) for i in ranks for j in ranks if i < j), default=0)


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
                accumulate[atom] += whole.accumulate_ns * parameter.size_bytes // total
                if model.optimizer != "none":
                    closing[atom] += whole.optimizer_ns * parameter.size_bytes // total
            seen.add(name)
    return closing, accumulate


def _unit_bytes(evaluator: Evaluator) -> int:
    return max(1, max(evaluator.problem.memory_limits_bytes) // LARGEST_BYTES)


def _held(evaluator: Evaluator) -> tuple[Held, ...]:
    """Parameters, kept storages and received tensors, each with the atoms that make a stage hold it."""
    model, atoms = evaluator.pricing.model, evaluator.atoms
    graph, unit = model.profile.graph, _unit_bytes(evaluator)
    parameters: dict[str, set[int]] = {}
    storages: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    for position, operator in enumerate(graph.operators):
        atom = atoms.atom_of[position]
        for name in operator.parameters:
            parameters.setdefault(name, set()).add(atom)
        for saved in operator.saved:
            size = saved.size_bytes if saved.fixed else saved.size_bytes * model.microbatch_size
            storages.setdefault(saved.storage, set()).add(atom)
            sizes[saved.storage] = max(size, sizes.get(saved.storage, 0))
    copies = 2 + OPTIMIZER_STATES[model.optimizer]
    found = []
    for name, readers in parameters.items():
        parameter = graph.parameter_index[name]
        size = parameter.size_bytes * (copies if parameter.trainable else 1)
        found.append(Held(size // unit, tuple(sorted(readers)), in_flight=False))
    found += [Held(sizes[s] // unit, tuple(sorted(row)), in_flight=True) for s, row in storages.items()]
    seen: set[int] = set()
    for flow in atoms.flows:
        tensor = graph.tensors[flow.tensor]
        # A received storage that the stage keeps anyway is held once, so only readers that do not keep it add it.
        readers = set(flow.consumers) - storages.get(tensor.storage, set())
        if readers and tensor.storage not in seen:
            seen |= {tensor.storage} - {-1}
            size = model.tensor_bytes(tensor) // unit
            found.append(Held(size, tuple(sorted(readers)), in_flight=True, producer=flow.producer))
    return tuple(h for h in found if h.size)
