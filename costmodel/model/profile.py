"""What was measured (or estimated) of one model: its graph, times a micro-batch size, links, whole step.

Times are integer nanoseconds, one entry a micro-batch size. Leaves out how they come about:
`costmodel.profiling` measures them, importers read them from elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from costmodel.codec import UNSAID, Json, Positive, form_of, record
from costmodel.documents import Document
from costmodel.errors import InvalidInput
from costmodel.files import Node, read_json
from costmodel.forms import JsonForm, listed
from costmodel.machines.links import Links
from costmodel.model.graph import SAVED_FIXED, Operator, OperatorGraph, Parameter, Tensor, add_saved
from costmodel.model.launches import KEYS as LAUNCHES_KEYS
from costmodel.model.launches import Launches
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.whole_model import WholeModelMeasurements

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8": "fp8"}
"""Precision by dtype."""


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Times of one operator, each one entry a micro-batch size; `spread` is interquartile range / median.

    On a device that works behind its host they hold what the device waited for it; `launches` has the two apart.
    `working_bytes` is what is alive while it runs, beyond what it and those before it save; empty where not measured.
    """

    forward_ns: tuple[int, ...]
    backward_input_ns: tuple[int, ...]
    backward_weight_ns: tuple[int, ...]
    spread: tuple[float, ...]
    launches: Annotated[Launches | None, UNSAID] = None
    working_bytes: Annotated[tuple[int, ...], UNSAID] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """The device that was measured: ``cpu`` or ``cuda``, its name, memory and catalogue id ("" if none)."""

    type: str
    name: str
    memory_bytes: int
    catalogue: str = ""


Shards = Mapping[str, Mapping[str, Sequence[Sequence[int]]]]
_SHARDS = form_of(Shards)
"""For an operator and a cut (``degree/heads`` for attention, else ``degree/split``): F, I, W ns, one entry a size."""


@dataclass(frozen=True)
class Profile:
    """A model's operator graph with what each operator costs on one device.

    `accumulate_of` holds each trainable parameter's part of `whole.accumulate_ns` by name, or nothing where these were
    not measured; `shards` what operators take at the shapes of tensor-parallel shards, as far as that was measured.

    Raises
    ------
    InvalidInput
        When an operator or tensor has not exactly one entry a micro-batch size, or `accumulate_of` lacks a parameter.
    """

    graph: OperatorGraph
    device: Device
    dtype: str
    microbatch_sizes: tuple[int, ...]
    times: tuple[OperatorTimes, ...]
    whole: WholeModelMeasurements
    links: Links | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    accumulate_of: Mapping[str, int] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    shards: Shards = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = self.microbatch_sizes
        if not sizes or min(sizes) < 1 or list(sizes) != sorted(set(sizes)):
            raise InvalidInput(f"microbatch_sizes is {list(sizes)}; it must be a rising list of whole numbers from 1")
        if len(self.times) != len(self.graph.operators):
            raise InvalidInput(
                f"{len(self.times)} times for {len(self.graph.operators)} operators; one entry each is needed"
            )
        for operator, times in zip(self.graph.operators, self.times, strict=True):
            lists = (
                operator.output_bytes,
                times.forward_ns,
                times.backward_input_ns,
                times.backward_weight_ns,
                times.spread,
                *((getattr(times.launches, key) for key in LAUNCHES_KEYS) if times.launches else ()),
                *((times.working_bytes,) if times.working_bytes else ()),
            )
            if any(len(row) != len(sizes) for row in lists):
                raise InvalidInput(
                    f"operator {operator.name!r} needs {len(sizes)} entries in each list, one a size {list(sizes)}"
                )
        for tensor in self.graph.tensors:
            if len(tensor.size_bytes) != len(sizes):
                raise InvalidInput(
                    f"the tensor {tensor.name!r} needs {len(sizes)} entries in bytes, one a micro-batch size"
                )
        self.whole.check(len(sizes))
        lacking = [p.name for p in self.graph.parameters if p.trainable and p.name not in self.accumulate_of]
        if self.accumulate_of and lacking:
            raise InvalidInput(
                f"the parameter {lacking[0]!r} has no accumulate_ns and others have; one entry each is needed, or none"
            )

    @property
    def precision(self) -> str:
        """Precision that its times are of: estimated in, or cast to while training, else its dtype's; "" if unnamed."""
        named = self.origin.precision or (self.origin.autocast or self.dtype).removeprefix("torch.")
        return DTYPES.get(named, named if self.origin.precision else "")

    @cached_property
    def times_of(self) -> Mapping[str, OperatorTimes]:
        """Times by operator name."""
        return {o.name: t for o, t in zip(self.graph.operators, self.times, strict=True)}


@dataclass(frozen=True, slots=True)
class _Accumulated:
    """What a profile says of a parameter in addition: its part of `whole.accumulate_ns`."""

    accumulate_ns: Annotated[int | None, UNSAID] = None


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    fingerprint: str


_LINKS = JsonForm[Links | None](
    lambda node: record(Links).read(node) if node.entries() else None,
    lambda links: record(Links).write(links) if links else {},
    lambda known: {"anyOf": [{"type": "object", "maxProperties": 0}, record(Links).schema(known)]},
)
"""Measured links, or an object without keys."""
_LATE = ("work", "launches", "working_bytes")
_OPERATOR: JsonForm[tuple[Operator, OperatorTimes]] = record(
    Operator, OperatorTimes, late=_LATE, extras=SAVED_FIXED, settle=add_saved
)
_PARAMETER: JsonForm[tuple[Parameter, _Accumulated]] = record(Parameter, _Accumulated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfileFile:
    """A model's operator graph with what each operator costs on one device."""

    model: _Model
    device: Device
    dtype: str
    microbatch_sizes: Annotated[tuple[Positive, ...], Json(rules={"minItems": 1, "uniqueItems": True})]
    operators: Annotated[
        tuple[tuple[Operator, OperatorTimes], ...], Json(form=listed(_OPERATOR), rules={"minItems": 1})
    ]
    tensors: tuple[Tensor, ...]
    parameters: Annotated[tuple[tuple[Parameter, _Accumulated], ...], Json(form=listed(_PARAMETER))]
    links: Annotated[Links | None, Json(form=_LINKS)] = None
    whole: WholeModelMeasurements
    origin: Origin | None = None
    shards: Shards = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


_ALIKE = (
    "device", "dtype", "microbatch_sizes", "links", "whole", "origin", "shards", "provenance", "extra"
)  # fmt: skip
PROFILE: Document[_ProfileFile] = Document("penstock-profile", 2, record(_ProfileFile))


def read_profile(path: str | Path) -> Profile:
    """Read a profile file; see `costmodel.files` for what is refused."""
    root = read_json(path)
    found = PROFILE.read_node(root)
    return root.build(lambda: _profile(found, root))


def _profile(found: _ProfileFile, root: Node) -> Profile:
    operators, times = zip(*found.operators, strict=True) if found.operators else ((), ())
    parameters = tuple(parameter for parameter, _ in found.parameters)
    graph = OperatorGraph(found.model.name, operators, found.tensors, parameters)
    if found.model.fingerprint != graph.fingerprint:
        root.child("model").child("fingerprint").fail(
            f"the operators give {graph.fingerprint}: the file was changed by hand or cut; profile the model again"
        )
    origin, shards, extra = (found.origin, found.shards, found.extra) if found.origin else _version_1(found, root)
    accumulate_of = {p.name: own.accumulate_ns for p, own in found.parameters if own.accumulate_ns is not None}
    return Profile(
        graph, found.device, found.dtype, found.microbatch_sizes, times, found.whole, found.links,
        found.provenance, extra, accumulate_of, origin, shards,
    )  # fmt: skip


def write_profile(path: str | Path, profile: Profile) -> None:
    """Write a profile file atomically."""
    graph = profile.graph
    body = _ProfileFile(
        model=_Model(graph.name, graph.fingerprint),
        operators=tuple(zip(graph.operators, profile.times, strict=True)),
        tensors=graph.tensors,
        parameters=tuple((each, _Accumulated(profile.accumulate_of.get(each.name))) for each in graph.parameters),
        **{name: getattr(profile, name) for name in _ALIKE},
    )
    PROFILE.write(path, body)


def _version_1(found: _ProfileFile, root: Node) -> tuple[Origin, Shards, Mapping[str, object]]:
    """Return what steers planning, and what is free, of a version that had all of it among what is free."""
    extra, provenance = dict(found.extra), found.provenance
    reasons = extra.pop("estimated", [])
    estimated = [ROOFLINE] if provenance.get("estimated") else []
    estimated += map(str, reasons if isinstance(reasons, list) else [reasons])
    shards = _SHARDS.read(root.child("extra").child("tensor")) if extra.pop("tensor", None) else {}
    origin = Origin(
        str(extra.pop("plan_only", "")),
        tuple(estimated),
        str(provenance.get("precision") or ""),
        str(provenance.get("autocast") or ""),
    )
    return origin, shards, extra
