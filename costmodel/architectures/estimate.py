"""A profile of a described model: every operator's times estimated on a device of the catalogue.

Times are the roofline's central ones; lowest and highest sums are in ``extra``. The provenance marks them as
estimates, and so does a plan's. Leaves out the launch of whole steps and what lives between operators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from costmodel.calibration import Calibration, published
from costmodel.errors import UsageError
from costmodel.machines.catalogue import CatalogueDevice, check_precision, kept_in
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import OperatorGraph
from costmodel.model.origin import ROOFLINE, Origin
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.roofline import OperatorEstimate, accumulate_ns, estimate, optimizer_step_ns
from costmodel.roofline.interval import NOTHING
from costmodel.roofline.narrow import computed_in
from costmodel.roofline.rates import ELEMENT_BYTES

PARTS = ("forward", "backward_input", "backward_weight")
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
    trained = {parameter.name for parameter in graph.parameters if parameter.trainable}
    known_rows: dict[object, tuple[list[OperatorEstimate], OperatorTimes]] = {}  # layers repeat
    rows = []
    for i, operator in enumerate(graph.operators):
        frozen = bool(operator.parameters) and trained.isdisjoint(operator.parameters)
        key = (operator.work, computed_in(graph, i, precision), frozen)
        if key not in known_rows:
            estimates = [_of(graph, i, device, precision, size, known) for size in sizes]
            row = [replace(each, backward_weight=NOTHING) if frozen else each for each in estimates]
            known_rows[key] = row, _times(row)
        rows.append(known_rows[key])
    found, times = [row for row, _ in rows], tuple(row for _, row in rows)
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


def estimated_again(profile: Profile, precision: str, calibration: Calibration) -> Profile:
    """Return a described profile in a precision, by a calibration's rates; a measured one as it is.

    Times that were moved after their estimate move with it. Bytes stay as described: what trains says how wide they
    are. Empty stands for the precision that it was described in, which a device keeps that lacks the other.

    Raises
    ------
    UsageError
        When it was described with another calibration.
    """
    own = profile.extra.get("calibration", "")
    if profile.origin.estimated != (ROOFLINE,):
        return profile
    if own and own != calibration.digest != "":
        raise UsageError(
            f"the profile of {profile.graph.name} was described with another calibration; describe it again with "
            "penstock model --calibration, or leave --calibration out"
        )
    on, old = catalogue_device(profile.device.catalogue), profile.precision
    new = precision if precision in on.tflops else old
    before = calibration if own else published()
    if (new, calibration.digest) == (old, before.digest):
        return profile
    sizes, graph = profile.microbatch_sizes, profile.graph
    pairs = [
        [(_of(graph, i, on, old, size, before), _of(graph, i, on, new, size, calibration)) for size in sizes]
        for i in range(len(graph.operators))
    ]
    times = tuple(_moved(row, found) for row, found in zip(profile.times, pairs, strict=True))
    was, now = (_whole(graph, on, each, (0,) * len(sizes)) for each in (old, new))
    steps = (
        _ratio(step, *(_sum([row[i][k] for row in pairs])[1] + (was, now)[k].accumulate_ns for k in (0, 1)))
        for i, step in enumerate(profile.whole.step_ns)
    )
    whole = replace(
        profile.whole,
        step_ns=tuple(steps),
        accumulate_ns=_ratio(profile.whole.accumulate_ns, was.accumulate_ns, now.accumulate_ns),
        optimizer_ns=_ratio(profile.whole.optimizer_ns, was.optimizer_ns, now.optimizer_ns),
    )
    extra = {**profile.extra, **({"calibration": calibration.digest} if calibration.digest else {})}
    return replace(profile, times=times, whole=whole, extra=extra, origin=replace(profile.origin, precision=new))


def _moved(times: OperatorTimes, pairs: Sequence[tuple[OperatorEstimate, OperatorEstimate]]) -> OperatorTimes:
    """Return times by the ratio of two estimates a size, which is the second one where they are the first."""
    forward, inputs, weights = (
        tuple(
            _ratio(ns, *(getattr(found, part).central_ns for found in pair))
            for ns, pair in zip(getattr(times, f"{part}_ns"), pairs, strict=True)
        )
        for part in PARTS
    )
    return replace(times, forward_ns=forward, backward_input_ns=inputs, backward_weight_ns=weights)


def _ratio(value: int, before: int, after: int) -> int:
    return round(Fraction(value * after, before)) if before else value


def _of(
    graph: OperatorGraph, position: int, device: CatalogueDevice, precision: str, size: int, calibration: Calibration
) -> OperatorEstimate:
    operator, own = graph.operators[position], computed_in(graph, position, precision)
    if operator.work is None:
        raise ValueError(f"{operator.name} does not say what it does")
    factor = calibration.factor(operator.work.kind, device.id, own)
    return estimate(operator.work, device, own, size).times(factor)


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
    elements = sum(prod(parameter.shape) for parameter in graph.parameters if parameter.trainable)
    held = elements * ELEMENT_BYTES[precision]
    added = accumulate_ns(held, device).central_ns
    kept = kept_in(precision)
    return WholeModelMeasurements(
        tuple(step + added for step in steps), 0, added, optimizer_step_ns(held, device, "adam", kept).central_ns
    )
