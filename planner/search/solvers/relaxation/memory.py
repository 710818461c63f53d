"""What a stage is sure to hold in memory.

Bytes of a storage or parameter count once a stage, whether its operators keep it, receive it, or both. Operators
without a backward count for their parameters alone, for their stage may drop what they keep at once. Leaves out
buffers of messages, and activations of stages that recompute or offload them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from costmodel.stages.strategies.saved_activations import training_scale
from costmodel.stages.strategies.states import Amounts, parameter_bytes, states_of
from planner.search.solvers.relaxation.data import Held
from planner.search.space.partitions import FamilyPartitions

LARGEST_BYTES = 1 << 20
"""The memory limit in units at most."""


def limit_bytes(cuts: FamilyPartitions) -> int:
    """Return the most that any rank may hold."""
    return max(cuts.evaluator.problem.memory_limits_bytes)


def unit_bytes(cuts: FamilyPartitions) -> int:
    """Return the unit of bytes in the cut problem."""
    return max(1, limit_bytes(cuts) // LARGEST_BYTES)


def held(cuts: FamilyPartitions) -> tuple[Held, ...]:
    """Return parameters, kept storages and received tensors, each with the atoms that make a stage hold it."""
    unit, config = unit_bytes(cuts), cuts.family.config
    found = list(_parameters(cuts))
    if config.recompute == "none" and config.offload != "activations":
        found += _activations(cuts)
    return tuple(Held(h.size // unit, h.atoms, h.in_flight, h.readers, h.producer) for h in found if h.size >= unit)


def _parameters(cuts: FamilyPartitions) -> Iterator[Held]:
    """Yield what each parameter takes on one rank with its gradient and states, once a stage; rounded down."""
    problem, atoms, config = cuts.evaluator.problem, cuts.atoms, cuts.family.config
    graph, copies = problem.profile.graph, config.num_sharers
    readers: dict[str, set[int]] = {}
    for position, operator in enumerate(graph.operators):
        for name in operator.parameters:
            readers.setdefault(name, set()).add(atoms.atom_of[position])
    for name, row in readers.items():
        parameter = graph.parameter_index[name]
        size = parameter_bytes(parameter, problem.training)
        states = states_of(
            Amounts(size, size if parameter.trainable else 0, copies), problem.training, config.zero, config.offload
        )
        total = states.parameters + states.gradients + states.optimizer + states.master_weights
        shards = 4 * (copies > 1)  # each of the four is rounded up to whole bytes of a shard
        yield Held(max(0, total - shards), tuple(sorted(row)), in_flight=False)


@dataclass
class _Storage:
    """Who keeps a storage, of how many bytes, and who receives it, of how many."""

    kept: int = 0
    keepers: set[int] = field(default_factory=set)
    received: int = 0
    readers: set[int] = field(default_factory=set)
    producer: int = -1


def _activations(cuts: FamilyPartitions) -> Iterator[Held]:
    """Yield what operators with a backward keep or receive, each storage once.

    A stage holds a storage where one of its operators keeps it, or reads what another stage makes; where it is larger
    for keepers than for readers (or the other way round), the difference counts for these alone.
    """
    for storage in _storages(cuts).values():
        both = min(storage.kept, storage.received) if storage.keepers and storage.readers else 0
        keepers, readers = tuple(sorted(storage.keepers)), tuple(sorted(storage.readers))
        if both:
            yield Held(both, keepers, in_flight=True, readers=readers, producer=storage.producer)
        if keepers and storage.kept > both:
            yield Held(storage.kept - both, keepers, in_flight=True)
        if readers and storage.received > both:
            yield Held(storage.received - both, (), in_flight=True, readers=readers, producer=storage.producer)


def _storages(cuts: FamilyPartitions) -> Mapping[object, _Storage]:
    """Return the storages that operators with a backward keep or read; of one's views the first counts as received."""
    graph, atoms = cuts.atoms.graph, cuts.atoms
    models = cuts.families.models(cuts.family.microbatch_size)
    measured = models[0].measured
    width, profiled = training_scale(measured, cuts.evaluator.problem.training)
    found: dict[object, _Storage] = {}
    for position, operator in enumerate(graph.operators):
        for saved in operator.saved if operator.trainable else ():
            whole = saved.size_bytes if saved.fixed else saved.size_bytes * measured.microbatch_size * width // profiled
            storage = found.setdefault(saved.storage, _Storage())
            storage.kept = max(whole, storage.kept)
            storage.keepers.add(atoms.atom_of[position])
    training = {atoms.atom_of[i] for i, operator in enumerate(graph.operators) if operator.trainable}
    for flow in atoms.flows:
        tensor = graph.tensors[flow.tensor]
        storage = found.setdefault(tensor.storage if tensor.storage >= 0 else ("tensor", flow.tensor), _Storage())
        readers = training & set(flow.consumers)
        if readers and storage.producer < 0:
            storage.producer, storage.readers = flow.producer, readers
            storage.received = measured.tensor_bytes(tensor) * width // profiled
    return found
