"""Inception v3: blocks of three or four branches of unlike cost, joined by concatenation, one after another.

Leaves out the auxiliary classifier and dropout. Source of the widths: Szegedy et al., "Rethinking the
Inception Architecture for Computer Vision" (2016), as torchvision lays it out.
"""

import torch
from torch import nn

Kernel = int | tuple[int, int]


class ConvReLU(nn.Sequential):
    """Convolution, BatchNorm, ReLU; keeps the size at stride 1 unless `padded` is off."""

    def __init__(self, inside: int, outside: int, kernel: Kernel, stride: int = 1, padded: bool = True) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if padded else (0, 0)
        super().__init__(
            nn.Conv2d(inside, outside, (height, width), stride, padding, bias=False),
            nn.BatchNorm2d(outside, eps=0.001),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Branches of one input, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, channels, h, w) to the branches' channels side by side."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _chain(inside: int, *steps: tuple[int, Kernel]) -> nn.Sequential:
    widths = [inside, *(width for width, _ in steps)]
    return nn.Sequential(*(ConvReLU(a, b, k) for a, (b, k) in zip(widths, steps, strict=False)))


def _pooled(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvReLU(inside, outside, 1))


def _block_a(inside: int, w: int, pool: int) -> Branches:
    return Branches(
        _chain(inside, (4 * w, 1)),
        _chain(inside, (3 * w, 1), (4 * w, 5)),
        _chain(inside, (4 * w, 1), (6 * w, 3), (6 * w, 3)),
        _pooled(inside, pool),
    )


def _reduce(inside: int, *branches: nn.Module) -> Branches:
    return Branches(*branches, nn.MaxPool2d(3, 2))


def _block_b(inside: int, w: int, middle: int) -> Branches:
    wide = 12 * w
    return Branches(
        _chain(inside, (wide, 1)),
        _chain(inside, (middle, 1), (middle, (1, 7)), (wide, (7, 1))),
        _chain(inside, (middle, 1), (middle, (7, 1)), (middle, (1, 7)), (middle, (7, 1)), (wide, (1, 7))),
        _pooled(inside, wide),
    )


def _block_c(inside: int, w: int) -> Branches:
    def pair() -> Branches:
        return Branches(ConvReLU(24 * w, 24 * w, (1, 3)), ConvReLU(24 * w, 24 * w, (3, 1)))

    return Branches(
        _chain(inside, (20 * w, 1)),
        nn.Sequential(ConvReLU(inside, 24 * w, 1), pair()),
        nn.Sequential(ConvReLU(inside, 28 * w, 1), ConvReLU(28 * w, 24 * w, 3), pair()),
        _pooled(inside, 12 * w),
    )


def _blocks(w: int, counts: tuple[int, int, int]) -> list[nn.Module]:
    """Return the blocks after the stem; `counts` are those of each kind, w is a sixteenth of 256."""
    found: list[nn.Module] = []
    inside = 12 * w
    for i in range(counts[0]):
        pool = 2 * w if i == 0 else 4 * w
        found.append(_block_a(inside, w, pool))
        inside = 14 * w + pool
    found.append(
        _reduce(
            inside,
            ConvReLU(inside, 24 * w, 3, 2, padded=False),
            nn.Sequential(
                ConvReLU(inside, 4 * w, 1), ConvReLU(4 * w, 6 * w, 3), ConvReLU(6 * w, 6 * w, 3, 2, padded=False)
            ),
        )
    )
    inside += 30 * w
    for middle in (8 * w, 10 * w, 10 * w, 12 * w)[: counts[1]]:
        found.append(_block_b(inside, w, middle))
        inside = 48 * w
    long = _chain(inside, (12 * w, 1), (12 * w, (1, 7)), (12 * w, (7, 1)))
    found.append(
        _reduce(
            inside,
            nn.Sequential(ConvReLU(inside, 12 * w, 1), ConvReLU(12 * w, 20 * w, 3, 2, padded=False)),
            nn.Sequential(long, ConvReLU(12 * w, 12 * w, 3, 2, padded=False)),
        )
    )
    inside += 32 * w
    for _ in range(counts[2]):
        found.append(_block_c(inside, w))
        inside = 128 * w
    return found


class Inception(nn.Module):
    """Images (batch, 3, side, side) to logits; `w` = 16 is the published width."""

    def __init__(self, w: int, counts: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvReLU(3, 2 * w, 3, 2, padded=False), ConvReLU(2 * w, 2 * w, 3, padded=False), ConvReLU(2 * w, 4 * w, 3),
            nn.MaxPool2d(3, 2), ConvReLU(4 * w, 5 * w, 1), ConvReLU(5 * w, 12 * w, 3, padded=False), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.blocks = nn.Sequential(*_blocks(w, counts))
        self.head = nn.Linear(128 * w, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to logits."""
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor], torch.Tensor, nn.Module]


def build(batch: int = 32, side: int = 299, w: int = 16, counts: tuple[int, int, int] = (3, 4, 2)) -> Example:
    """Return the model, images, class labels and cross-entropy."""
    torch.manual_seed(0)
    model = Inception(w, counts, 1000)
    return model, (torch.randn(batch, 3, side, side),), torch.randint(1000, (batch,)), nn.CrossEntropyLoss()


def build_small(batch: int = 4) -> Example:
    """One block of each kind, a quarter of the width, images of 107 pixels."""
    return build(batch, side=107, w=4, counts=(1, 1, 1))
