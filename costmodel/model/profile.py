"""What was measured (or estimated) of one model: its graph, times a micro-batch size, links, whole step.

Times are integer nanoseconds, one entry a micro-batch size. Leaves out how they come about:
`costmodel.profiling` measures them, importers read them from elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.files import Node, document, read_json, write_json
from costmodel.machines.links import LINKS_KEYS, LINKS_OPTIONAL, Links
from costmodel.model.graph import Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.launches import KEYS as LAUNCHES_KEYS
from costmodel.model.launches import Launches
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.model.work import Work

PROFILE_FORMAT, PROFILE_VERSION = "penstock-profile", 2
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
    launches: Launches | None = None
    working_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """The device that was measured: ``cpu`` or ``cuda``, its name, memory and catalogue id ("" if none)."""

    type: str
    name: str
    memory_bytes: int
    catalogue: str = ""


Shards = Mapping[str, Mapping[str, Sequence[Sequence[int]]]]
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


def read_profile(path: str | Path) -> Profile:
    """Read a profile file; see `costmodel.files` for what is refused."""
    root = read_json(path)
    top = document(
        root,
        PROFILE_FORMAT,
        PROFILE_VERSION,
        ("model", "device", "dtype", "microbatch_sizes", "operators", "tensors", "parameters", "whole"),
        ("links", "provenance", "extra", "origin", "shards"),
    )
    origin, shards, extra = _origin(top)
    model = top["model"].members(("name", "fingerprint"))
    operators = [_operator(node) for node in top["operators"].items()]
    graph = root.build(
        lambda: OperatorGraph(
            model["name"].text(),
            tuple(operator for operator, _ in operators),
            tuple(_tensor(node) for node in top["tensors"].items()),
            tuple(_parameter(node) for node in top["parameters"].items()),
        )
    )
    if model["fingerprint"].text() != graph.fingerprint:
        model["fingerprint"].fail(
            f"the operators give {graph.fingerprint}: the file was changed by hand or cut; profile the model again"
        )
    device = top["device"].members(("type", "name", "memory_bytes"), ("catalogue",))
    links = top.get("links")
    return root.build(
        lambda: Profile(
            graph,
            Device(
                device["type"].text(),
                device["name"].text(),
                device["memory_bytes"].integer(),
                device["catalogue"].text() if "catalogue" in device else "",
            ),
            top["dtype"].text(),
            top["microbatch_sizes"].integers(1),
            tuple(times for _, times in operators),
            WholeModelMeasurements.from_node(top["whole"]),
            Links.from_node(links.members(LINKS_KEYS, LINKS_OPTIONAL))
            if links is not None and links.entries()
            else None,
            _free(top.get("provenance")),
            extra,
            _accumulate_of(top["parameters"]),
            origin,
            shards,
        )
    )


def write_profile(path: str | Path, profile: Profile) -> None:
    """Write a profile file atomically."""
    graph = profile.graph
    write_json(
        path,
        PROFILE_FORMAT,
        PROFILE_VERSION,
        {
            "model": {"name": graph.name, "fingerprint": graph.fingerprint},
            "device": {
                "type": profile.device.type,
                "name": profile.device.name,
                "memory_bytes": profile.device.memory_bytes,
                "catalogue": profile.device.catalogue,
            },
            "dtype": profile.dtype,
            "microbatch_sizes": list(profile.microbatch_sizes),
            "operators": [_operator_to_json(o, t) for o, t in zip(graph.operators, profile.times, strict=True)],
            "tensors": [
                {
                    "name": t.name,
                    "producer": t.producer,
                    "consumers": list(t.consumers),
                    "bytes": list(t.size_bytes),
                    "gradient": t.gradient,
                    "storage": t.storage,
                }
                for t in graph.tensors
            ],
            "parameters": [_parameter_to_json(p, profile.accumulate_of.get(p.name)) for p in graph.parameters],
            "links": profile.links.to_json() if profile.links else {},
            "whole": profile.whole.to_json(),
            "origin": profile.origin.to_json(),
            "shards": {
                name: {cut: [list(row) for row in rows] for cut, rows in cuts.items()}
                for name, cuts in profile.shards.items()
            },
            "provenance": dict(profile.provenance),
            "extra": dict(profile.extra),
        },
    )


def _operator_to_json(operator: Operator, times: OperatorTimes) -> dict[str, object]:
    return {
        "name": operator.name,
        "kind": operator.kind,
        "module": operator.module,
        "flop": operator.flop,
        "parameters": list(operator.parameters),
        "parameter_bytes": operator.parameter_bytes,
        "output_bytes": list(operator.output_bytes),
        "saved": [[s.storage, s.size_bytes] for s in operator.saved if not s.fixed],
        "saved_fixed": [[s.storage, s.size_bytes] for s in operator.saved if s.fixed],
        "trainable": operator.trainable,
        "in_place": operator.in_place,
        "forward_ns": list(times.forward_ns),
        "backward_input_ns": list(times.backward_input_ns),
        "backward_weight_ns": list(times.backward_weight_ns),
        "spread": list(times.spread),
        **({"work": operator.work.to_json()} if operator.work else {}),
        **({"launches": times.launches.to_json()} if times.launches else {}),
        **({"working_bytes": list(times.working_bytes)} if times.working_bytes else {}),
    }


_OPERATOR_KEYS = (
    "name", "kind", "module", "flop", "parameters", "parameter_bytes", "output_bytes", "saved", "trainable", "in_place",
    "forward_ns", "backward_input_ns", "backward_weight_ns", "spread",
)  # fmt: skip
_OPTIONAL_KEYS = ("saved_fixed", "work", "launches", "working_bytes")


def _operator(node: Node) -> tuple[Operator, OperatorTimes]:
    fields = node.members(_OPERATOR_KEYS, _OPTIONAL_KEYS)
    operator = Operator(
        name=fields["name"].text(),
        kind=fields["kind"].text(),
        module=fields["module"].text(),
        flop=fields["flop"].integer(),
        parameters=fields["parameters"].texts(),
        parameter_bytes=fields["parameter_bytes"].integer(),
        output_bytes=fields["output_bytes"].integers(),
        saved=_saved(fields["saved"], False) + _saved(fields.get("saved_fixed"), True),
        trainable=fields["trainable"].flag(),
        in_place=fields["in_place"].flag(),
        work=Work.from_node(fields["work"]) if "work" in fields else None,
    )
    return operator, _times(fields)


def _saved(node: Node | None, fixed: bool) -> tuple[SavedStorage, ...]:
    found = []
    for item in node.items() if node else ():
        row = item.integers()
        if len(row) != 2:
            item.fail("each entry is [storage id, bytes]")
        found.append(SavedStorage(row[0], row[1], fixed))
    return tuple(found)


def _times(fields: Mapping[str, Node]) -> OperatorTimes:
    return OperatorTimes(
        fields["forward_ns"].integers(),
        fields["backward_input_ns"].integers(),
        fields["backward_weight_ns"].integers(),
        tuple(item.number() for item in fields["spread"].items()),
        Launches.from_node(fields["launches"]) if "launches" in fields else None,
        fields["working_bytes"].integers() if "working_bytes" in fields else (),
    )


def _tensor(node: Node) -> Tensor:
    fields = node.members(("producer", "consumers", "bytes"), ("name", "gradient", "storage"))
    return Tensor(
        fields["name" if "name" in fields else "producer"].text(),
        fields["producer"].text(),
        fields["consumers"].texts(),
        fields["bytes"].integers(),
        fields["gradient"].flag() if "gradient" in fields else True,
        fields["storage"].integer(-1) if "storage" in fields else -1,
    )


def _parameter_to_json(parameter: Parameter, accumulate_ns: int | None) -> dict[str, object]:
    return {
        "name": parameter.name,
        "shape": list(parameter.shape),
        "bytes": parameter.size_bytes,
        "trainable": parameter.trainable,
        **({} if accumulate_ns is None else {"accumulate_ns": accumulate_ns}),
    }


def _parameter(node: Node) -> Parameter:
    fields = node.members(("name", "shape", "bytes"), ("trainable", "accumulate_ns"))
    return Parameter(
        fields["name"].text(),
        fields["shape"].integers(),
        fields["bytes"].integer(),
        fields["trainable"].flag() if "trainable" in fields else True,
    )


def _accumulate_of(node: Node) -> Mapping[str, int]:
    rows = [item.entries() for item in node.items()]
    return {row["name"].text(): row["accumulate_ns"].integer() for row in rows if "accumulate_ns" in row}


def _origin(top: Mapping[str, Node]) -> tuple[Origin, Shards, Mapping[str, object]]:
    """Read what steers planning, and what is free; in version 1 all of it stood among the free."""
    extra, provenance = dict(_free(top.get("extra"))), _free(top.get("provenance"))
    if "origin" in top:
        return Origin.from_node(top["origin"]), _shards(top.get("shards")), extra
    reasons = extra.pop("estimated", [])
    estimated = [ROOFLINE] if provenance.get("estimated") else []
    estimated += map(str, reasons if isinstance(reasons, list) else [reasons])
    old = top["extra"].entries().get("tensor") if "extra" in top else None
    extra.pop("tensor", None)
    origin = Origin(
        str(extra.pop("plan_only", "")),
        tuple(estimated),
        str(provenance.get("precision") or ""),
        str(provenance.get("autocast") or ""),
    )
    return origin, _shards(old), extra


def _shards(node: Node | None) -> Shards:
    if node is None:
        return {}
    return {
        name: {cut: tuple(row.integers() for row in rows.items()) for cut, rows in cuts.entries().items()}
        for name, cuts in node.entries().items()
    }


def _free(node: Node | None) -> Mapping[str, object]:
    return {key: member.value for key, member in node.entries().items()} if node else {}
