"""A measured profile on another device, as an estimate.

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
from costmodel.model.graph import Operator
from costmodel.model.launches import Composed, Launches, Times, kernel_ratios
from costmodel.model.profile import DTYPES, Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.roofline import tables
from costmodel.roofline.operators import estimate
from costmodel.roofline.rates import ELEMENT_BYTES, rates_of

PARTS = ("forward", "backward_input", "backward_weight")


def scale_profile(profile: Profile, device_id: str) -> Profile:
    """Return the profile as it would be on another device.

    Parameters
    ----------
    profile : Profile
        Whose device has a catalogue id.
    device_id : str
        Catalogue id of the device asked for.

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
    if device_id == profile.device.catalogue:
        return profile
    return _scaled(profile, _Scaling(device(profile.device.catalogue), device(device_id), _precision(profile)))


@dataclass(frozen=True, slots=True)
class _Scaling:
    """From one device to another at one precision."""

    source: CatalogueDevice
    target: CatalogueDevice
    precision: str

    def ratio(self, operator: Operator, part: str, size: int, sample_bytes: float) -> float:
        """Return time on the target / time on the source."""
        before = self._model_ns(self.source, operator, part, size, sample_bytes)
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


def _scaled(profile: Profile, scaling: _Scaling) -> Profile:
    target, ratio = scaling.target, scaling.bandwidth_ratio()
    rows = zip(profile.graph.operators, profile.times, strict=True)
    times = _launched(
        profile, tuple(_times(operator, row, scaling, profile.microbatch_sizes) for operator, row in rows)
    )
    added = {name: round(value * ratio) for name, value in profile.accumulate_of.items()}
    whole = _whole(profile, times, ratio)
    reason = f"times measured on {scaling.source.id} are scaled to {target.id} by their roofline estimates"
    return replace(
        profile,
        device=Device(profile.device.type, target.name, target.memory_bytes, target.id),
        times=times,
        whole=replace(whole, accumulate_ns=sum(added.values())) if added else whole,
        accumulate_of=added,
        links=None,
        origin=replace(profile.origin, estimated=(*profile.origin.estimated, reason)),
    )


def _times(operator: Operator, times: OperatorTimes, scaling: _Scaling, sizes: tuple[int, ...]) -> OperatorTimes:
    forward, backward_input, backward_weight = (
        tuple(
            round(time_ns * scaling.ratio(operator, part, size, size_bytes / size))
            for time_ns, size, size_bytes in zip(known, sizes, operator.output_bytes, strict=True)
        )
        for part, known in zip(
            PARTS, (times.forward_ns, times.backward_input_ns, times.backward_weight_ns), strict=True
        )
    )
    return replace(
        times, forward_ns=forward, backward_input_ns=backward_input, backward_weight_ns=backward_weight, launches=None
    )


def _launched(profile: Profile, scaled: tuple[OperatorTimes, ...]) -> tuple[OperatorTimes, ...]:
    """Return scaled times that hold for kernels alone put together with what the host takes, where that is known."""
    launches = [row.launches for row in profile.times if row.launches]
    if not launches or len(launches) < len(scaled):
        return scaled
    places = range(len(profile.microbatch_sizes))
    columns = [_at_size(profile.times, launches, i, [_at(row, i) for row in scaled]) for i in places]
    return tuple(
        _with_kernels(row, own, column)
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


def _whole(profile: Profile, times: Sequence[OperatorTimes], bandwidth_ratio: float) -> WholeModelMeasurements:
    """Scale the whole step as the sum of its operators, the rest as work that moves memory; keep the split's ratios."""
    before = [sum(column) for column in zip(*map(_sums, profile.times), strict=True)]
    after = [sum(column) for column in zip(*map(_sums, times), strict=True)]
    whole = profile.whole
    return replace(
        whole,
        step_ns=tuple(
            round(step_ns * new / old) if old else step_ns
            for step_ns, old, new in zip(whole.step_ns, before, after, strict=True)
        ),
        loss_ns=round(whole.loss_ns * bandwidth_ratio),
        accumulate_ns=round(whole.accumulate_ns * bandwidth_ratio),
        optimizer_ns=round(whole.optimizer_ns * bandwidth_ratio),
    )


def _sums(times: OperatorTimes) -> tuple[int, ...]:
    rows = zip(times.forward_ns, times.backward_input_ns, times.backward_weight_ns, strict=True)
    return tuple(map(sum, rows))
