"""From rounds of measured steps to one profile's times: medians, the two gradients, the scale.

Operators are scaled so that their forward and backward sums are those of the whole step without
instruments; the unscaled sums are kept beside. Leaves out measuring: plain arithmetic, no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median, quantiles
from typing import Any

from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import OperatorTimes
from costmodel.model.whole import SplitRatios


@dataclass(frozen=True, slots=True)
class Round:
    """One whole step and one step in context, ns; the lists have one entry an operator, or one a trained parameter.

    `inputs_ns` is what adding up the gradients of other leaves takes: inputs, what a block receives.
    A whole step in split form is measured in some rounds only; in the others it has taken 0.
    """

    whole_forward_ns: int
    whole_backward_ns: int
    wall_ns: int
    inputs_ns: int
    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    split_forward_ns: int = 0
    split_backward_ns: int = 0
    accumulate_ns: tuple[int, ...] = ()

    def to_list(self) -> list[Any]:
        """Return what a journal keeps."""
        whole = [self.whole_forward_ns, self.whole_backward_ns, self.wall_ns, [self.inputs_ns, *self.accumulate_ns]]
        split = [self.split_forward_ns, self.split_backward_ns]
        return [*whole, list(self.forward_ns), list(self.backward_ns), *split]

    @classmethod
    def from_list(cls, row: Sequence[Any]) -> "Round":
        """Read it back."""
        inputs_ns, *added = row[3]
        found = cls(row[0], row[1], row[2], inputs_ns, tuple(row[4]), tuple(row[5]), *row[6:])
        return replace(found, accumulate_ns=tuple(added))


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
class _Size:
    """One micro-batch size: scaled medians."""

    forward_ns: list[float]
    backward_ns: list[float]
    spread: list[float]
    accumulate_ns: list[float]
    step_ns: int
    wall_ns: float
    sum_ns: float


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
        backward = [round(size.backward_ns[i]) for size in sizes]
        weight = [round(b * share[operator.name]) for b, share in zip(backward, shares, strict=True)]
        times.append(
            OperatorTimes(
                tuple(round(size.forward_ns[i]) for size in sizes),
                tuple(b - w for b, w in zip(backward, weight, strict=True)),
                tuple(weight),
                tuple(round(size.spread[i], 4) for size in sizes),
            )
        )
    loss = times[-1]
    return Assembled(
        tuple(times),
        tuple(size.step_ns for size in sizes),
        loss.forward_ns[-1] + loss.backward_input_ns[-1],
        tuple(round(median(column)) for column in zip(*(size.accumulate_ns for size in sizes), strict=True)),
        {
            "sum_ns": [round(size.sum_ns) for size in sizes],
            "step_ns": [size.step_ns for size in sizes],
            "wall_ns": [round(size.wall_ns) for size in sizes],
            "coverage": [round(min(1.0, size.sum_ns / size.step_ns), 4) for size in sizes],
        },
        tuple(map(split_ratios, rounds)) if any(r.split_forward_ns for r in chain.from_iterable(rounds)) else (),
    )


def split_ratios(rounds: Sequence[Round]) -> SplitRatios:
    """Return the medians, over the rounds that ran it, of the split form against the whole step beside it.

    Below 1 is noise: the split form does the same and more.
    """
    both = [r for r in rounds if r.split_forward_ns]
    forward = [r.split_forward_ns / max(1, r.whole_forward_ns) for r in both]
    backward = [r.split_backward_ns / max(1, r.whole_backward_ns) for r in both]
    return SplitRatios(*(round(max(1.0, median(ratios or [1.0])), 4) for ratios in (forward, backward)))


def _medians(rounds: Sequence[Round]) -> _Size:
    forward = [median(column) for column in zip(*(r.forward_ns for r in rounds), strict=True)]
    backward = [median(column) for column in zip(*(r.backward_ns for r in rounds), strict=True)]
    both = [[f + b for f, b in zip(r.forward_ns, r.backward_ns, strict=True)] for r in rounds]
    accumulate = [median(column) for column in zip(*(r.accumulate_ns for r in rounds), strict=True)]
    all_backward = sum(backward) + sum(accumulate) + median(r.inputs_ns for r in rounds)
    whole_forward = median(r.whole_forward_ns for r in rounds)
    whole_backward = median(r.whole_backward_ns for r in rounds)
    scale_forward = whole_forward / max(1.0, sum(forward))
    scale_backward = whole_backward / max(1.0, all_backward)
    return _Size(
        [value * scale_forward for value in forward],
        [value * scale_backward for value in backward],
        [_spread(column) for column in zip(*both, strict=True)],
        [value * scale_backward for value in accumulate],
        round(whole_forward + whole_backward),
        median(r.wall_ns for r in rounds),
        sum(forward) + all_backward,
    )


def _spread(values: Sequence[int]) -> float:
    """Return interquartile range / median."""
    if len(values) < 2 or not any(values):
        return 0.0
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / max(1.0, middle)
