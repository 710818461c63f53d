"""A profile of a described model: every operator's times estimated on a device of the catalogue.

Times are the roofline's central ones; lowest and highest sums are in ``extra``. The provenance marks them as
estimates, and so does a plan's. Leaves out the launch of whole steps and what lives between operators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel.calibration import Calibration, published
from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice, check_precision
from costmodel.model.graph import Operator, OperatorGraph
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.roofline import OperatorEstimate, accumulate_ns, estimate, optimizer_step_ns

PARTS = ("forward_ns", "backward_input_ns", "backward_weight_ns")
PLAN_ONLY = (
    "its operators were described from shapes, not captured: profile the model itself with penstock profile to run it"
)
"""Why the executor cannot run such a plan."""


def estimated_profile(
    graph: OperatorGraph,
    device: CatalogueDevice,
    precision: str,
    dtype: str,
    microbatch_sizes: Sequence[int],
    provenance: Mapping[str, object],
    extra: Mapping[str, object],
    calibration: Calibration | None = None,
) -> Profile:
    """Return the profile of a graph whose operators say what they do (`Operator.work`).

    Raises
    ------
    UsageError
        When the device lacks the precision.
    """
    check_precision(device, precision)
    sizes = tuple(microbatch_sizes)
    known = calibration or published()
    found = [[_of(operator, device, precision, size, known) for size in sizes] for operator in graph.operators]
    times = tuple(map(_times, found))
    steps = [_sum([row[i] for row in found]) for i in range(len(sizes))]
    whole = _whole(graph, device, precision, tuple(step[1] for step in steps))
    bounds = {"device": device.id, "low_ns": [step[0] for step in steps], "high_ns": [step[2] for step in steps]}
    return Profile(
        graph,
        Device("cuda", device.name, device.memory_bytes, device.id),
        dtype,
        sizes,
        times,
        whole,
        None,
        {**provenance, "device": device.id},
        {**extra, "step_bounds": bounds, **({"calibration": known.digest} if known.digest else {})},
        origin=Origin(PLAN_ONLY, (ROOFLINE,), precision),
    )


def recalibrated(profile: Profile, calibration: Calibration) -> Profile:
    """Return a described profile with a calibration's rates in place of the published ones; a measured one as it is.

    Raises
    ------
    UsageError
        When it was described with another calibration.
    """
    own = profile.extra.get("calibration", "")
    if profile.origin.estimated != (ROOFLINE,) or own == calibration.digest or not calibration.digest:
        return profile
    if own:
        raise UsageError(
            f"the profile of {profile.graph.name} was described with another calibration; describe it again with "
            "penstock model --calibration, or leave --calibration out"
        )
    times = tuple(
        _rated(row, _ratio(operator, profile, calibration))
        for operator, row in zip(profile.graph.operators, profile.times, strict=True)
    )
    more = [
        sum(_whole_ns(new, i) - _whole_ns(old, i) for new, old in zip(times, profile.times, strict=True))
        for i in range(len(profile.microbatch_sizes))
    ]
    steps = tuple(step + own for step, own in zip(profile.whole.step_ns, more, strict=True))
    whole = replace(profile.whole, step_ns=steps)
    return replace(profile, times=times, whole=whole, extra={**profile.extra, "calibration": calibration.digest})


def _ratio(operator: Operator, profile: Profile, calibration: Calibration) -> float:
    kind = operator.work.kind if operator.work else ""
    device, precision = profile.device.catalogue, profile.origin.precision
    return calibration.factor(kind, device, precision) / published().factor(kind, device, precision)


def _rated(row: OperatorTimes, factor: float) -> OperatorTimes:
    forward, inputs, weights = (tuple(round(ns * factor) for ns in getattr(row, part)) for part in PARTS)
    return replace(row, forward_ns=forward, backward_input_ns=inputs, backward_weight_ns=weights)


def _whole_ns(row: OperatorTimes, size: int) -> int:
    return sum(getattr(row, part)[size] for part in PARTS)


def _of(
    operator: Operator, device: CatalogueDevice, precision: str, size: int, calibration: Calibration
) -> OperatorEstimate:
    if operator.work is None:
        raise ValueError(f"{operator.name} does not say what it does")
    factor = calibration.factor(operator.work.kind, device.id, precision)
    return estimate(operator.work, device, precision, size).times(factor)


def _times(row: Sequence[OperatorEstimate]) -> OperatorTimes:
    return OperatorTimes(
        tuple(found.forward.central_ns for found in row),
        tuple(found.backward_input.central_ns for found in row),
        tuple(found.backward_weight.central_ns for found in row),
        tuple(0.0 for _ in row),
    )


def _sum(row: Sequence[OperatorEstimate]) -> tuple[int, int, int]:
    parts = [part for found in row for part in (found.forward, found.backward_input, found.backward_weight)]
    return sum(p.low_ns for p in parts), sum(p.central_ns for p in parts), sum(p.high_ns for p in parts)


def _whole(
    graph: OperatorGraph, device: CatalogueDevice, precision: str, steps: tuple[int, ...]
) -> WholeModelMeasurements:
    held = sum(parameter.size_bytes for parameter in graph.parameters if parameter.trainable)
    added = accumulate_ns(held, device).central_ns
    kept = "bf16" if precision == "fp8" else precision
    return WholeModelMeasurements(
        tuple(step + added for step in steps), 0, added, optimizer_step_ns(held, device, "adam", kept).central_ns
    )
