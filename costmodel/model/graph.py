"""The operator graph of one training model: what is computed, what flows, what is kept.

An operator is one call of the captured model; a tensor is a hyperedge from its producer to all its
consumers, so that sending it to a stage costs its bytes once however many consumers wait there. The
loss is the operator ``loss``. Parameter-free operators without gradient (masks, position tables) are
not operators here: each consumer replicates them. Leaves out: times, which `Profile` holds.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from costmodel import forms
from costmodel.codec import NEEDED, UNSAID, Extras, Json, record
from costmodel.errors import InvalidInput
from costmodel.files import Node
from costmodel.model.blocks import block_of, part_names
from costmodel.model.work import Work

LOSS = "loss"
"""Name and kind of the operator that computes the scalar loss."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter (or buffer) of the model; tied ones appear once.

    Attributes
    ----------
    name : str
        Its first qualified name in the model.
    shape : tuple of int
    size_bytes : int
    trainable : bool
        Whether it gets a gradient.
    """

    name: str
    shape: tuple[int, ...]
    size_bytes: Annotated[int, Json("bytes")]
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class SavedStorage:
    """A storage that an operator keeps from its forward until its backward.

    Several operators may keep the same storage; a stage holds it once. ``fixed`` ones (a causal mask)
    do not grow with the micro-batch: `size_bytes` is then the whole, else bytes a sample.
    """

    storage: int
    size_bytes: int
    fixed: bool = False


def _saved(fixed: bool) -> forms.JsonForm[tuple[SavedStorage, ...]]:
    """Return the form of the storages that do not grow with the micro-batch, or of the others."""
    rows = forms.listed(
        forms.row(forms.whole(), forms.whole(), says="[storage id, bytes]" if fixed else "[storage id, bytes a sample]")
    )
    return forms.JsonForm(
        lambda node: tuple(SavedStorage(storage, size, fixed) for storage, size in rows.read(node)),
        lambda saved: [[each.storage, each.size_bytes] for each in saved if each.fixed == fixed],
        rows.schema,
    )


SAVED_FIXED: Extras = {"saved_fixed": (Json(form=_saved(True), needed=False), lambda parts: parts[0].saved, "saved")}
"""The other storages' key, of an operator that stands in one object with its times."""


def add_saved(values: dict[str, Any], _: Node) -> None:
    """Put all storages that a file says an operator saves into one list."""
    values["saved"] += values.pop("saved_fixed", ())


BY_SIZE = Json(says="One entry a micro-batch size.")


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name : str
        Unique in the graph.
    kind : str
        What it computes, e.g. ``linear``.
    module : str
        Path of the module whose forward calls it; empty at the top.
    flop : int
        Floating-point operations of one sample's forward.
    parameters : tuple of str
        Names of the parameters that it reads.
    parameter_bytes : int
        Bytes of those.
    output_bytes : tuple of int
        Bytes of its outputs, one entry a micro-batch size of the profile.
    saved : tuple of SavedStorage
    trainable : bool
        Whether a gradient flows into it: False means that it has no backward at all.
    in_place : bool
        It changes (or is a view bound to) its producer's value, so it must share its producer's stage.
    work : Work, optional
        What it does for one sample, where that is known.
    """

    name: str
    kind: str
    module: Annotated[str, NEEDED] = ""
    flop: Annotated[int, NEEDED] = 0
    parameters: Annotated[tuple[str, ...], NEEDED] = ()
    parameter_bytes: Annotated[int, NEEDED] = 0
    output_bytes: Annotated[tuple[int, ...], NEEDED, BY_SIZE] = (0,)
    saved: Annotated[tuple[SavedStorage, ...], NEEDED, Json(form=_saved(False))] = ()
    trainable: Annotated[bool, NEEDED] = True
    in_place: Annotated[bool, NEEDED] = False
    work: Annotated[Work | None, UNSAID] = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that flows: one producer, all its consumers (operator names), its bytes a micro-batch size.

    `name` is unique and what plans call it (an operator with several outputs produces several tensors);
    ``gradient`` says whether a gradient of the same size flows back; `storage` is the storage id
    shared with `SavedStorage`, so that a stage counts a received and saved tensor once.
    """

    name: Annotated[str, Json(needed=False, says="The producer's name when left out.")]
    producer: str
    consumers: tuple[str, ...]
    size_bytes: Annotated[tuple[int, ...], Json("bytes"), BY_SIZE]
    gradient: bool = True
    storage: Annotated[int, Json(least=-1)] = -1


def _named(values: dict[str, Any], _: Node) -> None:
    values.setdefault("name", values["producer"])


record(Tensor, settle=_named)


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in a topological order, the tensors between them and the parameters they read.

    Raises
    ------
    InvalidInput
        On a name that occurs twice, a tensor of an unknown operator, a parameter that is not listed,
        or a cycle; the message names the operators.
    """

    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        if not self.operators:
            raise InvalidInput("a graph without operators; at least one is needed")
        _reject_repeats("operator", (operator.name for operator in self.operators))
        _reject_repeats("tensor", (tensor.name for tensor in self.tensors))
        _reject_repeats("parameter", (parameter.name for parameter in self.parameters))
        for tensor in self.tensors:  # before any look-up, so that a wrong name is explained
            for name in (tensor.producer, *tensor.consumers):
                if name not in self.index:
                    raise InvalidInput(
                        f"the tensor {tensor.name!r} names the operator {name!r}, which the graph "
                        f"does not hold; {_nearest(name, self.index)}"
                    )
        for operator in self.operators:
            for parameter in operator.parameters:
                if parameter not in self.parameter_index:
                    raise InvalidInput(
                        f"operator {operator.name!r} reads the parameter {parameter!r}, which is not listed"
                    )
        self._check_order()

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each operator by name."""
        return {operator.name: i for i, operator in enumerate(self.operators)}

    @cached_property
    def parameter_index(self) -> Mapping[str, Parameter]:
        """Parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the operators that read an output of each operator, without repeats."""
        found: list[dict[int, None]] = [{} for _ in self.operators]
        for tensor in self.tensors:
            found[self.index[tensor.producer]].update(dict.fromkeys(self.index[c] for c in tensor.consumers))
        return tuple(tuple(sorted(row)) for row in found)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the operators whose outputs each operator reads."""
        found: list[list[int]] = [[] for _ in self.operators]
        for producer, row in enumerate(self.successors):
            for consumer in row:
                found[consumer].append(producer)
        return tuple(map(tuple, found))

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """The block of each operator, by its module; empty for none."""
        return tuple(block_of(operator.module) for operator in self.operators)

    @cached_property
    def with_w(self) -> tuple[bool, ...]:
        """Whether operators leave something to W: frozen parameters get no gradient, those of norms come with I."""
        left = {p.name for p in self.parameters if p.trainable and len(p.shape) != 1}
        return tuple(o.trainable and not left.isdisjoint(o.parameters) for o in self.operators)

    @cached_property
    def made_by_w(self) -> tuple[tuple[int, int], ...]:
        """Operators that leave something to W with the tensors, of those that have a gradient, that each makes."""
        return tuple(
            (position, index)
            for index, tensor in enumerate(self.tensors)
            if tensor.gradient and self.with_w[position := self.index[tensor.producer]]
        )

    @cached_property
    def storages(self) -> frozenset[int]:
        """Storages that tensors name."""
        return frozenset(tensor.storage for tensor in self.tensors)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The part of each operator (`costmodel.model.blocks.part_names`): a block, or a module outside of blocks."""
        modules, losses = zip(*((operator.module, operator.kind == "loss") for operator in self.operators), strict=True)
        return part_names(modules, self.predecessors, losses)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over operator names, kinds, parameter names and shapes, and edges.

        Batch size, device, dtype and torch's version do not enter.
        """
        content = {
            "operators": [[o.name, o.kind, list(o.parameters)] for o in self.operators],
            "parameters": sorted([p.name, list(p.shape)] for p in self.parameters),
            "edges": sorted([t.name, t.producer, sorted(t.consumers)] for t in self.tensors),
        }
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def _check_order(self) -> None:
        """Refuse cycles, and operators listed before what they read."""
        for tensor in self.tensors:
            for consumer in tensor.consumers:
                if self.index[consumer] <= self.index[tensor.producer]:
                    self._explain_order(tensor.producer, consumer)

    def _explain_order(self, producer: str, consumer: str) -> None:
        if producer == consumer:
            raise InvalidInput(f"operator {producer!r} reads its own output; drop it from that tensor's consumers")
        # An edge backwards in the list is a cycle only if the consumer also leads to the producer.
        parent = {self.index[consumer]: -1}
        queue = [self.index[consumer]]
        for node in queue:
            for successor in self.successors[node]:
                if successor not in parent:
                    parent[successor] = node
                    queue.append(successor)
        node = self.index[producer]
        if node not in parent:
            raise InvalidInput(
                f"operator {consumer!r} is listed before {producer!r}, whose output it reads; list operators so that "
                "every one follows its inputs"
            )
        cycle = []
        while node != -1:
            cycle.append(self.operators[node].name)
            node = parent[node]
        path = " -> ".join([*reversed(cycle), consumer])
        raise InvalidInput(f"the operators form a cycle: {path}; a training graph has none, so drop one of these edges")


def _reject_repeats(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"the {what} {name!r} is listed twice; names must be unique")
        seen.add(name)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    import difflib  # only on the way to an error message

    close = difflib.get_close_matches(name, known, 3)
    return (
        f"did you mean {', '.join(close)}?"
        if close
        else f"it holds {len(known)} operators, the first is {next(iter(known))!r}"
    )
