"""The operator graph of Aceso's GPT: what each operator makes, reads and keeps, and its parameters.

Sizes follow the model's shape, weights the archive's table at tensor degree 1. Leaves out times
(`benchmarks.peer_problems.aceso.profile`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from benchmarks.peer_problems.aceso.archive import MIB, AcesoArchive, AcesoConfiguration
from benchmarks.peer_problems.aceso.layer import EMBEDDING, ENTERS, FINAL, HEAD, LAYER, LayerOperator, aceso_names
from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.work import Work

WIDTH = 2
"""Bytes of a value: the models are measured in fp16."""


@dataclass(frozen=True)
class AcesoGraph:
    """Builds the graph of an archive's model at the micro-batch `sizes`."""

    archive: AcesoArchive
    sizes: tuple[int, ...]

    @property
    def shape(self) -> AcesoConfiguration:
        """The model's shape."""
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
            names = {kind.name: f"{i}.{kind.name}" for kind in LAYER} | {ENTERS: inside}
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

    @cached_property
    def _number(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate((*aceso_names(self.shape.layers), LOSS))}

    def _bytes(self, kind: LayerOperator) -> int:
        scores = self.shape.heads * self.shape.sequence**2 * WIDTH
        return scores if kind.scores else kind.size * self.unit

    def _operator(self, kind: LayerOperator, names: Mapping[str, str]) -> Operator:
        name, size = names[kind.name], self._bytes(kind)
        sizes = {other.name: self._bytes(other) for other in LAYER} | {ENTERS: self.unit}
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
            work=self._work(kind, size),
        )

    def _work(self, kind: LayerOperator, size: int) -> Work:
        """Return what an operator does; heads and their parts divide it."""
        outer = size // WIDTH // self.shape.sequence
        inner = self._weights(kind.name) // WIDTH // outer if kind.weight else 0
        parts = 0 if kind.split == "sequence" else self.shape.heads
        return Work(kind.kind, kind.split, self.shape.sequence, inner, outer, parts=parts)

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
        yield Operator(
            LOSS, LOSS, output_bytes=self._each(0), work=Work("loss", "inner", tokens, outer=self._vocabulary)
        )

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
        return round(self.archive.row(name, self.sizes[0], 1).weights_mib * MIB)
