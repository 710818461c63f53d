"""Operators that Aceso's profiler measured as a profile: its GPT layer in thirteen operators, at every tensor degree.

What tensor-parallel ranks sum stands inside the measured times (a row operator's forward, a column operator's
backward); it is taken out, since the price of a stage adds it by itself: that half then takes the other half's share of
the undivided operator. What each operator keeps follows Megatron-LM's layer (Korthikanti et al., 2022, section 4.1: 34
s b h and 5 a s^2 b bytes), not the archive's ``activations``, which count values that are freed. Leaves out sequence
parallelism and the second way to divide operators (``algo1``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from costmodel.errors import InvalidInput
from costmodel.importers.aceso_archive import Archive, Configuration, Measured
from costmodel.importers.aceso_devices import AcesoDevice, aceso_device
from costmodel.importers.aceso_layer import EMBEDDING, FINAL, HEAD, LAYER, Kind, aceso_names, split_of, weighted
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.origin import Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole import Whole
from costmodel.model.work import Work

MIB = 2**20
WIDTH = 2
"""Bytes of a value: the models are measured in fp16."""
SUMMED_BYTES = 8
"""Of a parameter whose gradient is added to an fp32 sum: it is read and written."""
THROTTLED = 0.75
"""A forward of one product takes half of its backward of two; from this share on it was held back when measured."""


def aceso_profile(archive: Archive) -> Profile:
    """Return the profile of an archive's model on its device.

    Raises
    ------
    InvalidInput
        When a table lacks an operator.
    """
    known, shape = aceso_device(archive.device), archive.shape
    sizes = tuple(sorted(size for size, degree in archive.tables if degree == 1))
    built = _Builder(archive, known, sizes)
    graph = built.graph()
    card = catalogue_device(known.catalogue)
    parameters = sum(parameter.size_bytes for parameter in graph.parameters) // WIDTH
    times = tuple(built.times(operator.name, 1) for operator in graph.operators)
    return Profile(
        graph,
        Device("cuda", card.name, card.memory_bytes, known.catalogue),
        "float16",
        sizes,
        times,
        Whole(
            tuple(sum(t.forward_ns[i] + t.backward_input_ns[i] + t.backward_weight_ns[i] for t in times)
                  for i in range(len(sizes))),
            accumulate_ns=round(parameters * SUMMED_BYTES / card.memory_gbs),
        ),
        provenance={"imported": "aceso", "device": archive.device, "sustained": known.sustained},
        origin=Origin(
            f"the profile holds Aceso's operators of a GPT ({shape.layers} layers): there is no model to run",
            known.remarks,
            "fp16",
        ),
        shards=built.shards(graph),
    )  # fmt: skip


@dataclass(frozen=True)
class _Builder:
    archive: Archive
    device: AcesoDevice
    sizes: tuple[int, ...]

    @property
    def shape(self) -> Configuration:
        return self.archive.shape

    @property
    def unit(self) -> int:
        """Bytes of one value of (sequence x hidden) of a sample."""
        return self.shape.sequence * self.shape.hidden * WIDTH

    def graph(self) -> OperatorGraph:
        """Return the model's operators, what flows between them and their parameters."""
        operators = [self._embedding()]
        reads: dict[str, list[str]] = {EMBEDDING: []}
        inside = EMBEDDING
        for i in range(self.shape.layers):
            names = {kind.name: f"{i}.{kind.name}" for kind in LAYER} | {"in": inside}
            for kind in LAYER:
                operators.append(self._operator(kind, names))
                reads[names[kind.name]] = [names[read] for read in kind.reads]
            inside = names[LAYER[-1].name]
        reads |= {FINAL: [inside], HEAD: [FINAL], LOSS: [HEAD]}
        operators += self._ends(inside)
        readers: dict[str, list[str]] = {operator.name: [] for operator in operators}
        for name, row in reads.items():
            for read in row:
                readers[read].append(name)
        tensors = [
            Tensor(o.name, o.name, tuple(readers[o.name]), o.output_bytes, storage=self._storage(o.name))
            for o in operators
            if readers[o.name]
        ]
        return OperatorGraph(f"gpt_{self.archive.model}", tuple(operators), tuple(tensors), tuple(self._parameters()))

    def _storage(self, name: str) -> int:
        """Return the storage of an operator's output; the next number is that of its mask."""
        return 2 * self._number[name]

    @property
    def _number(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate((*aceso_names(self.shape.layers), LOSS))}

    def _bytes(self, kind: Kind) -> int:
        scores = self.shape.heads * self.shape.sequence**2 * WIDTH
        return scores if kind.scores else kind.size * self.unit

    def _operator(self, kind: Kind, names: Mapping[str, str]) -> Operator:
        name, size = names[kind.name], self._bytes(kind)
        sizes = {other.name: self._bytes(other) for other in LAYER} | {"in": self.unit}
        saved = [SavedStorage(self._storage(names[kept]), sizes[kept]) for kept in kind.keeps]
        saved += [SavedStorage(self._storage(name) + 1, size // WIDTH)] * kind.mask
        weight = self._weights(kind.name)
        return Operator(
            name,
            kind.kind,
            f"layers.{name.split('.')[0]}",
            parameters=(f"{name}.weight",) if kind.weight else (),
            parameter_bytes=weight if kind.weight else 0,
            output_bytes=self._each(size),
            saved=tuple(saved),
            work=Work(kind.kind, kind.split, self.shape.sequence, outer=size // WIDTH // self.shape.sequence),
        )

    def _embedding(self) -> Operator:
        mask = SavedStorage(self._storage(EMBEDDING) + 1, self.unit // WIDTH)
        work = Work("embedding", "row", self.shape.sequence, self._vocabulary, self.shape.hidden)
        names, size = ("word.weight", "position.weight"), self._weights(EMBEDDING)
        return Operator(EMBEDDING, "embedding", "", 0, names, size, self._each(self.unit), (mask,), work=work)

    def _ends(self, inside: str) -> Iterator[Operator]:
        """Yield the last norm, the projection onto the vocabulary with its softmax in fp32, and the loss."""
        tokens, logits = self.shape.sequence, self.shape.sequence * self._vocabulary * WIDTH
        kept = (SavedStorage(self._storage(inside), self.unit),)
        norm = Work("norm", "sequence", tokens, outer=self.shape.hidden)
        yield Operator(FINAL, "norm", output_bytes=self._each(self.unit), saved=kept, work=norm)
        saved = SavedStorage(self._storage(FINAL), self.unit), SavedStorage(self._storage(HEAD) + 1, 2 * logits)
        head = Work("matmul", "column", tokens, self.shape.hidden, self._vocabulary)
        yield Operator(
            HEAD, "linear", "", 0, ("word.weight",), self._weights(HEAD), self._each(logits), saved, work=head
        )
        yield Operator(LOSS, LOSS, output_bytes=self._each(0), work=Work("loss", "inner", tokens, outer=self._vocabulary))

    def _each(self, size_bytes: int) -> tuple[int, ...]:
        return tuple(size_bytes * size for size in self.sizes)

    def _parameters(self) -> Iterator[Parameter]:
        """Yield weights; the table of positions, which no rank divides, as a list of values."""
        hidden, word = self.shape.hidden, self._weights(HEAD)
        yield Parameter("word.weight", (self._vocabulary, hidden), word)
        position = self._weights(EMBEDDING) - word
        yield Parameter("position.weight", (position // WIDTH,), position)
        for i in range(self.shape.layers):
            for kind in LAYER:
                if kind.weight:
                    size = self._weights(kind.name)
                    shape = (size // WIDTH // hidden, hidden)
                    yield Parameter(f"{i}.{kind.name}.weight", shape, size)

    @property
    def _vocabulary(self) -> int:
        return self._weights(HEAD) // WIDTH // self.shape.hidden

    def _weights(self, name: str) -> int:
        return round(self._measured(name, self.sizes[0], 1).weights_mib * MIB)

    def _measured(self, name: str, size: int, degree: int) -> Measured:
        table = self.archive.tables[size, degree]
        found = table.get(name.split(".", 1)[-1])
        if found is None:
            raise InvalidInput(
                f"the table of {self.archive.model} at micro-batch size {size}, tensor degree {degree} has no operator "
                f"{name!r}; all of {EMBEDDING}, a layer's {len(LAYER)}, {FINAL} and {HEAD} are needed"
            )
        return found

    def times(self, name: str, degree: int) -> OperatorTimes:
        """Return what a rank's part of an operator takes, sums among ranks left out."""
        rows = [self._split(name, size, degree) for size in self.sizes]
        forward, inputs, weights = ([row[i] for row in rows] for i in range(3))
        return OperatorTimes(tuple(forward), tuple(inputs), tuple(weights), (0.0,) * len(rows))

    def _split(self, name: str, size: int, degree: int) -> tuple[int, int, int]:
        if name == LOSS:
            return 0, 0, 0
        forward, backward = self._pair(name, size, degree)
        halved = name == HEAD or weighted(name)
        weight = backward / 2 if halved else backward if name == EMBEDDING else 0.0
        ns: Callable[[float], int] = lambda us: round(us * self.device.sustained * 1000)  # noqa: E731
        return ns(forward), ns(backward) - ns(weight), ns(weight)

    def _pair(self, name: str, size: int, degree: int) -> tuple[float, float]:
        """Return forward and backward, us: without what is summed, and without what throttled forwards took longer."""
        whole, part = self._measured(name, size, 1), self._measured(name, size, degree)
        if weighted(name):
            throttled = whole.forward_us > THROTTLED * whole.backward_us
            forward = whole.backward_us / 2 if throttled else whole.forward_us
            return forward / degree, whole.backward_us / degree
        if degree > 1 and name == EMBEDDING:
            return whole.forward_us / degree, part.backward_us
        if degree > 1 and name == HEAD:
            return part.forward_us, whole.backward_us / degree
        return part.forward_us, part.backward_us

    def shards(self, graph: OperatorGraph) -> dict[str, dict[str, Sequence[Sequence[int]]]]:
        """Return what each operator takes at the degrees that were measured at every size."""
        degrees = sorted({degree for _, degree in self.archive.tables} - {1})
        whole = [d for d in degrees if all((size, d) in self.archive.tables for size in self.sizes)]
        found: dict[str, dict[str, Sequence[Sequence[int]]]] = {}
        for operator in graph.operators:
            for degree in whole if operator.work and operator.name != LOSS else ():
                times = self.times(operator.name, degree)
                rows = (times.forward_ns, times.backward_input_ns, times.backward_weight_ns)
                found.setdefault(operator.name, {})[f"{degree}/{split_of(operator.name)}"] = rows
        return found

