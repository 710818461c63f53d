"""DLRM: embeddings of sparse features and networks of dense ones meet in pairwise products, then a network.

`build` is GraphPipe's shape (7 dense and 7 sparse branches, tables of 1M x 64); `build_26` is Criteo's
(13 dense features through one network, 26 tables). Every sparse feature has one index a sample. Leaves
out tables that are spread over devices row by row, and sparse gradients.
"""

from itertools import pairwise

import torch
from torch import nn


def _network(widths: tuple[int, ...], last_relu: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


class Dlrm(nn.Module):
    """Dense features (batch, branches, width) and indices (batch, tables) to one logit a sample."""

    pairs: torch.Tensor

    def __init__(
        self, num_dense: int, dense: tuple[int, ...], num_tables: int, rows: int, top: tuple[int, ...]
    ) -> None:
        super().__init__()
        size = dense[-1]
        self.dense = nn.ModuleList(_network(dense) for _ in range(num_dense))
        self.tables = nn.ModuleList(nn.Embedding(rows, size) for _ in range(num_tables))
        count = num_dense + num_tables
        rows_of, columns_of = torch.triu_indices(count, count, 1)
        self.register_buffer("pairs", rows_of * count + columns_of)
        self.top = _network((num_dense * size + count * (count - 1) // 2, *top, 1), last_relu=False)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Map features to (batch,) logits."""
        ends = [network(dense[:, i]) for i, network in enumerate(self.dense)]
        vectors = torch.stack([*ends, *(table(indices[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logits: torch.Tensor = self.top(torch.cat([*ends, products], dim=1))
        return logits.squeeze(-1)


Example = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], torch.Tensor, nn.Module]


def _example(batch: int, model: Dlrm, num_dense: int, width: int, num_tables: int, rows: int) -> Example:
    inputs = torch.randn(batch, num_dense, width), torch.randint(rows, (batch, num_tables))
    return model, inputs, torch.randint(2, (batch,)).float(), nn.BCEWithLogitsLoss()


def build(
    batch: int = 128, rows: int = 1_000_000, size: int = 64, hidden: int = 4096, num_layers: int = 4, branches: int = 7
) -> Example:
    """Return the model with `branches` dense and as many sparse branches, its features, clicks and the loss."""
    torch.manual_seed(0)
    dense = (hidden, *(hidden for _ in range(num_layers - 1)), size)
    model = Dlrm(branches, dense, branches, rows, (hidden, hidden))
    return _example(batch, model, branches, hidden, branches, rows)


def build_small(batch: int = 32) -> Example:
    """Tables of 1,000 x 32, dense networks of three layers of 256."""
    return build(batch, rows=1000, size=32, hidden=256, num_layers=3)


def build_26(batch: int = 128, rows: int = 1_000_000, size: int = 64, hidden: int = 512) -> Example:
    """Return the model with 26 tables and 13 dense features in one network."""
    torch.manual_seed(0)
    model = Dlrm(1, (13, hidden, hidden // 2, size), 26, rows, (1024, 1024, 512))
    return _example(batch, model, 1, 13, 26, rows)


def build_26_small(batch: int = 32) -> Example:
    """Tables of 1,000 x 32."""
    return build_26(batch, rows=1000, size=32, hidden=256)
