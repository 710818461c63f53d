"""CANDLE-Uno: drug response from seven feature inputs, each through its own tower, then a residual head.

The two drugs' descriptors go through one shared tower. Leaves out the data set: inputs are synthetic.
"""

from collections.abc import Mapping

import torch
from torch import nn

FEATURES = {
    "cell_rnaseq": "cell_rnaseq",
    "dose1": "dose1",
    "dose2": "dose2",
    "drug1_descriptors": "drug_descriptors",
    "drug2_descriptors": "drug_descriptors",
    "drug1_fingerprints": "drug1_fingerprints",
    "drug2_fingerprints": "drug2_fingerprints",
}
"""Input name -> the tower it goes through."""

WIDTHS = {"rnaseq": 942, "dose1": 1, "dose2": 1, "descriptors": 5270, "fingerprints": 2048}


class Residual(nn.Module):
    """A dense layer added to its input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, hidden) to the same shape."""
        return x + torch.relu(self.dense(x))


def _tower(width: int, hidden: int, num_layers: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(num_layers):
        layers += [nn.Linear(hidden if i else width, hidden), nn.ReLU()]
    return nn.Sequential(*layers)


class Uno(nn.Module):
    """Towers by feature, concatenated, reduced to `hidden`, residual layers, one output."""

    def __init__(self, widths: Mapping[str, int], hidden: int, num_layers: int, num_residual: int) -> None:
        super().__init__()
        towers = {FEATURES[name]: _tower(width, hidden, num_layers) for name, width in widths.items()}
        self.towers = nn.ModuleDict(towers)
        self.reduce = nn.Linear(len(widths) * hidden, hidden)
        self.residual = nn.Sequential(*(Residual(hidden) for _ in range(num_residual)))
        self.out = nn.Linear(hidden, 1)

    def forward(self, **features: torch.Tensor) -> torch.Tensor:
        """Map one (batch, width) tensor a feature to (batch,) responses."""
        ends = [self.towers[FEATURES[name]](value) for name, value in features.items()]
        response: torch.Tensor = self.out(self.residual(torch.relu(self.reduce(torch.cat(ends, dim=-1)))))
        return response.squeeze(-1)


Example = tuple[nn.Module, dict[str, torch.Tensor], torch.Tensor, nn.Module]


def build(
    batch: int = 32, hidden: int = 4096, num_layers: int = 4, num_residual: int = 4, width_divisor: int = 1
) -> Example:
    """Return the model, its seven inputs as a dict, responses and the mean squared error."""
    torch.manual_seed(0)
    widths = {name: max(1, WIDTHS[name.split("_")[-1]] // width_divisor) for name in FEATURES}
    model = Uno(widths, hidden, num_layers, num_residual)
    inputs = {name: torch.randn(batch, width) for name, width in widths.items()}
    return model, inputs, torch.rand(batch), nn.MSELoss()


def build_small(batch: int = 32) -> Example:
    """Hidden 512 and inputs of an eighth of the width."""
    return build(batch, hidden=512, width_divisor=8)
