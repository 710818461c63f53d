"""What a stage keeps of one micro-batch between forward and backward, for each way to recompute.

A kept storage divides like the tensor it holds, one that holds no tensor like the output of the operator that keeps
it; both count once in a stage (naive sums are 6-59 % high). Formulae that this reproduces: Korthikanti et
al., 2022, section 4. ``selective`` drops what attention alone keeps (scores), ``full`` everything in a block but
what flows into it. A product in a narrow precision may keep its input so (`TrainingJob.casts_inputs`), in addition to
what others keep of it. Leaves out what allocators round up.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from costmodel.machines.catalogue import NARROW
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.roofline.narrow import computed_in
from costmodel.stages.measured_operators import MeasuredOperators
from costmodel.stages.strategies.division import Degrees, ceil, output_parts
from costmodel.stages.strategies.shared_sums import Item, SharedSums
from costmodel.stages.strategies.training import TrainingJob


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """Bytes kept by operators of one configuration.

    Attributes
    ----------
    until_backward : SharedSums
        What stays from F until the backward.
    until_weight : SharedSums
        What W reads, until when it stays: a part of that, and gradients of outputs.
    dropped : SharedSums
        What recompute makes again: alive while one block's (or one attention's) backward runs.
    tensor_bytes : tuple of int
        Each tensor's bytes on one rank.
    storages : mapping
        Bytes on one rank of each storage that any operator keeps.
    """

    until_backward: SharedSums
    until_weight: SharedSums
    dropped: SharedSums
    tensor_bytes: tuple[int, ...]
    storages: Mapping[object, int]

    def received(self, tensors: Sequence[int], graph: OperatorGraph, operators: Sequence[int]) -> int:
        """Return the bytes of received tensors that the operators do not keep anyhow: whole storages, each once.

        Views of a storage that nothing keeps arrive one by one, each with bytes of its own.
        """
        keys: dict[object, int] = {}
        for i in tensors:
            keys[_key(graph, i)] = keys.get(_key(graph, i), 0) + self.tensor_bytes[i]
        return sum(
            max(size, self.storages.get(key, 0))
            for key, size in keys.items()
            if not self.until_backward.holds(operators, key)
        )


def saved_activations(
    graph: OperatorGraph,
    everything: Sequence[Item],
    recompute: str | tuple[str, ...],
    tensor_bytes: tuple[int, ...],
    names: Sequence[str],
    held: Collection[int] | None = None,
    fused: bool = True,
) -> SavedActivations:
    """Return what each operator keeps.

    Parameters
    ----------
    graph : OperatorGraph
    everything : sequence of Item
        What `saved_items` says.
    recompute : str
        ``none``, ``selective``, ``full``, or the operators that run again, by name.
    tensor_bytes : tuple of int
        Bytes of each tensor on one rank.
    names : sequence of str
        Block of each operator.
    held : collection of int, optional
        Operators whose outputs ``selective`` keeps, where it goes by operator and not by attention's scores.
    fused : bool
        Whether a compiler leaves out those that no backward needs.
    """
    count = len(graph.operators)
    kept, dropped = list(everything), []
    if recompute == "full":
        kept = [item for item in everything if not names[item[0]]] + _block_inputs(graph, names, tensor_bytes)
        dropped = [item for item in everything if names[item[0]]]
    elif isinstance(recompute, tuple):
        runs = runs_of(graph, frozenset(recompute))
        kept = [item for item in everything if not runs[item[0]]] + _block_inputs(graph, runs, tensor_bytes)
        dropped = [item for item in everything if runs[item[0]]]
    elif recompute == "selective" and held is not None:
        stays = {_key(graph, i) for i, tensor in enumerate(graph.tensors) if graph.index[tensor.producer] in held}
        kept = [item for item in everything if not names[item[0]] or item[1] in stays]
        dropped = [item for item in everything if names[item[0]] and item[1] not in stays]
        kept += _held_outputs(graph, everything, tensor_bytes, names, held, fused)
        kept += _block_inputs(graph, names, tensor_bytes)
    elif recompute == "selective":
        scores = [_is_score(graph, item) for item in everything]
        dropped = list(compress(everything, scores))
        kept = [item for item, score in zip(everything, scores, strict=True) if not score]
    late = [item for item in kept if graph.with_w[item[0]]]
    # gradients of outputs, which W multiplies with what was kept, wait for it from I on
    late += [(position, ("gradient", index), tensor_bytes[index]) for position, index in graph.made_by_w]
    storages: dict[object, int] = {}
    for _, key, size in everything:
        storages[key] = max(size, storages.get(key, 0))
    return SavedActivations(
        SharedSums(kept, count), SharedSums(late, count), SharedSums(dropped, count), tensor_bytes, storages
    )


def _held_outputs(
    graph: OperatorGraph,
    everything: Sequence[Item],
    tensor_bytes: Sequence[int],
    names: Sequence[str],
    held: Collection[int],
    fused: bool,
) -> list[Item]:
    """Return what held operators of blocks make; where that is `fused`, what their block's backward needs alone.

    That is what it reads, and what is made again for it.
    """
    found, again = list[Item](), set[int]()
    saved = {(names[i], key) for i, key, _ in everything}
    made = sorted(((graph.index[t.producer], i) for i, t in enumerate(graph.tensors)), reverse=True)
    for producer, index in made:
        readers = {graph.index[consumer] for consumer in graph.tensors[index].consumers}
        needed = (names[producer], _key(graph, index)) in saved or bool(
            again & {i for i in readers if names[i] == names[producer]}
        )
        if producer in held and (needed or not fused):
            found.append((producer, _key(graph, index), tensor_bytes[index]))
        elif needed and producer not in held:
            again.add(producer)
    return found


def runs_of(graph: OperatorGraph, again: Container[str]) -> list[str]:
    """Return what runs `again` together: of each operator the first of its run, which ends with the block; or empty."""
    found: list[str] = []
    for i, operator in enumerate(graph.operators):
        before = found[-1] if i and graph.blocks[i] == graph.blocks[i - 1] else ""
        found.append((before or operator.name) if operator.name in again else "")
    return found


def tensor_bytes_of(graph: OperatorGraph, degrees: Degrees, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return each tensor's bytes on one rank."""
    return tuple(
        ceil(size, output_parts(graph, graph.index[tensor.producer], degrees))
        for tensor, size in zip(graph.tensors, sizes, strict=True)
    )


def _key(graph: OperatorGraph, tensor: int) -> object:
    storage = graph.tensors[tensor].storage
    return storage if storage >= 0 else ("tensor", tensor)


def saved_items(
    model: MeasuredOperators, training: TrainingJob, degrees: Degrees, tensor_bytes: Sequence[int]
) -> list[Item]:
    """Return what operators keep when nothing is recomputed."""
    graph = model.profile.graph
    scale = training_scale(model, training)
    shares = _shares(model, tensor_bytes, scale)
    found: list[Item] = []
    for position, operator in enumerate(graph.operators):
        casts = training.casts_inputs and computed_in(graph, position, training.precision) in NARROW
        parts = output_parts(graph, position, degrees)
        scores = 0 if training.flash else _score_bytes(operator, model.microbatch_size, scale[0])
        for saved in operator.saved:
            if scores and saved.storage not in shares:
                continue  # what flash attention keeps in place of scores
            asked, profiled = (1, 1) if _is_statistic(model, operator, saved.storage in shares) else scale
            size = saved.size_bytes if saved.fixed else saved.size_bytes * model.microbatch_size * asked // profiled
            part, whole = shares.get(saved.storage, (1, 1 if saved.fixed else parts))
            held = max(ceil(size * part, whole), part if saved.storage in shares else 0)
            found.append(
                (position, ("narrow", saved.storage), training.cast_bytes(held))
                if casts
                else (position, saved.storage, held)
            )
        if scores:
            found.append((position, ("scores", position), ceil(scores, parts)))
    return found


def _is_statistic(model: MeasuredOperators, operator: Operator, is_tensor: bool) -> bool:
    """Whether a described attention or loss keeps this apart from its tensors, in 32 bits whatever it computes in."""
    kind = operator.work.kind if operator.work else ""
    return bool(model.profile.origin.plan_only) and not is_tensor and kind in ("attention", "loss")


def _shares(
    model: MeasuredOperators, tensor_bytes: Sequence[int], scale: tuple[int, int]
) -> dict[int, tuple[int, int]]:
    """Return for each storage that a tensor names that tensor's bytes on one rank and whole; of views the largest's.

    A view is divided as its storage is: three views of a packed projection are one storage of all of it.
    """
    found: dict[int, tuple[int, int]] = {}
    for tensor, part in zip(model.profile.graph.tensors, tensor_bytes, strict=True):
        whole = model.tensor_bytes(tensor) * scale[0] // scale[1]
        if tensor.storage >= 0 and whole > found.get(tensor.storage, (0, 0))[1]:
            found[tensor.storage] = (part, whole)
    return found


def _score_bytes(operator: Operator, microbatch_size: int, width: int) -> int:
    """Softmax's output, dropout's mask of one byte and dropout's output: 5 a s^2 b in 16 bits (Korthikanti, 4.1)."""
    work = operator.work
    if work is None or work.kind != "attention":
        return 0
    return (2 * width + 1) * work.heads * work.tokens * work.context * microbatch_size


def _is_score(graph: OperatorGraph, item: Item) -> bool:
    """Whether only attention's core knows this storage: no tensor names it."""
    work = graph.operators[item[0]].work
    return work is not None and work.kind == "attention" and item[1] not in graph.storages


def _block_inputs(graph: OperatorGraph, names: Sequence[str], tensor_bytes: Sequence[int]) -> list[Item]:
    """Return the tensors that each block reads from outside, under the storage that others know them by."""
    positions = graph.index
    return [
        (consumer, _key(graph, index), tensor_bytes[index])
        for index, tensor in enumerate(graph.tensors)
        for consumer in map(positions.__getitem__, tensor.consumers)
        if names[consumer] and names[consumer] != names[positions[tensor.producer]]
    ]


def training_scale(model: MeasuredOperators, training: TrainingJob) -> tuple[int, int]:
    """Return bytes of a value as planned and as profiled."""
    profiled = PROFILED_WIDTHS.get(model.profile.dtype.removeprefix("torch."), 4)
    return training.width(profiled), profiled


PROFILED_WIDTHS: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 2}
