"""A measured profile on another device, or at other micro-batch sizes, as an estimate.

Each time is multiplied by the ratio of its roofline estimates, so that what the estimate gets wrong on both devices
cancels out; where host and device were told apart this holds for the kernels, and the host takes as long. Operators
that do not say what they do (`Operator.work`) are scaled by FLOP and bytes alone. Links of another device are dropped.
Leaves out clocks, drivers and libraries of the machine that was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from costmodel.errors import InvalidInput, UsageError
from costmodel.machines.catalogue import CatalogueDevice, device
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.launches import Composed, Launches, Times, kernel_ratios
from costmodel.model.profile import DTYPES, Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.roofline import tables
from costmodel.roofline.operators import estimate
from costmodel.roofline.rates import ELEMENT_BYTES, rates_of

PARTS = ("forward", "backward_input", "backward_weight")


def scale_profile(profile: Profile, device_id: str, microbatch_sizes: Sequence[int] = ()) -> Profile:
    """Return the profile as it would be on another device, at its own or at other micro-batch sizes.

    Parameters
    ----------
    profile : Profile
        Whose device has a catalogue id.
    device_id : str
        Catalogue id of the device asked for; the profile's own to change the sizes alone.
    microbatch_sizes : sequence of int
        The profile's own by default.

    Returns
    -------
    Profile
        With the reasons why its times are estimates in `origin.estimated`.

    Raises
    ------
    UsageError
        When the profile's device has no catalogue id, or a device lacks the profile's precision.
    InvalidInput
        On an unknown device, or a dtype that no precision of the catalogue represents.
    """
    if not profile.device.catalogue:
        raise UsageError(
            f"the profile's device {profile.device.name!r} has no catalogue id, so its times cannot be scaled to "
            f"{device_id}; write the id into the profile's device.catalogue, or profile the model there"
        )
    sizes = tuple(sorted(set(microbatch_sizes))) or profile.microbatch_sizes
    if device_id == profile.device.catalogue and sizes == profile.microbatch_sizes:
        return profile
    if sizes[0] < 1:
        raise UsageError(f"micro-batch size {sizes[0]}; the least is 1")
    return _scaled(profile, _Scaling(device(profile.device.catalogue), device(device_id), _precision(profile)), sizes)


@dataclass(frozen=True, slots=True)
class _Scaling:
    """From one device to another at one precision."""

    source: CatalogueDevice
    target: CatalogueDevice
    precision: str

    def ratio(self, operator: Operator, part: str, measured: int, size: int, sample_bytes: float) -> float:
        """Return time at `size` on the target / time at the `measured` size on the source."""
        before = self._model_ns(self.source, operator, part, measured, sample_bytes)
        return self._model_ns(self.target, operator, part, size, sample_bytes) / before

    def bandwidth_ratio(self) -> float:
        """Return by what work that only moves memory takes longer on the target."""
        return self.source.memory_gbs / self.target.memory_gbs

    def _model_ns(self, on: CatalogueDevice, operator: Operator, part: str, size: int, sample_bytes: float) -> float:
        if operator.work:
            times = estimate(operator.work, on, self.precision, size)
            return float(getattr(times, part).central_ns or times.forward.central_ns)
        rates = rates_of(on, self.precision)
        compute_ns = size * operator.flop / (rates.peak * rates.matmul[1])
        memory_ns = (2 * size * sample_bytes + operator.parameter_bytes) / rates.bandwidth
        return tables.overhead("kernel_ns")[1] + max(compute_ns, memory_ns)


def _precision(profile: Profile) -> str:
    if profile.precision not in ELEMENT_BYTES:
        raise InvalidInput(f"a profile of dtype {profile.dtype!r} cannot be scaled; allowed are {', '.join(DTYPES)}")
    return profile.precision


def _scaled(profile: Profile, scaling: _Scaling, sizes: tuple[int, ...]) -> Profile:
    graph, measured = profile.graph, profile.microbatch_sizes
    operators = tuple(replace(o, output_bytes=_bytes(o.output_bytes, measured, sizes)) for o in graph.operators)
    tensors = tuple(replace(t, size_bytes=_bytes(t.size_bytes, measured, sizes)) for t in graph.tensors)
    times = tuple(
        _times(operator, row, scaling, measured, sizes)
        for operator, row in zip(graph.operators, profile.times, strict=True)
    )
    times = _launched(profile, times, sizes)
    moved = scaling.source.id != scaling.target.id
    target = scaling.target
    ratio = scaling.bandwidth_ratio()
    added = {name: round(value * ratio) for name, value in profile.accumulate_of.items()}
    whole = _whole(profile, times, ratio, sizes)
    kind = Device(profile.device.type, target.name, target.memory_bytes, target.id) if moved else profile.device
    return replace(
        profile,
        graph=OperatorGraph(graph.name, operators, tensors, graph.parameters),
        device=kind,
        microbatch_sizes=sizes,
        times=times,
        whole=replace(whole, accumulate_ns=sum(added.values())) if added else whole,
        accumulate_of=added,
        links=None if moved else profile.links,
        origin=replace(profile.origin, estimated=(*profile.origin.estimated, *_reasons(profile, scaling, sizes))),
    )


def _reasons(profile: Profile, scaling: _Scaling, sizes: tuple[int, ...]) -> list[str]:
    reasons = []
    if scaling.source.id != scaling.target.id:
        reasons.append(
            f"times measured on {scaling.source.id} are scaled to {scaling.target.id} by their roofline estimates"
        )
    unmeasured = [str(size) for size in sizes if size not in profile.microbatch_sizes]
    if unmeasured:
        reasons.append(f"times at micro-batch size {', '.join(unmeasured)} are scaled from the nearest measured size")
    return reasons


def _times(
    operator: Operator, times: OperatorTimes, scaling: _Scaling, measured: tuple[int, ...], sizes: tuple[int, ...]
) -> OperatorTimes:
    nearest = _nearest(measured, sizes)
    forward, backward_input, backward_weight = (
        tuple(
            round(known[i] * scaling.ratio(operator, part, measured[i], size, operator.output_bytes[i] / measured[i]))
            for i, size in zip(nearest, sizes, strict=True)
        )
        for part, known in zip(
            PARTS, (times.forward_ns, times.backward_input_ns, times.backward_weight_ns), strict=True
        )
    )
    spread = tuple(times.spread[i] for i in nearest)
    working = tuple(
        times.working_bytes[i] * size // measured[i]
        for i, size in zip(nearest, sizes, strict=True)
        if times.working_bytes
    )
    return OperatorTimes(forward, backward_input, backward_weight, spread, working_bytes=working)


def _nearest(measured: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the place of the measured size nearest to each."""
    return [min(range(len(measured)), key=lambda i: abs(measured[i] - size)) for size in sizes]


def _launched(profile: Profile, scaled: tuple[OperatorTimes, ...], sizes: Sequence[int]) -> tuple[OperatorTimes, ...]:
    """Return scaled times that hold for kernels alone put together with what the host takes, where that is known."""
    launches = [row.launches for row in profile.times if row.launches]
    if not launches or len(launches) < len(scaled):
        return scaled
    nearest = _nearest(profile.microbatch_sizes, sizes)
    columns = [_at_size(profile.times, launches, i, [_at(row, k) for row in scaled]) for k, i in enumerate(nearest)]
    return tuple(
        _with_kernels(row, own.pick(nearest), column)
        for row, own, column in zip(scaled, launches, zip(*columns, strict=True), strict=True)
    )


def _at_size(
    measured: Sequence[OperatorTimes], launches: Sequence[Launches], place: int, rows: Sequence[Times]
) -> list[tuple[Times, tuple[int, int]]]:
    """Return each operator's times at one measured size when kernels take as in `rows`, and those of its kernels."""
    known, calls = [_at(row, place) for row in measured], [one.calls(itemgetter(place)) for one in launches]
    ratios = [kernel_ratios(row, old) for row, old in zip(rows, known, strict=True)]
    kernels = [(round(f[1] * a), round(b[1] * c)) for (f, b), (a, c) in zip(calls, ratios, strict=True)]
    return list(zip(Composed(calls, known).with_kernels(rows), kernels, strict=True))


def _at(times: OperatorTimes, place: int) -> Times:
    return times.forward_ns[place], times.backward_input_ns[place], times.backward_weight_ns[place]


def _with_kernels(
    scaled: OperatorTimes, launches: Launches, sizes: Sequence[tuple[Times, tuple[int, int]]]
) -> OperatorTimes:
    """Return one operator's times, and those of its kernels, from an entry a size."""
    times, kernels = zip(*sizes, strict=True)
    forward, inputs, weights = zip(*times, strict=True)
    device_forward, device_backward = zip(*kernels, strict=True)
    kept = replace(launches, device_forward_ns=device_forward, device_backward_ns=device_backward)
    return replace(scaled, forward_ns=forward, backward_input_ns=inputs, backward_weight_ns=weights, launches=kept)


def _whole(
    profile: Profile, times: Sequence[OperatorTimes], bandwidth_ratio: float, sizes: tuple[int, ...]
) -> WholeModelMeasurements:
    """Scale the whole step as the sum of its operators, the rest as work that moves memory; keep the split's ratios."""
    before = [sum(column) for column in zip(*map(_sums, profile.times), strict=True)]
    after = [sum(column) for column in zip(*map(_sums, times), strict=True)]
    whole, nearest = profile.whole, _nearest(profile.microbatch_sizes, sizes)
    return WholeModelMeasurements(
        step_ns=tuple(
            round(whole.step_ns[i] * after[k] / before[i]) if before[i] else whole.step_ns[i]
            for k, i in enumerate(nearest)
        ),
        loss_ns=round(whole.loss_ns * bandwidth_ratio),
        accumulate_ns=round(whole.accumulate_ns * bandwidth_ratio),
        optimizer_ns=round(whole.optimizer_ns * bandwidth_ratio),
        split=tuple(whole.split[i] for i in nearest) if whole.split else (),
    )


def _sums(times: OperatorTimes) -> tuple[int, ...]:
    rows = zip(times.forward_ns, times.backward_input_ns, times.backward_weight_ns, strict=True)
    return tuple(map(sum, rows))


def _bytes(values: Sequence[int], measured: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return bytes at these sizes: linear through the nearest two measured ones."""
    found = []
    for size in sizes:
        right = next((i for i, known in enumerate(measured) if known >= size and i), len(measured) - 1)
        if right == 0:
            found.append(round(values[0] * size / measured[0]))
            continue
        slope = (values[right] - values[right - 1]) / (measured[right] - measured[right - 1])
        found.append(max(0, round(values[right] + slope * (size - measured[right]))))
    return tuple(found)
