"""Builds a profile that is generated, not measured: operators one by one, costs by a roofline.

Times are those of a made-up device (work over `FLOP_PER_NS`, bytes over `BYTES_PER_NS`, a launch each)
with seeded noise: plausible, true of no machine, and the profile says so. Needs the standard library
alone. Leaves out in-place operators, tied weights and links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from costmodel.model.graph import LOSS, Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements

SIZES = (1, 2, 4, 8)
FLOP_PER_NS, BYTES_PER_NS, LAUNCH_NS = 100_000.0, 1_000.0, 4_000.0
DEVICE = Device("cuda", "generated", 40 * 2**30)


@dataclass(slots=True)
class ProfileBuilder:
    """Collects operators with what they cost; names them by kind and number."""

    name: str
    dice: Random
    operators: list[Operator] = field(default_factory=list)
    times: list[OperatorTimes] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    readers: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        sources: Sequence[str],
        flop: float,
        output_bytes: int,
        weights: int = 0,
        module: str = "",
        keeps: bool = True,
    ) -> str:
        """Add an operator (`flop` and `output_bytes` a sample, `weights` a number of floats); return its name."""
        name = LOSS if kind == LOSS else f"{kind}_{len(self.operators)}"
        for source in dict.fromkeys(sources):
            self.readers[source].append(name)
        self.readers[name] = []
        owned = (f"{name}.weight",) if weights else ()
        self.parameters += [Parameter(p, (weights,), 4 * weights) for p in owned]
        saved = (SavedStorage(len(self.operators), output_bytes),) if keeps else ()
        sizes = tuple(size * output_bytes for size in SIZES)
        self.operators.append(Operator(name, kind, module, round(flop), owned, 4 * weights, sizes, saved))
        self.times.append(self._times(flop, output_bytes * (1 + len(sources)), weights))
        return name

    def _times(self, flop: float, moved_bytes: int, weights: int) -> OperatorTimes:
        noise = self.dice.lognormvariate(0.0, 0.1)

        def time(size: int) -> int:
            return round((LAUNCH_NS + max(size * flop / FLOP_PER_NS, size * moved_bytes / BYTES_PER_NS)) * noise)

        forward = tuple(map(time, SIZES))
        weight = forward if weights else (0,) * len(SIZES)
        return OperatorTimes(forward, forward, weight, (0.02,) * len(SIZES))

    def profile(self) -> Profile:
        """Return what was collected."""
        tensors = tuple(
            Tensor(
                o.name,
                o.name,
                tuple(self.readers[o.name]),
                o.output_bytes,
                storage=o.saved[0].storage if o.saved else -1,
            )
            for o in self.operators
            if self.readers[o.name]
        )
        graph = OperatorGraph(self.name, tuple(self.operators), tensors, tuple(self.parameters))
        steps = tuple(
            sum(t.forward_ns[i] + t.backward_input_ns[i] + t.backward_weight_ns[i] for t in self.times)
            for i in range(len(SIZES))
        )
        moved = sum(p.size_bytes for p in self.parameters)
        whole = WholeModelMeasurements(steps, 0, round(3 * moved / BYTES_PER_NS), round(7 * moved / BYTES_PER_NS))
        made = {"generated": self.name}
        return Profile(graph, DEVICE, "float32", SIZES, tuple(self.times), whole, None, made, {})
