"""A generated profile of NASNet-A's shape: 1,219 operators in cells that read the two before them.

Source: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition" (2018), figures
2 and 4. Leaves out the auxiliary head and the cropping that lines up odd sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from costmodel.model.graph import LOSS
from costmodel.model.profile import Profile
from costmodel.zoo.profile_builder import ProfileBuilder


@dataclass(slots=True)
class _Images:
    """A feature map under way: the operator that makes it, its side and its channels."""

    name: str
    side: int
    channels: int


class _Cells:
    """NASNet-A's cells; every separable convolution is ReLU, depthwise, pointwise and norm, twice."""

    def __init__(self, builder: ProfileBuilder) -> None:
        self.builder = builder
        self.module = ""

    def op(
        self, kind: str, sources: Sequence[_Images], side: int, channels: int, taps: int = 0, keeps: bool = True
    ) -> _Images:
        """Add an operator; `taps` are multiply-adds (and weights) of one output value."""
        values = side * side * channels
        weights = {"pointwise": taps * channels, "depthwise": taps * channels, "norm": 2 * channels}.get(kind, 0)
        flop = 2 * taps * values if taps else 2 * values
        name = self.builder.add(kind, [s.name for s in sources], flop, 4 * values, weights, self.module, keeps)
        return _Images(name, side, channels)

    def squeeze(self, x: _Images, side: int, channels: int) -> _Images:
        """Apply ReLU, a 1x1 convolution and a norm."""
        x = self.op("relu", [x], x.side, x.channels)
        x = self.op("pointwise", [x], side, channels, x.channels)
        return self.op("norm", [x], side, channels)

    def separable(self, x: _Images, kernel: int, stride: int = 1) -> _Images:
        """Apply a separable convolution twice; the stride is in the first."""
        side = -(-x.side // stride)
        for _ in range(2):
            x = self.op("relu", [x], x.side, x.channels)
            x = self.op("depthwise", [x], side, x.channels, kernel * kernel)
            x = self.op("pointwise", [x], side, x.channels, x.channels)
            x = self.op("norm", [x], side, x.channels)
        return x

    def pool(self, x: _Images, stride: int = 1) -> _Images:
        """Pool over 3x3."""
        return self.op("pool", [x], -(-x.side // stride), x.channels, 9)

    def add(self, left: _Images, right: _Images) -> _Images:
        """Sum two maps; nothing of it is kept."""
        return self.op("add", [left, right], left.side, left.channels, keeps=False)

    def join(self, parts: Sequence[_Images]) -> _Images:
        """Concatenate channels."""
        return self.op("cat", parts, parts[0].side, sum(part.channels for part in parts), keeps=False)

    def normal(self, before: _Images, now: _Images, channels: int) -> _Images:
        """Add a cell that keeps the side; it reads the two cells before it."""
        p, h = self.squeeze(before, now.side, channels), self.squeeze(now, now.side, channels)
        blocks = [
            self.add(self.separable(h, 3), h),
            self.add(self.separable(p, 3), self.separable(h, 5)),
            self.add(self.pool(h), p),
            self.add(self.pool(p), self.pool(p)),
            self.add(self.separable(p, 5), self.separable(p, 3)),
        ]
        return self.join([p, *blocks])

    def reduction(self, before: _Images, now: _Images, channels: int) -> _Images:
        """Add a cell that halves the side."""
        p, h = self.squeeze(before, now.side, channels), self.squeeze(now, now.side, channels)
        first = self.add(self.separable(h, 5, 2), self.separable(p, 7, 2))
        second = self.add(self.pool(h, 2), self.separable(p, 7, 2))
        third = self.add(self.pool(h, 2), self.separable(p, 5, 2))
        fourth = self.add(self.pool(first), second)
        fifth = self.add(self.separable(first, 3), self.pool(h, 2))
        return self.join([second, third, fourth, fifth])


def nasnet() -> Profile:
    """Return a profile of the shape of NASNet-A (6 @ 4032): 22 cells."""
    num_cells, channels, side = 6, 168, 165
    builder = ProfileBuilder("nasnet", Random(0))  # noqa: S311 - no secrets here
    cells = _Cells(builder)
    before = now = cells.op("pointwise", (), side, 96, 27)
    plan = [("reduction", channels // 4), ("reduction", channels // 2)]
    for level in range(3):
        plan += [("reduction", channels << level)] if level else []
        plan += [("normal", channels << level)] * num_cells
    for i, (kind, width) in enumerate(plan):
        cells.module = f"cells.{i}"
        cell = cells.normal if kind == "normal" else cells.reduction
        before, now = now, cell(before, now, width)
    cells.module = "head"
    pooled = cells.op("pool", [cells.op("relu", [now], now.side, now.channels)], 1, now.channels)
    logits = cells.op("pointwise", [pooled], 1, 1000, now.channels)
    builder.add(LOSS, [logits.name], 0.0, 0, keeps=False)
    return builder.profile()
