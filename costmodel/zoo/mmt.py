"""GraphPipe's multi-modal transformer: equal transformer branches, concatenated at the end, then a head.

Each modality enters as features that its own branch transforms; no branch reads another before the
concatenation. Leaves out the modalities' own encoders (patches, tokens): features are the raw inputs.
"""

import torch
from torch import nn

from costmodel.zoo.layers import FusedLayer


class MultiModalTransformer(nn.Module):
    """`num_branches` stacks of `num_layers` layers; their mean-pooled ends are concatenated and classified."""

    def __init__(
        self, num_branches: int, num_layers: int, hidden: int, ffn: int, num_heads: int, num_classes: int
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(FusedLayer(hidden, num_heads, ffn) for _ in range(num_layers))) for _ in range(num_branches)
        )
        self.head = nn.Linear(num_branches * hidden, num_classes)

    def forward(self, *modalities: torch.Tensor) -> torch.Tensor:
        """Map one (batch, sequence, hidden) tensor a branch to (batch, num_classes) logits."""
        ends = [branch(x).mean(dim=1) for branch, x in zip(self.branches, modalities, strict=True)]
        logits: torch.Tensor = self.head(torch.cat(ends, dim=-1))
        return logits


Example = tuple[nn.Module, tuple[torch.Tensor, ...], torch.Tensor, nn.Module]


def build(
    batch: int = 8,
    num_branches: int = 4,
    num_layers: int = 8,
    hidden: int = 1024,
    ffn: int = 4096,
    num_heads: int = 16,
    sequence: int = 256,
) -> Example:
    """Return the model, one feature tensor a branch, class labels and cross-entropy."""
    torch.manual_seed(0)
    num_classes = 1000
    model = MultiModalTransformer(num_branches, num_layers, hidden, ffn, num_heads, num_classes)
    inputs = tuple(torch.randn(batch, sequence, hidden) for _ in range(num_branches))
    return model, inputs, torch.randint(num_classes, (batch,)), nn.CrossEntropyLoss()


def build_small(batch: int = 8) -> Example:
    """Four branches of four layers, hidden 128: some 25 ms a sample on one CPU core."""
    return build(batch, num_layers=4, hidden=128, ffn=512, num_heads=4, sequence=64)


def build_case_study(batch: int = 8) -> Example:
    """Two branches of eight layers, hidden 1024: the smallest graph on which a chain of stages loses."""
    return build(batch, num_branches=2)


def build_case_study_small(batch: int = 8) -> Example:
    """Two branches of four layers, hidden 128."""
    return build(batch, num_branches=2, num_layers=4, hidden=128, ffn=512, num_heads=4, sequence=64)
