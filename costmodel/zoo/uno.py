"""CANDLE-Uno: drug response from seven feature inputs, each through its own tower, then a residual head.

The two drugs' descriptors go through one shared tower. `build_21` has 21 inputs with a tower each. Leaves
out the data set: inputs are synthetic.
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

FEATURES_21 = {f"{kind}{i}": f"{kind}{i}" for i in range(7) for kind in ("rnaseq", "descriptors", "fingerprints")}
"""Seven inputs of each wide kind, each with its own tower."""

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

    def __init__(
        self,
        tower_of: Mapping[str, str],
        widths: Mapping[str, int],
        hidden: int,
        num_layers: int,
        num_residual: int,
    ) -> None:
        super().__init__()
        self.tower_of = dict(tower_of)
        towers = {tower_of[name]: _tower(width, hidden, num_layers) for name, width in widths.items()}
        self.towers = nn.ModuleDict(towers)
        self.reduce = nn.Linear(len(widths) * hidden, hidden)
        self.residual = nn.Sequential(*(Residual(hidden) for _ in range(num_residual)))
        self.out = nn.Linear(hidden, 1)

    def forward(self, **features: torch.Tensor) -> torch.Tensor:
        """Map one (batch, width) tensor a feature to (batch,) responses."""
        ends = [self.towers[self.tower_of[name]](value) for name, value in features.items()]
        response: torch.Tensor = self.out(self.residual(torch.relu(self.reduce(torch.cat(ends, dim=-1)))))
        return response.squeeze(-1)


Example = tuple[nn.Module, dict[str, torch.Tensor], torch.Tensor, nn.Module]


def _example(
    tower_of: Mapping[str, str], batch: int, hidden: int, num_layers: int, num_residual: int, width_divisor: int
) -> Example:
    torch.manual_seed(0)
    wide = {name: next(width for kind, width in WIDTHS.items() if kind in name) for name in tower_of}
    widths = {name: max(1, width // width_divisor) for name, width in wide.items()}
    model = Uno(tower_of, widths, hidden, num_layers, num_residual)
    inputs = {name: torch.randn(batch, width) for name, width in widths.items()}
    return model, inputs, torch.rand(batch), nn.MSELoss()


def build(
    batch: int = 32, hidden: int = 4096, num_layers: int = 4, num_residual: int = 4, width_divisor: int = 1
) -> Example:
    """Return the model, its seven inputs as a dict, responses and the mean squared error."""
    return _example(FEATURES, batch, hidden, num_layers, num_residual, width_divisor)


def build_small(batch: int = 32) -> Example:
    """Hidden 512 and inputs of an eighth of the width."""
    return build(batch, hidden=512, width_divisor=8)


def build_21(batch: int = 32, hidden: int = 4096, width_divisor: int = 1) -> Example:
    """Return the variant with 21 towers of four layers."""
    return _example(FEATURES_21, batch, hidden, 4, 4, width_divisor)


def build_21_small(batch: int = 32) -> Example:
    """Hidden 256 and inputs of a sixteenth of the width."""
    return build_21(batch, hidden=256, width_divisor=16)
