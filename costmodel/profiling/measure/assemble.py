"""From rounds of measured steps to one profile's times: medians, the two gradients, the scale.

Operators are scaled so that their forward and backward sums are those of the whole step without
instruments; the unscaled sums are kept as well. On a device, what is scaled is time in kernels and the host's time to
issue them put together (`costmodel.model.launches`). Leaves out measuring: plain arithmetic, no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median, quantiles
from typing import Any

from costmodel.model.graph import OperatorGraph
from costmodel.model.launches import Launches, compose, steady
from costmodel.model.profile import OperatorTimes
from costmodel.model.whole_model import SplitRatios


@dataclass(frozen=True, slots=True)
class InOrder:
    """What a step in context gave: one entry an operator, `accumulate` one a trained parameter.

    `inputs` is what adding up the gradients of other leaves takes: inputs, what a block receives.
    """

    inputs: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    accumulate: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launched:
    """Of one step on a device: what the host took to issue forward and backward whole, and the parts of both; kernels.

    `host` is in ns, in a step with marks; `kernels` are counts; `unattributed_ns` is time in kernels of no part.
    """

    issue_forward_ns: int
    issue_backward_ns: int
    host: InOrder
    kernels: InOrder
    unattributed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One whole step and one step in context, ns; on a device the latter is time in kernels, and `launched` as well.

    A whole step in split form is measured in some rounds only; in the others it has taken 0.
    """

    whole_forward_ns: int
    whole_backward_ns: int
    wall_ns: int
    context: InOrder
    split_forward_ns: int = 0
    split_backward_ns: int = 0
    launched: Launched | None = None

    def to_list(self) -> list[Any]:
        """Return what a journal keeps."""
        return list(astuple(self))

    @classmethod
    def from_list(cls, row: Sequence[Any]) -> "Round":
        """Read it back."""
        forward, backward, wall, context, split_forward, split_backward, launched = row
        found = cls(forward, backward, wall, _in_order(context), split_forward, split_backward)
        if launched is None:
            return found
        issue_forward, issue_backward, host, kernels, unattributed = launched
        both = Launched(issue_forward, issue_backward, _in_order(host), _in_order(kernels), unattributed)
        return replace(found, launched=both)


def _in_order(row: Sequence[Any]) -> InOrder:
    inputs, *lists = row
    return InOrder(inputs, *map(tuple, lists))


@dataclass(frozen=True, slots=True)
class Assembled:
    """Times by operator, and of the whole.

    `unscaled` says, one entry a size, what the operators summed to, the whole step they were scaled to,
    that step by the wall clock and the share of the step that the operators account for. `accumulate_ns`
    has one entry a trained parameter, in the rounds' order: the median over sizes. `split` is
    empty where no step was run in split form.
    """

    times: tuple[OperatorTimes, ...]
    step_ns: tuple[int, ...]
    loss_ns: int
    accumulate_ns: tuple[int, ...]
    unscaled: Mapping[str, list[float]]
    split: tuple[SplitRatios, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Medians of `InOrder` over the rounds."""

    inputs: float
    forward: Sequence[float]
    backward: Sequence[float]
    accumulate: Sequence[float]

    @property
    def backward_sum(self) -> float:
        return sum(self.backward) + sum(self.accumulate) + self.inputs


@dataclass(frozen=True, slots=True)
class _Size:
    """One micro-batch size: scaled medians, what the host and the kernels took where they were told apart."""

    scaled: _Parts
    spread: list[float]
    step_ns: int
    wall_ns: float
    sum_ns: float
    device: _Parts
    host: _Parts | None = None
    kernels: _Parts | None = None
    unattributed_ns: float = 0.0


def assemble(
    graph: OperatorGraph, rounds: Sequence[Sequence[Round]], shares: Sequence[Mapping[str, float]]
) -> Assembled:
    """Return the times of a profile.

    Parameters
    ----------
    graph : OperatorGraph
        Its operators give the order of the rounds' lists.
    rounds : sequence of sequences of Round
        For each micro-batch size its rounds.
    shares : sequence of mappings
        For each size the share of each operator's backward that computes weight gradients.
    """
    sizes = [_medians(size_rounds) for size_rounds in rounds]
    times = []
    for i, operator in enumerate(graph.operators):
        backward = [round(size.scaled.backward[i]) for size in sizes]
        weight = [round(b * share[operator.name]) for b, share in zip(backward, shares, strict=True)]
        times.append(
            OperatorTimes(
                tuple(round(size.scaled.forward[i]) for size in sizes),
                tuple(b - w for b, w in zip(backward, weight, strict=True)),
                tuple(weight),
                tuple(round(size.spread[i], 4) for size in sizes),
                _launches(sizes, i),
            )
        )
    loss = times[-1]
    return Assembled(
        tuple(times),
        tuple(size.step_ns for size in sizes),
        loss.forward_ns[-1] + loss.backward_input_ns[-1],
        tuple(round(median(column)) for column in zip(*(size.scaled.accumulate for size in sizes), strict=True)),
        _unscaled(sizes),
        split_ratios(rounds),
    )


def split_ratios(rounds: Sequence[Sequence[Round]]) -> tuple[SplitRatios, ...]:
    """Return for each size the median ratios of the split form to the whole step of the same round.

    Below 1 is noise: the split form does the same and more. A size at which the split form did not fit the memory
    takes the ratios of the nearest one at which it did, the smaller of two; empty where it ran at none.
    """
    known = {i: _ratios(ran) for i, size in enumerate(rounds) if (ran := [r for r in size if r.split_forward_ns])}
    if not known:
        return ()
    return tuple(known[min(known, key=lambda k: (abs(k - i), k))] for i in range(len(rounds)))


def _ratios(rounds: Sequence[Round]) -> SplitRatios:
    forward = median(r.split_forward_ns / max(1, r.whole_forward_ns) for r in rounds)
    backward = median(r.split_backward_ns / max(1, r.whole_backward_ns) for r in rounds)
    return SplitRatios(round(max(1.0, forward), 4), round(max(1.0, backward), 4))


def coverage(sum_ns: float, step_ns: float) -> float:
    """Return the share of a step that operators account for, above 1 where they sum to more than it."""
    return round(sum_ns / max(1, step_ns), 4)


def _unscaled(sizes: Sequence[_Size]) -> dict[str, list[float]]:
    """Return what `Assembled.unscaled` holds."""
    found: dict[str, list[float]] = {
        "sum_ns": [round(size.sum_ns) for size in sizes],
        "step_ns": [size.step_ns for size in sizes],
        "wall_ns": [round(size.wall_ns) for size in sizes],
        "coverage": [coverage(size.sum_ns, size.step_ns) for size in sizes],
    }
    if all(size.host for size in sizes):
        found["kernel_ns"] = [round(sum(size.device.forward) + size.device.backward_sum) for size in sizes]
        found["unattributed_ns"] = [round(size.unattributed_ns) for size in sizes]
        found["host_ns"] = [round(sum(s.host.forward) + s.host.backward_sum) for s in sizes if s.host]
    return found


def _medians(rounds: Sequence[Round]) -> _Size:
    device = _median_parts([r.context for r in rounds])
    whole_forward = median(r.whole_forward_ns for r in rounds)
    whole_backward = median(r.whole_backward_ns for r in rounds)
    launched = [r.launched for r in rounds if r.launched]
    host = kernels = None
    together = following = device
    if launched:
        host = _issued(launched)
        kernels = _median_parts([of.kernels for of in launched])
        together, following = _together(host, device, kernels)
    scale_forward = whole_forward / max(1.0, sum(following.forward))
    scale_backward = whole_backward / max(1.0, following.backward_sum)
    both = [[f + b for f, b in zip(r.context.forward, r.context.backward, strict=True)] for r in rounds]
    return _Size(
        _Parts(
            following.inputs * scale_backward,
            [value * scale_forward for value in following.forward],
            [value * scale_backward for value in following.backward],
            [value * scale_backward for value in following.accumulate],
        ),
        [_spread(column) for column in zip(*both, strict=True)],
        round(whole_forward + whole_backward),
        median(r.wall_ns for r in rounds),
        sum(together.forward) + together.backward_sum,
        device,
        host,
        kernels,
        median([of.unattributed_ns for of in launched] or [0]),
    )


def _median_parts(rows: Sequence[InOrder]) -> _Parts:
    def columns(lists: Iterable[Sequence[int]]) -> list[float]:
        return [median(column) for column in zip(*lists, strict=True)]

    return _Parts(
        median(row.inputs for row in rows),
        columns(row.forward for row in rows),
        columns(row.backward for row in rows),
        columns(row.accumulate for row in rows),
    )


def _issued(launched: Sequence[Launched]) -> _Parts:
    """Return the host's times; where they sum to more than it took without marks, scaled down to that.

    Never up: without marks it may also have stood before a full queue.
    """
    host = _median_parts([of.host for of in launched])
    forward = min(1.0, median(of.issue_forward_ns for of in launched) / max(1.0, sum(host.forward)))
    backward = min(1.0, median(of.issue_backward_ns for of in launched) / max(1.0, host.backward_sum))
    return _Parts(
        host.inputs * backward,
        [value * forward for value in host.forward],
        [value * backward for value in host.backward],
        [value * backward for value in host.accumulate],
    )


def _together(host: _Parts, device: _Parts, kernels: _Parts) -> tuple[_Parts, _Parts]:
    """Return what each part adds to a step that finds the device idle, and to one that follows others.

    Forward in order, backward in reverse, gradients added up last. In the second no operator pays for the host's
    start, which comes once a training step and not once a micro-batch.
    """

    def line(parts: _Parts) -> list[float]:
        return [*parts.forward, *reversed(parts.backward), *parts.accumulate, parts.inputs]

    calls = list(zip(line(host), line(device), line(kernels), strict=True))
    n = len(host.forward)

    def parts(row: list[float]) -> _Parts:
        return _Parts(row[-1], row[:n], row[2 * n - 1 : n - 1 : -1], row[2 * n : -1])

    return parts(compose(calls)), parts(steady(calls))


def _launches(sizes: Sequence[_Size], i: int) -> Launches | None:
    """Return what an operator takes of host and device, where the two were told apart."""
    apart = [(size.device, size.host, size.kernels) for size in sizes if size.host and size.kernels]
    if not apart:
        return None
    return Launches(
        tuple(round(device.forward[i]) for device, _, _ in apart),
        tuple(round(device.backward[i]) for device, _, _ in apart),
        tuple(round(host.forward[i]) for _, host, _ in apart),
        tuple(round(host.backward[i]) for _, host, _ in apart),
        tuple(round(kernels.forward[i]) for _, _, kernels in apart),
        tuple(round(kernels.backward[i]) for _, _, kernels in apart),
    )


def _spread(values: Sequence[int]) -> float:
    """Return interquartile range / median."""
    if len(values) < 2 or not any(values):
        return 0.0
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / max(1.0, middle)
