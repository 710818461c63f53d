"""A profile moved to what a run of the model took: operators stage by stage, the optimizer's step, messages.

What is multiplied: F of an operator by one ratio, I, W and the adding up of its parameters' gradients by another, at
every measured micro-batch size and at the shapes of shards. Memory, FLOP and spread stay. Leaves out where ratios come
from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from costmodel.machines.links import LinkClass, Links
from costmodel.model.accumulation import accumulation_of
from costmodel.model.graph import LOSS
from costmodel.model.launches import Launches
from costmodel.model.profile import OperatorTimes, Profile, Shards
from costmodel.model.whole_model import WholeModelMeasurements


@dataclass(frozen=True, slots=True)
class Ratios:
    """By what forward and backward of an operator are multiplied."""

    forward: float = 1.0
    backward: float = 1.0


UNMOVED = Ratios()


def calibrated(
    profile: Profile, ratios_of: Mapping[str, Ratios], optimizer: float = 1.0, links: Mapping[str, float] | None = None
) -> Profile:
    """Return the profile with its times multiplied.

    Parameters
    ----------
    profile : Profile
    ratios_of : mapping of str to Ratios
        By operator; those left out stay.
    optimizer : float
        Of the optimizer's step over all parameters.
    links : mapping of str to float
        By class of the profile's links (`costmodel.machines.links.CLASSES`), of their times.
    """
    operators = profile.graph.operators
    times = tuple(
        _operator(row, ratios_of.get(operator.name, UNMOVED))
        for operator, row in zip(operators, profile.times, strict=True)
    )
    added = _accumulation(profile, ratios_of)
    whole = replace(
        profile.whole,
        accumulate_ns=sum(added.values()),
        optimizer_ns=_scaled(profile.whole.optimizer_ns, optimizer),
    )
    moved = replace(
        profile,
        times=times,
        accumulate_of=added,
        links=_links(profile.links, links or {}),
        shards=_shards(profile.shards, ratios_of),
        whole=whole,
    )
    return replace(moved, whole=_whole(profile, moved))


def _scaled(value: int, ratio: float) -> int:
    return round(value * ratio)


def _row(values: Iterable[int], ratio: float) -> tuple[int, ...]:
    return tuple(_scaled(value, ratio) for value in values)


def _operator(times: OperatorTimes, ratios: Ratios) -> OperatorTimes:
    return replace(
        times,
        forward_ns=_row(times.forward_ns, ratios.forward),
        backward_input_ns=_row(times.backward_input_ns, ratios.backward),
        backward_weight_ns=_row(times.backward_weight_ns, ratios.backward),
        launches=_launches(times.launches, ratios) if times.launches else None,
    )


def _launches(launches: Launches, ratios: Ratios) -> Launches:
    return replace(
        launches,
        device_forward_ns=_row(launches.device_forward_ns, ratios.forward),
        device_backward_ns=_row(launches.device_backward_ns, ratios.backward),
        host_forward_ns=_row(launches.host_forward_ns, ratios.forward),
        host_backward_ns=_row(launches.host_backward_ns, ratios.backward),
    )


def _shards(shards: Shards, ratios_of: Mapping[str, Ratios]) -> Shards:
    found = {}
    for name, cuts in shards.items():
        ratios = ratios_of.get(name, UNMOVED)
        each = (ratios.forward, ratios.backward, ratios.backward)
        found[name] = {
            cut: tuple(_row(row, ratio) for row, ratio in zip(rows, each, strict=True)) for cut, rows in cuts.items()
        }
    return found


def _accumulation(profile: Profile, ratios_of: Mapping[str, Ratios]) -> dict[str, int]:
    """Return what adding up each parameter's gradient takes; one that several operators read moves with the first."""
    known = accumulation_of(profile)
    first: dict[str, Ratios] = {}
    for operator in profile.graph.operators:
        for name in operator.parameters:
            first.setdefault(name, ratios_of.get(operator.name, UNMOVED))
    trained = [parameter.name for parameter in profile.graph.parameters if parameter.trainable]
    return {name: _scaled(known.over([name]), first.get(name, UNMOVED).backward) for name in trained}


def _links(links: Links | None, ratios: Mapping[str, float]) -> Links | None:
    if links is None:
        return None
    classes = {name: _link(link, ratios.get(name, 1.0)) for name, link in links.classes.items()}
    return replace(links, classes=classes)


def _link(link: LinkClass, ratio: float) -> LinkClass:
    if ratio == 1.0:
        return link
    ranges = tuple(
        replace(each, latency_ns=_scaled(each.latency_ns, ratio), bandwidth_gbs=each.bandwidth_gbs / ratio)
        for each in link.ranges
    )
    return LinkClass(ranges, tuple((size, _scaled(ns, ratio)) for size, ns in link.table))


def _whole(old: Profile, new: Profile) -> WholeModelMeasurements:
    """Return the whole step moved as its operators together are, and the loss as its operator."""
    steps = [
        _scaled(step_ns, _quotient(*(sum(_work_ns(each, i)) for each in (old, new))))
        for i, step_ns in enumerate(old.whole.step_ns)
    ]
    if LOSS not in old.graph.index:
        return replace(new.whole, step_ns=tuple(steps))
    loss = old.graph.index[LOSS]
    moved = _quotient(*(_work_ns(each, -1)[loss] for each in (old, new)))
    return replace(new.whole, step_ns=tuple(steps), loss_ns=_scaled(old.whole.loss_ns, moved))


def _work_ns(profile: Profile, place: int) -> list[int]:
    """Return what each operator takes at one of the measured sizes, F, I and W together."""
    return [
        row.forward_ns[place] + row.backward_input_ns[place] + row.backward_weight_ns[place] for row in profile.times
    ]


def _quotient(before: int, after: int) -> float:
    return after / before if before else 1.0
