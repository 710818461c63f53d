"""Parameters, gradients, optimizer states and master weights of a stage on one rank.

Sharding over the ranks that hold copies: Rajbhandari et al., ZeRO, 2020, Figure 1: stage 1 divides optimizer states
(master weights among them), stage 2 gradients too, stage 3 (FSDP) parameters too. Experts are sharded over the ranks
that hold the same part of the same experts. Offload to the host: Ren et al., ZeRO-Offload, 2021. Leaves
out padding of shards.
"""

from dataclasses import dataclass, replace
from math import prod

from costmodel.model.accumulation import Accumulation
from costmodel.model.graph import OperatorGraph, Parameter
from costmodel.stages.strategies.division import Degrees, ceil, is_expert, parameter_parts
from costmodel.stages.strategies.shared_sums import Item, SharedSums
from costmodel.stages.strategies.training import TrainingJob

SCATTERED = 2
"""From this stage of ZeRO on no rank keeps all gradients."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the parameters that operators read on one rank, dense ones and experts' apart.

    ``trainable`` and ``trainable_experts`` are the parts that get a gradient, ``accumulated`` is how much they count
    for when that is added up (`Accumulation`), experts among them. ``stand_ins`` are empty gradients, one for all
    weights that are alike (`TrainerHabits.stand_ins`).
    """

    dense: SharedSums
    experts: SharedSums
    trainable: SharedSums
    trainable_experts: SharedSums
    accumulated: SharedSums
    stand_ins: SharedSums


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on one rank: on its device, and of those offloaded on its host."""

    parameters: int
    gradients: int
    optimizer: int
    master_weights: int
    host: int = 0


@dataclass(frozen=True, slots=True)
class Amounts:
    """Bytes of a stage's weights on one rank before states are sharded, and over how many ranks that may be."""

    weights: int
    trainable: int
    copies: int


def weights_of(graph: OperatorGraph, training: TrainingJob, degrees: Degrees, added: Accumulation) -> Weights:
    """Return what each operator's parameters take."""
    rows: tuple[list[Item], ...] = ([], [], [], [], [], [])
    readers: dict[str, list[int]] = {}
    one = replace(degrees, expert=1)
    for position, operator in enumerate(graph.operators):
        for name in operator.parameters:
            readers.setdefault(name, []).append(position)
    for name, positions in readers.items():
        parameter = graph.parameter_index[name]
        owners = [graph.operators[i] for i in positions]
        # a parameter that one reader needs whole is held whole
        parts = min(parameter_parts(parameter, owner, degrees) for owner in owners)
        size = ceil(parameter_bytes(parameter, training), parts)
        first = 1 if any(is_expert(owner) for owner in owners) else 0
        for position in positions:
            rows[first].append((position, name, size))
            if parameter.trainable:
                rows[first + 2].append((position, name, size))
                rows[4].append((position, name, ceil(added.weight_of[name], parts)))
                rows[5].extend(
                    _stand_in(graph, training, position, parameter, parameter_parts(parameter, owners[0], one))
                )
    return Weights(*(SharedSums(row, len(graph.operators)) for row in rows))


def _stand_in(
    graph: OperatorGraph, training: TrainingJob, position: int, parameter: Parameter, parts: int
) -> list[Item]:
    """Return the empty gradient of a block's product, which all blocks share; experts have one for all of them."""
    operator, block = graph.operators[position], graph.blocks[position]
    is_product = operator.work is not None and operator.work.kind == "matmul" and len(parameter.shape) > 1
    if not training.stand_ins or not training.mixed or not is_product or not block:
        return []
    shape = parameter.shape[-2:]
    key = parameter.name.removeprefix(block), shape
    return [(position, key, ceil(training.width(0) * prod(shape), parts))]


def parameter_bytes(parameter: Parameter, training: TrainingJob) -> int:
    """Return the bytes of a whole parameter as this training keeps it."""
    return training.width(0) * prod(parameter.shape) if training.precision else parameter.size_bytes


def states_of(amounts: Amounts, training: TrainingJob, zero: int, offload: str, fraction: float = 1.0) -> States:
    """Shard one kind of weights.

    Parameters
    ----------
    zero : int
        0 to 3.
    offload : str
        ``optimizer`` moves gradients, states and master weights to the host, ``parameters`` the parameters too.
    fraction : float
        The part of them that is moved.
    """
    if not amounts.weights:
        return States(0, 0, 0, 0)
    width = training.width(0)
    held = amounts.trainable // width if training.precision else amounts.trainable
    optimizer = held * training.state_width(1)
    master_width = training.master_width_of_whole if zero in (1, SCATTERED) else training.master_width
    master = amounts.trainable // width * master_width if training.mixed else 0
    shares = [amounts.copies if zero >= stage else 1 for stage in (3, 2, 1, 1)]
    summed = amounts.trainable // width * training.gradient_width(0) if training.mixed else amounts.trainable
    sizes = (amounts.weights, summed, optimizer, master)
    parameters, gradients, optimizer, master = (ceil(size, n) for size, n in zip(sizes, shares, strict=True))
    all_sizes = (parameters, gradients, optimizer, master)
    named = {"parameters": all_sizes, "optimizer": (0, *all_sizes[1:])}.get(offload, (0, 0, 0, 0))
    moved = [int(fraction * size) for size in named]
    parameters, gradients, optimizer, master = (size - gone for size, gone in zip(all_sizes, moved, strict=True))
    return States(parameters, gradients, optimizer, master, sum(moved))


def both(dense: States, experts: States) -> States:
    """Add two kinds of weights."""
    return States(
        dense.parameters + experts.parameters,
        dense.gradients + experts.gradients,
        dense.optimizer + experts.optimizer,
        dense.master_weights + experts.master_weights,
        dense.host + experts.host,
    )
