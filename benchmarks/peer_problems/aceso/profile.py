"""Operators that Aceso's profiler measured as a profile: times of its GPT's operators, at every tensor degree.

What tensor-parallel ranks sum stands inside the measured times (a row operator's forward, a column operator's
backward), and the price of a stage adds it by itself: a part of a matmul takes its share of the undivided one, all else
what was measured. Leaves out sequence parallelism and the second way to divide operators (``algo1``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.peer_problems.aceso.archive import AcesoArchive
from benchmarks.peer_problems.aceso.devices import AcesoDevice, aceso_device
from benchmarks.peer_problems.aceso.graph import WIDTH, AcesoGraph
from benchmarks.peer_problems.aceso.layer import EMBEDDING, FINAL, HEAD, LAYER, base_name, split_of, weighted
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import LOSS
from costmodel.model.origin import Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements

SUMMED_BYTES = 8
"""Moved a parameter when a gradient is added to another, at the memory's full rate: two reads and a write of 2 bytes at
three quarters of it. Backwards of the archive's stages on one A10G are then within 0.5 % in the median."""
THROTTLED = 0.75
"""A matmul's forward, one product, takes half of its backward of two; from this share on it was held back."""

Rows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""F, I and W ns, one entry a micro-batch size each."""


def aceso_profile(archive: AcesoArchive) -> Profile:
    """Return the profile of an archive's model on its device.

    Raises
    ------
    InvalidInput
        When a table lacks an operator.
    UsageError
        For a device that is not known.
    """
    known = aceso_device(archive.device)
    times = _Times(archive, known)
    graph = AcesoGraph(archive, times.sizes).graph()
    card = catalogue_device(known.catalogue)
    parameters = sum(parameter.size_bytes for parameter in graph.parameters) // WIDTH
    rows = [times.rows(operator.name, 1) for operator in graph.operators]
    return Profile(
        graph,
        Device("cuda", card.name, card.memory_bytes, known.catalogue),
        "float16",
        times.sizes,
        tuple(OperatorTimes(*row, (0.0,) * len(times.sizes)) for row in rows),
        WholeModelMeasurements(
            tuple(sum(part[i] for row in rows for part in row) for i in range(len(times.sizes))),
            accumulate_ns=round(parameters * SUMMED_BYTES / card.memory_gbs),
        ),
        provenance={"imported": "aceso", "device": archive.device, "sustained": known.sustained},
        origin=Origin(
            "the profile holds operators that Aceso measured: there is no model to run", known.remarks, "fp16"
        ),
        shards=times.shards([operator.name for operator in graph.operators if operator.name != LOSS]),
    )


@dataclass(frozen=True)
class _Times:
    """Times of an archive's operators, sums among ranks left out."""

    archive: AcesoArchive
    device: AcesoDevice

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Micro-batch sizes that were measured undivided."""
        return tuple(sorted(size for size, degree in self.archive.tables if degree == 1))

    def shards(self, names: Iterable[str]) -> Mapping[str, Mapping[str, Sequence[Sequence[int]]]]:
        """Return what operators take at the degrees that were measured at every size."""
        degrees = sorted({degree for _, degree in self.archive.tables} - {1})
        whole = [d for d in degrees if all((size, d) in self.archive.tables for size in self.sizes)]
        return {name: {f"{d}/{split_of(name)}": self.rows(name, d) for d in whole} for name in names}

    def rows(self, name: str, degree: int) -> Rows:
        """Return what a rank's part of an operator takes."""
        key = base_name(name), degree
        if key not in self._known:
            forward, inputs, weights = zip(*(self._one(*key, size) for size in self.sizes), strict=True)
            self._known[key] = forward, inputs, weights
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, int], Rows]:
        return {}

    def _one(self, name: str, degree: int, size: int) -> tuple[int, int, int]:
        if name == LOSS:
            return 0, 0, 0
        forward, backward = (
            round(us * self.device.sustained * 1000) for us in self._forward_backward(name, degree, size)
        )
        weight = backward // 2 if weighted(name) or name == HEAD else backward if name == EMBEDDING else 0
        return forward, backward - weight, weight

    def _forward_backward(self, name: str, degree: int, size: int) -> tuple[float, float]:
        """Return both, us; a forward that was held back counts as half of its backward."""
        whole, part = self.archive.row(name, size, 1), self.archive.row(name, size, degree)
        if weighted(name):
            throttled = whole.forward_us > THROTTLED * whole.backward_us
            forward = whole.backward_us / 2 if throttled else whole.forward_us
            return forward / degree, whole.backward_us / degree
        if name == EMBEDDING:  # its forward ends in a sum
            return whole.forward_us / degree, part.backward_us
        if name == HEAD:  # its backward does
            return part.forward_us, whole.backward_us / degree
        return part.forward_us, part.backward_us


def odd_rows(archive: AcesoArchive) -> list[str]:
    """Return what to tell of an archive: matmuls whose forward took many times its backward, as a first call does."""
    names = [kind.name for kind in LAYER if kind.weight] + [FINAL]
    return [
        f"{name} at micro-batch size {size}: its forward takes {row.forward_us / 1000:.0f} ms, its backward "
        f"{row.backward_us / 1000:.0f} ms; it seems to have been measured cold"
        for (size, degree), table in sorted(archive.tables.items())
        for name in names
        if degree == 1 and (row := table[name]).forward_us > COLD * row.backward_us
    ]


COLD = 10
"""Forward over backward from which a row is told of."""
