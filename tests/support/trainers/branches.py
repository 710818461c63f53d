"""A model of torchtitan's kind with two branches, one over tokens and one over their positions, and its batches."""

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchtitan.protocols.model import BaseModel

from tests.support.trainers.torchtitan_stand_ins import BATCH, SEQUENCE, VOCABULARY
from tests.support.trainers.tower import WIDTH, Layer


class Branches(BaseModel):
    """Embeddings of tokens and of positions, three layers and one behind them, and a head over their sum."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        """Of nothing."""

        def update_from_config(self, **_: Any) -> None:
            """Take nothing."""

        def get_nparams_and_flops(self, model: nn.Module, _: int) -> tuple[int, int]:
            """Return the number of parameters, and of what nobody asks."""
            return sum(parameter.numel() for parameter in model.parameters()), 1

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.left = nn.ModuleList(Layer(WIDTH) for _ in range(3))
        self.right = nn.ModuleList(Layer(WIDTH) for _ in range(1))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("scale", torch.empty(()), persistent=False)

    def verify_module_protocol(self) -> None:
        """Let plain modules in, as torchtitan allows."""

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """Draw each parameter by its name."""
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        self.scale = torch.tensor(2.0, device=buffer_device)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return logits."""
        left, right = self.tokens(tokens), self.places(positions)
        for layer in self.left:
            left = layer(left)
        for layer in self.right:
            right = layer(right)
        output: Tensor = self.head((left + right) * self.scale)
        return output


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all tokens."""
    return cross_entropy(output.flatten(0, 1), targets.flatten())


def build(batch: int = BATCH) -> tuple[nn.Module, tuple[Tensor, Tensor], Tensor, object]:
    """Return the model, its inputs, targets, and the loss."""
    model = Branches.Config().build()
    model.init_states()
    tokens = torch.zeros(batch, SEQUENCE, dtype=torch.int64)
    return model, (tokens, torch.arange(SEQUENCE).expand(batch, -1).contiguous()), tokens, loss_of
