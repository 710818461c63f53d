"""What divided operators take on a device that works behind its host: the kernels divide, their launches do not.

The profile's launches are put together again with the divided kernels' times, over the whole graph and in steady
state, and brought to the profile's level. Leaves out a stage's own place: what stood before it in the profile covers
its launches here, too.
"""

from collections.abc import Sequence
from functools import cached_property

from costmodel.model.launches import steady
from costmodel.stages.measured import MeasuredOperators

Times = tuple[int, int, int]
"""Forward, input gradient and weight gradient, ns."""


class Launching:
    """Times of the operators of one profile with launches, at one micro-batch size."""

    def __init__(self, model: MeasuredOperators) -> None:
        self._model = model
        launches = [times.launches for times in model.profile.times]
        self.known = all(launches) and len(launches) > 0
        at, held = model.at, [one for one in launches if one is not None]
        self._device = [(at(one.device_forward_ns), at(one.device_backward_ns)) for one in held]
        self._host = [(at(one.host_forward_ns), at(one.host_backward_ns)) for one in held]
        self._kernels = [(at(one.kernels_forward), at(one.kernels_backward)) for one in held]

    @cached_property
    def _whole(self) -> list[Times]:
        model = self._model
        return list(zip(model.forward_ns, model.backward_input_ns, model.backward_weight_ns, strict=True))

    @cached_property
    def _level(self) -> tuple[float, float]:
        """The profile's sums against those composed of its launches, forward and backward."""
        forward, backward = self._compose([(1.0, 1.0)] * len(self._whole))
        whole_forward, inputs, weights = (sum(column) for column in zip(*self._whole, strict=True))
        return whole_forward / max(1.0, sum(forward)), (inputs + weights) / max(1.0, sum(backward))

    def divided(self, rows: Sequence[Times]) -> list[Times]:
        """Return what operators take whose times, were they all kernels, would be these."""
        pairs = list(zip(rows, self._whole, strict=True))
        if all(row == whole for row, whole in pairs):
            return list(rows)
        ratios = [(row[0] / max(1, whole[0]), (row[1] + row[2]) / max(1, whole[1] + whole[2])) for row, whole in pairs]
        forward, backward = self._compose(ratios)
        return [
            _split(row, f * self._level[0], b * self._level[1])
            for row, f, b in zip(rows, forward, backward, strict=True)
        ]

    def _compose(self, ratios: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Return forward and backward of each operator when its kernels take these ratios of their time."""
        rows = list(zip(self._host, self._device, self._kernels, ratios, strict=True))
        passes = [
            [(host[i], device[i] * ratio[i], kernels[i]) for host, device, kernels, ratio in rows] for i in (0, 1)
        ]
        moved = steady([*passes[0], *reversed(passes[1])])
        return moved[: len(rows)], moved[: len(rows) - 1 : -1]


def _split(row: Times, forward: float, backward: float) -> Times:
    """Divide a backward into input and weight gradient as it was."""
    both = row[1] + row[2]
    weights = round(backward * row[2] / both) if both else 0
    return round(forward), round(backward) - weights, weights
