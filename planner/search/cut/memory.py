"""What a stage is sure to hold in memory.

Bytes of a storage or parameter count once a stage. Operators without a backward count for their parameters
alone, for their stage may drop what they keep at once. Leaves out buffers of messages.
"""

from dataclasses import replace

from costmodel.stages.measured import OPTIMIZER_STATES
from planner.search.cut.data import Held
from planner.search.evaluate import Evaluator

LARGEST_BYTES = 1 << 20
"""The memory limit in units at most."""


def unit_bytes(evaluator: Evaluator) -> int:
    """Return the unit of bytes in the cut problem."""
    return max(1, max(evaluator.problem.memory_limits_bytes) // LARGEST_BYTES)


def held(evaluator: Evaluator) -> tuple[Held, ...]:
    """Return parameters, kept storages and received tensors, each with the atoms that make a stage hold it."""
    unit = unit_bytes(evaluator)
    found = [*_parameters(evaluator), *_activations(evaluator)]
    return tuple(replace(h, size=h.size // unit) for h in found if h.size >= unit)


def _parameters(evaluator: Evaluator) -> list[Held]:
    """Parameters, gradients and optimizer states, once a stage."""
    model, atoms = evaluator.pricing.model, evaluator.atoms
    graph = model.profile.graph
    readers: dict[str, set[int]] = {}
    for position, operator in enumerate(graph.operators):
        for name in operator.parameters:
            readers.setdefault(name, set()).add(atoms.atom_of[position])
    copies = 2 + OPTIMIZER_STATES[model.optimizer]
    found = []
    for name, row in readers.items():
        parameter = graph.parameter_index[name]
        size = parameter.size_bytes * (copies if parameter.trainable else 1)
        found.append(Held(size, tuple(sorted(row)), in_flight=False))
    return found


def _activations(evaluator: Evaluator) -> list[Held]:
    """Return what operators with a backward keep or receive; what a stage keeps anyway is not received again."""
    model, atoms = evaluator.pricing.model, evaluator.atoms
    graph = model.profile.graph
    keepers: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    training = {atoms.atom_of[i] for i, operator in enumerate(graph.operators) if operator.trainable}
    for position, operator in enumerate(graph.operators):
        for saved in operator.saved if operator.trainable else ():
            size = saved.size_bytes if saved.fixed else saved.size_bytes * model.microbatch_size
            keepers.setdefault(saved.storage, set()).add(atoms.atom_of[position])
            sizes[saved.storage] = max(size, sizes.get(saved.storage, 0))
    found = [Held(sizes[s], tuple(sorted(row)), in_flight=True) for s, row in keepers.items()]
    seen: set[int] = set()
    for flow in atoms.flows:
        tensor = graph.tensors[flow.tensor]
        readers = training & set(flow.consumers) - keepers.get(tensor.storage, set())
        if readers and tensor.storage not in seen:
            seen |= {tensor.storage} - {-1}
            size = model.tensor_bytes(tensor)
            found.append(Held(size, tuple(sorted(readers)), in_flight=True, producer=flow.producer))
    return found
