"""A YOLO-like detector: backbone, a neck that goes up and down again with long skips, three heads.

The shape of YOLOv8-L by default. The loss is dense (each cell's classes and box against a target of the
same shape). Leaves out the assignment of objects to cells, which depends on data.
"""

import torch
from torch import nn
from torch.nn import functional as F


class ConvSiLU(nn.Sequential):
    """Convolution, BatchNorm, SiLU."""

    def __init__(self, inside: int, outside: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outside), nn.SiLU()
        )


class Csp(nn.Module):
    """Half of the channels goes through bottlenecks; every bottleneck's result is kept for the end."""

    def __init__(self, inside: int, outside: int, depth: int, skip: bool) -> None:
        super().__init__()
        half = outside // 2
        self.skip = skip
        self.split, self.join = ConvSiLU(inside, outside, 1), ConvSiLU((2 + depth) * half, outside, 1)
        self.blocks = nn.ModuleList(nn.Sequential(ConvSiLU(half, half), ConvSiLU(half, half)) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, inside, h, w) to (batch, outside, h, w)."""
        kept = list(self.split(x).chunk(2, dim=1))
        for block in self.blocks:
            kept.append(block(kept[-1]) + kept[-1] if self.skip else block(kept[-1]))
        out: torch.Tensor = self.join(torch.cat(kept, dim=1))
        return out


class Pool(nn.Module):
    """Three max-pools in a row, all kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.split, self.join = ConvSiLU(channels, channels // 2, 1), ConvSiLU(channels * 2, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the shape (batch, channels, h, w)."""
        kept = [self.split(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, stride=1, padding=2))
        out: torch.Tensor = self.join(torch.cat(kept, dim=1))
        return out


class Yolo(nn.Module):
    """Images (batch, 3, side, side) to three maps (batch, outputs, side / 8, 16 and 32)."""

    def __init__(self, width: int, depth: int, num_outputs: int) -> None:
        super().__init__()
        w, wide = width, 8 * width
        self.stem = nn.Sequential(ConvSiLU(3, w, 3, 2), ConvSiLU(w, 2 * w, 3, 2), Csp(2 * w, 2 * w, depth, True))
        self.level3 = nn.Sequential(ConvSiLU(2 * w, 4 * w, 3, 2), Csp(4 * w, 4 * w, 2 * depth, True))
        self.level4 = nn.Sequential(ConvSiLU(4 * w, wide, 3, 2), Csp(wide, wide, 2 * depth, True))
        self.level5 = nn.Sequential(ConvSiLU(wide, wide, 3, 2), Csp(wide, wide, depth, True), Pool(wide))
        self.up4, self.up3 = Csp(2 * wide, wide, depth, False), Csp(wide + 4 * w, 4 * w, depth, False)
        self.down3, self.down4 = ConvSiLU(4 * w, 4 * w, 3, 2), ConvSiLU(wide, wide, 3, 2)
        self.again4, self.again5 = Csp(wide + 4 * w, wide, depth, False), Csp(2 * wide, wide, depth, False)
        self.heads = nn.ModuleList(
            nn.Sequential(ConvSiLU(c, 4 * w), ConvSiLU(4 * w, 4 * w), nn.Conv2d(4 * w, num_outputs, 1))
            for c in (4 * w, wide, wide)
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map images to the maps of the three heads, finest first."""
        c3 = self.level3(self.stem(images))
        c4 = self.level4(c3)
        c5 = self.level5(c4)
        p4 = self.up4(torch.cat([F.interpolate(c5, scale_factor=2.0), c4], dim=1))
        p3 = self.up3(torch.cat([F.interpolate(p4, scale_factor=2.0), c3], dim=1))
        n4 = self.again4(torch.cat([self.down3(p3), p4], dim=1))
        n5 = self.again5(torch.cat([self.down4(n4), c5], dim=1))
        return tuple(head(level) for head, level in zip(self.heads, (p3, n4, n5), strict=True))


def dense_loss(maps: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Mean binary cross-entropy of each map against its target, summed over the three."""
    losses = [F.binary_cross_entropy_with_logits(m, t) for m, t in zip(maps, targets, strict=True)]
    return torch.stack(losses).sum()


Example = tuple[nn.Module, tuple[torch.Tensor], tuple[torch.Tensor, ...], object]


def build(batch: int = 8, side: int = 640, width: int = 64, depth: int = 3, num_outputs: int = 144) -> Example:
    """Return the model, images, a target map a head and the dense loss."""
    torch.manual_seed(0)
    model = Yolo(width, depth, num_outputs)
    targets = tuple(torch.rand(batch, num_outputs, side // s, side // s) for s in (8, 16, 32))
    return model, (torch.randn(batch, 3, side, side),), targets, dense_loss


def build_small(batch: int = 4) -> Example:
    """One bottleneck a block, from 8 channels, images of 64 pixels."""
    return build(batch, side=64, width=8, depth=1, num_outputs=16)
