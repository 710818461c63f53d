"""Collects the operators of a described model: values under way, parameters, storages that are kept.

A value is a row of numbers a token; each has one storage, so that several operators that keep it count it once. Leaves
out the statistics that norms keep (4 to 8 bytes a token), views and casts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from costmodel import limits
from costmodel.model.graph import Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.work import Work

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Precision:
    """What a training precision stores: the profile's dtype, bytes of a parameter and of an activation."""

    dtype: str
    parameter_bytes: int
    activation_bytes: int


PRECISIONS = {
    "fp32": Precision("float32", 4, 4),
    "tf32": Precision("float32", 4, 4),
    "fp16": Precision("float16", 2, 2),
    "bf16": Precision("bfloat16", 2, 2),
    "fp8": Precision("bfloat16", 2, 2),
    "nvfp4": Precision("bfloat16", 2, 2),
}
"""fp8 and nvfp4 compute matrix products alone in 8 and 4 bits; parameters and values stay at 16."""


BUFFER_BYTES = 4
"""Buffers get no gradient and stay in 32 bits."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value under way: who makes it, `tokens` rows of `width`, bytes a sample (`fixed`: whatever the batch)."""

    operator: str
    tokens: int
    width: int
    size_bytes: int
    storage: int
    fixed: bool = False

    @property
    def saved(self) -> SavedStorage:
        """The storage as an operator keeps it."""
        return SavedStorage(self.storage, self.size_bytes, self.fixed)


def work_flop(work: Work) -> int:
    """Floating-point operations of one forward: matrix products and attention, two a multiply-add; the rest 0.

    Attention counts every score, masked or not, as the closed forms of Megatron-LM and PaLM and torch's counter do.
    """
    if work.kind == "matmul":
        return 2 * work.tokens * work.inner * work.outer * max(1, work.active)
    if work.kind == "attention":
        return 2 * work.tokens * work.context * work.heads * (work.inner + work.outer)
    return 0


@dataclass(slots=True)
class GraphBuilder:
    """Collects operators in a topological order.

    Attributes
    ----------
    name : str
        Of the model.
    precision : Precision
    microbatch_sizes : tuple of int
    """

    name: str
    precision: Precision
    microbatch_sizes: tuple[int, ...] = (1,)
    operators: list[Operator] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)
    num_storages: int = 0

    def add(
        self,
        name: str,
        kind: str,
        module: str,
        reads: Sequence[Value],
        work: Work,
        width: int,
        *,
        parameters: Mapping[str, Shape] | None = None,
        buffers: Mapping[str, Shape] | None = None,
        saved: Sequence[SavedStorage] = (),
        tokens: int = 0,
        element_bytes: int = 0,
        fixed: bool = False,
    ) -> Value:
        """Add an operator; return its output of (`tokens` or the work's tokens) x `width`."""
        owned = self._own(parameters or {}, self.precision.parameter_bytes, True)
        owned += self._own(buffers or {}, BUFFER_BYTES, False)
        rows = tokens or work.tokens
        size = rows * width * (element_bytes or self.precision.activation_bytes)
        sizes = tuple(size if fixed else size * n for n in self.microbatch_sizes)
        read = sum(parameter.size_bytes for parameter in owned)
        limits.check("operators", len(self.operators) + 1, self.name, at_least=True)
        self.operators.append(
            Operator(
                name, kind, module, work_flop(work), tuple(p.name for p in owned), read, sizes,
                tuple(dict.fromkeys(saved)), work=work,
            )
        )  # fmt: skip
        for value in dict.fromkeys(reads):
            self.readers[value.operator].append(name)
        self.readers[name] = []
        self.outputs[name] = Value(name, rows, width, size, self.new_storage(), fixed)
        return self.outputs[name]

    def new_storage(self) -> int:
        """Return an unused storage id."""
        self.num_storages += 1
        return self.num_storages - 1

    def keep(self, size_bytes: int) -> SavedStorage:
        """Return a storage of its own that an operator keeps, in bytes a sample."""
        return SavedStorage(self.new_storage(), size_bytes)

    def graph(self) -> OperatorGraph:
        """Return what was collected."""
        sizes = {operator.name: operator.output_bytes for operator in self.operators}
        tensors = tuple(
            Tensor(name, name, tuple(readers), sizes[name], storage=self.outputs[name].storage)
            for name, readers in self.readers.items()
            if readers
        )
        return OperatorGraph(self.name, tuple(self.operators), tensors, tuple(self.parameters.values()))

    def _own(self, shapes: Mapping[str, Shape], element_bytes: int, trainable: bool) -> list[Parameter]:
        made = (Parameter(name, shape, prod(shape) * element_bytes, trainable) for name, shape in shapes.items())
        return [self.parameters.setdefault(parameter.name, parameter) for parameter in made]
